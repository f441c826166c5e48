//! The lines of an export.

use model::{BatchType, MessageId, Metadata, Position, Role, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{ExportCounts, ExportedThread, LineError};
use crate::{Compaction, Item};

/// The highest number that the store can hold.
pub(super) const MAX_NUMBER: u64 = 0x7fff_ffff;

/// Any line except the header.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    Thread(ExportedThread),
    Message(Box<MessageLine>),
    Numbers(Numbers),
    Compaction(Box<Compaction>),
    FollowUp(Map<String, Value>),
    Feedback(Map<String, Value>),
    ReasoningSession(Map<String, Value>),
    ReasoningLayer(Map<String, Value>),
    ReasoningCheckpoint(Map<String, Value>),
    ReasoningMessage(Map<String, Value>),
    Trailer(Trailer),
}

/// The last number that a thread has assigned, if it is above those of its messages.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Numbers {
    pub(super) last_number: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HeaderLine {
    pub(super) antiphon_export: Value,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Trailer {
    #[serde(flatten)]
    pub(super) counts: ExportCounts,
    pub(super) sha256: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MessageLine {
    pub(super) position: Position,
    pub(super) message_id: String,
    batch_id: Position,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    number: Option<u64>,
    sequence_num: i32,
    batch_type: String,
    role: String,
    content: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tool_calls: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<String>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    metadata: Map<String, Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token_count: Option<u64>,
    created_ms: i64,
    /// Absent if unknown, as in older exports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    started_ms: Option<i64>,
}

/// A line with a [`MessageLine`] to write; it borrows from the message.
#[derive(Debug, Serialize)]
pub(super) struct WrittenMessage<'a> {
    pub(super) message: MessageText<'a>,
}

/// The fields of a [`MessageLine`], borrowed from the message.
#[derive(Debug, Serialize)]
pub(super) struct MessageText<'a> {
    position: Position,
    message_id: &'a str,
    batch_id: Position,
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<u64>,
    sequence_num: i32,
    batch_type: &'static str,
    role: &'static str,
    content: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<&'a Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_count: Option<u64>,
    created_ms: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    started_ms: Option<i64>,
}

impl<'a> MessageText<'a> {
    pub(super) fn of(item: &'a Item) -> Self {
        Self {
            position: item.position,
            message_id: item.message_id.as_str(),
            batch_id: item.batch_id,
            number: item.number,
            sequence_num: item.sequence_num,
            batch_type: item.batch_type.name(),
            role: item.role.name(),
            content: &item.content,
            tool_calls: item.tool_calls.as_ref(),
            tool_call_id: item.tool_call_id.as_deref(),
            metadata: item.metadata.as_map(),
            token_count: item.token_count,
            created_ms: item.created_at.0,
            started_ms: item.started_at.map(|at| at.0),
        }
    }
}

impl MessageLine {
    pub(super) fn calls(&self) -> usize {
        self.tool_calls.as_ref().and_then(Value::as_array).map_or(0, Vec::len)
    }

    pub(super) fn into_item(self) -> Result<Item, LineError> {
        let unstorable = |detail: String| LineError::Unstorable { detail };
        let has_nul = |text: &str| text.contains('\0');
        let in_calls = self.tool_calls.as_ref().is_some_and(|calls| calls.to_string().contains("\\u0000"));
        if has_nul(&self.content) || self.tool_call_id.as_deref().is_some_and(has_nul) || in_calls {
            return Err(unstorable("it holds a NUL character".to_owned()));
        }
        if self.position.get() <= 0 || self.batch_id.get() <= 0 {
            return Err(unstorable("its position or batch is not above 0".to_owned()));
        }
        if self.number.is_some_and(|number| !(1..=MAX_NUMBER).contains(&number)) {
            return Err(unstorable("its number is not from 1 to 2147483647".to_owned()));
        }
        if self.tool_calls.as_ref().is_some_and(|calls| !calls.is_array()) {
            return Err(unstorable("its tool_calls are no array".to_owned()));
        }
        let batch_type = batch_type(&self.batch_type)
            .ok_or_else(|| unstorable(format!("there is no batch_type {:?}", self.batch_type)))?;
        let role = Role::from_name(&self.role)
            .ok_or_else(|| unstorable(format!("there is no role {:?}", self.role)))?;
        Ok(Item {
            position: self.position,
            message_id: MessageId::parse(&self.message_id).map_err(|error| unstorable(error.to_string()))?,
            batch_id: self.batch_id,
            number: self.number,
            sequence_num: self.sequence_num,
            batch_type,
            role,
            content: self.content,
            tool_calls: self.tool_calls,
            tool_call_id: self.tool_call_id,
            metadata: Metadata::new(self.metadata).map_err(|error| unstorable(error.to_string()))?,
            token_count: self.token_count.filter(|count| i64::try_from(*count).is_ok()),
            created_at: Timestamp(self.created_ms),
            started_at: self.started_ms.map(Timestamp),
        })
    }
}

fn batch_type(name: &str) -> Option<BatchType> {
    use BatchType::{AgentToAgent, Continuation, SystemTrigger, UserRequest};
    [UserRequest, AgentToAgent, SystemTrigger, Continuation].into_iter().find(|kind| kind.name() == name)
}
