//! The JSON forms of chunks and tasks: exactly the names of C1, and our optional names.

use std::sync::Arc;

use model::{AgentId, Chunk, ChunkKind, Command, IncomingChunk, Metadata, Role, Task, TaskKind, TaskOrigin};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::command::{InvalidCommand, check_input, from_then_on, kind_of_others, task_id};
use crate::convert::{self, InvalidField};
use crate::halves::CutText;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct JsonChunk {
    pub(crate) session_id: String,
    message_id: String,
    chunk_id: i64,
    #[serde(default)]
    chunk: Option<CutText>,
    #[serde(default)]
    chunk_type: Option<String>,
    #[serde(default)]
    is_final: Option<bool>,
    #[serde(default)]
    metadata: Option<Map<String, Value>>,
    #[serde(default)]
    timestamp: Option<String>,
    #[serde(default)]
    correlation_id: Option<String>,
    #[serde(default)]
    attempt: Option<u32>,
    #[serde(default)]
    step: Option<u32>,
    #[serde(default)]
    role: Option<String>,
    #[serde(default)]
    pub(crate) turn_token: Option<String>,
    #[serde(default)]
    pub(crate) delivery_id: Option<String>,
}

/// A task, with exactly the names of `tasks.proto`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct JsonTask {
    task_id: String,
    content: String,
    #[serde(default)]
    metadata: Option<Map<String, Value>>,
    #[serde(default)]
    kind: Option<String>,
    /// The time as RFC 3339.
    #[serde(default)]
    not_before: Option<String>,
}

impl JsonTask {
    pub(crate) fn command(self, agent: &AgentId) -> Result<Command, InvalidCommand> {
        check_input(&self.content)?;
        let metadata = Metadata::new(self.metadata.unwrap_or_default()).map_err(InvalidField::from)?;
        metadata.tokens_used().map_err(InvalidField::from)?;
        metadata.check_from_client().map_err(InvalidField::from)?;
        let not_before = self.not_before.as_deref().map(|text| {
            let moment = convert::parse_rfc3339(text);
            moment.ok_or(InvalidCommand::NotBefore("must be a time like 2026-12-24T18:00:00Z"))
        });
        let not_before = not_before.transpose()?;
        let task = Task {
            agent: agent.clone(),
            id: task_id(&self.task_id)?,
            kind: kind_of_others(agent, named("kind", self.kind, TaskKind::from_name)?)?,
            content: self.content,
            origin: TaskOrigin::of_sender(&metadata),
            metadata,
        };
        from_then_on(task, not_before)
    }
}

impl JsonChunk {
    pub(crate) fn arrival(self) -> Result<IncomingChunk, InvalidField> {
        let CutText { text, halves } = self.chunk.unwrap_or_default();
        let chunk = Chunk {
            id: convert::chunk_id(self.chunk_id)?,
            kind: named("chunk_type", self.chunk_type, ChunkKind::from_name)?,
            is_final: self.is_final.unwrap_or_default(),
            text: text.into(),
            halves,
            metadata: Metadata::new(self.metadata.unwrap_or_default())?,
            timestamp: convert::timestamp(self.timestamp.as_deref().unwrap_or_default())?,
            correlation_id: convert::correlation_id(self.correlation_id.as_deref().unwrap_or_default())?,
        };
        chunk.check()?;
        chunk.metadata.check_from_client()?;
        Ok(IncomingChunk {
            message: convert::message_id(&self.message_id)?,
            attempt: self.attempt.unwrap_or_default(),
            step: self.step.unwrap_or_default(),
            role: named("role", self.role, Role::from_name)?,
            chunk: Arc::new(chunk),
        })
    }
}

fn named<T: Default>(
    field: &'static str,
    name: Option<String>,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<T, InvalidField> {
    match name {
        None => Ok(T::default()),
        Some(name) => parse(&name).ok_or_else(|| {
            InvalidField::Enum(field, format!("{:?}", name.chars().take(40).collect::<String>()))
        }),
    }
}

/// The JSON that publishers write, for tests and tools; [`JsonChunk`] is for reading.
#[derive(Serialize)]
pub(crate) struct JsonChunkOut<'a> {
    pub(crate) session_id: &'a str,
    pub(crate) message_id: &'a str,
    #[serde(flatten)]
    pub(crate) chunk: &'a Chunk,
    pub(crate) attempt: u32,
    pub(crate) step: u32,
    pub(crate) role: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) turn_token: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) delivery_id: Option<&'a str>,
}
