//! Messages of other systems, without batches: reads their formats, finds where batches begin and assigns positions.
//!
//! [`read`] takes OpenAI's chat JSON and the messages of LangGraph's checkpoints; [`assign_positions`] gives the messages of one thread
//! positions, batches and numbers. Both are functions of their input alone, so importing twice changes nothing.

mod boundaries;
mod langgraph;
mod openai;
mod parts;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use model::{InvalidMetadata, MessageId, Metadata, Position, Positions, Role, ThreadId, Timestamp, TurnId};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::Item;

/// Calls that one message may have.
pub const MAX_CALLS: usize = 4_096;

/// A message of another system, without a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct ForeignMessage {
    /// Its id there.
    pub id: Option<String>,
    /// The author's role.
    pub role: Role,
    /// Its text.
    pub content: String,
    /// `[{"id", "name", "arguments"}]`.
    pub tool_calls: Option<Value>,
    /// Of a tool message: the call that it answers.
    pub tool_call_id: Option<String>,
    /// When it was written, if that is known.
    pub created_at: Option<Timestamp>,
    /// Everything else that it came with.
    pub metadata: Metadata,
    /// What the provider counted for it.
    pub token_count: Option<u64>,
}

/// What was done with a message that could not be taken as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportNote {
    /// Its number in the input, from 0.
    pub index: usize,
    /// Its id there.
    pub id: Option<String>,
    /// What was done.
    pub what: NoteKind,
}

/// How a message was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoteKind {
    /// It is the same as an earlier one with its id, and left out.
    Twice,
    /// Its id cannot be one here, or was used before: it has another.
    IdChanged {
        /// Which.
        to: MessageId,
    },
    /// Its time is later than now: it is placed right after the message before it.
    Future,
    /// It answers no open call: it is a batch of its own, and never in a context.
    Orphan,
    /// It is an instruction of the other system, no message, and left out.
    NoMessage,
}

impl fmt::Display for ImportNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "message {}", self.index + 1)?;
        if let Some(id) = &self.id {
            write!(f, " ({id:?})")?;
        }
        match &self.what {
            NoteKind::Twice => f.write_str(": the same as an earlier one; left out"),
            NoteKind::IdChanged { to } => write!(f, ": its id is taken or not allowed here; it becomes {to}"),
            NoteKind::Future => {
                f.write_str(": its time is later than now; it is placed after the one before")
            }
            NoteKind::Orphan => f.write_str(": a result without a call; it is kept in a batch of its own"),
            NoteKind::NoMessage => f.write_str(": not a message; left out"),
        }
    }
}

/// The format of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForeignFormat {
    /// A list of `{"role", "content", …}`, or an object with it as `messages`.
    OpenAi,
    /// A list of LangChain's messages, or a checkpoint with it.
    LangGraph,
}

impl ForeignFormat {
    /// `openai` or `langgraph`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "openai" => Some(Self::OpenAi),
            "langgraph" => Some(Self::LangGraph),
            _ => None,
        }
    }
}

/// An input that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForeignError {
    /// There is no list of messages in it.
    #[error("no list of messages: a JSON array, an object with \"messages\", or a checkpoint is expected")]
    NoList,
    /// One of them is wrong.
    #[error("message {}: {wrong}", index + 1)]
    Message {
        /// From 0.
        index: usize,
        /// What is wrong with it.
        wrong: FormatError,
    },
}

/// What is wrong with a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// It is no object.
    #[error("it is no JSON object")]
    NotAnObject,
    /// Its role is unknown.
    #[error("its role or type is {0}")]
    Role(String),
    /// Neither a text nor a list of parts.
    #[error("its content is neither a text nor a list of parts")]
    Content,
    /// No list of calls.
    #[error("its tool calls are no list of objects")]
    Calls,
    /// Too many.
    #[error("it has {0} tool calls; at most {MAX_CALLS} are allowed")]
    TooManyCalls(usize),
    /// Postgres cannot store it.
    #[error("its text holds a NUL character")]
    Nul,
    /// What it came with cannot be kept.
    #[error(transparent)]
    Metadata(#[from] InvalidMetadata),
}

/// The messages of a thread as they were read.
#[derive(Debug, Clone, PartialEq)]
pub struct ForeignThread {
    /// In their order.
    pub messages: Vec<ForeignMessage>,
    /// What was left out.
    pub notes: Vec<ImportNote>,
}

/// Reads a whole thread in one of the formats.
///
/// # Errors
/// It is not in that format, or a message is invalid: then nothing is read.
pub fn read(input: &Value, format: ForeignFormat) -> Result<ForeignThread, ForeignError> {
    let list = list_of(input).ok_or(ForeignError::NoList)?;
    let mut read = ForeignThread { messages: Vec::with_capacity(list.len()), notes: Vec::new() };
    for (index, message) in list.iter().enumerate() {
        let taken = match format {
            ForeignFormat::OpenAi => openai::message(message).map(Some),
            ForeignFormat::LangGraph => langgraph::message(message),
        };
        match taken.and_then(|taken| taken.map(checked).transpose()) {
            Ok(Some(message)) => read.messages.push(message),
            Ok(None) => read.notes.push(ImportNote { index, id: None, what: NoteKind::NoMessage }),
            Err(wrong) => return Err(ForeignError::Message { index, wrong }),
        }
    }
    Ok(read)
}

fn list_of(input: &Value) -> Option<&Vec<Value>> {
    let places =
        ["/messages", "/channel_values/messages", "/checkpoint/channel_values/messages", "/values/messages"];
    input.as_array().or_else(|| places.iter().find_map(|place| input.pointer(place)?.as_array()))
}

fn checked(message: ForeignMessage) -> Result<ForeignMessage, FormatError> {
    let calls = message.tool_calls.as_ref().and_then(Value::as_array).map_or(0, Vec::len);
    if calls > MAX_CALLS {
        return Err(FormatError::TooManyCalls(calls));
    }
    let in_calls = message.tool_calls.as_ref().is_some_and(|calls| calls.to_string().contains("\\u0000"));
    let in_id = message.tool_call_id.as_ref().is_some_and(|id| id.contains('\0'));
    if message.content.contains('\0') || in_calls || in_id { Err(FormatError::Nul) } else { Ok(message) }
}

/// A thread's messages with places.
#[derive(Debug, Clone, PartialEq)]
pub struct Numbered {
    /// By position.
    pub items: Vec<Item>,
    /// What could not be taken as it was.
    pub notes: Vec<ImportNote>,
}

/// Gives the messages of a thread, in their order, positions, batches and numbers. Positions follow the order, and the times
/// where these agree with it; what has no time stands right after what is before it. `now` only decides which times are wrong.
pub fn assign_positions(thread: &ThreadId, messages: Vec<ForeignMessage>, now: Timestamp) -> Numbered {
    let bucket = thread.bucket();
    // Positions count from 2024. What is older keeps its order and its time, and stands at the beginning.
    let base = Position::from_stored(0).timestamp().plus_ms(1);
    let mut positions = Positions::above(Timestamp(0));
    let mut ids = Ids::default();
    let mut notes = Vec::new();
    let mut items: Vec<Item> = Vec::with_capacity(messages.len());
    let mut origins = Vec::with_capacity(messages.len());
    for (index, message) in messages.into_iter().enumerate() {
        let mut note = |what| notes.push(ImportNote { index, id: message.id.clone(), what });
        let (message_id, changed) = match ids.take(&message) {
            Id::Kept(id) => (id, false),
            Id::Made(id) => (id, message.id.is_some()),
            Id::Twice => {
                note(NoteKind::Twice);
                continue;
            }
        };
        if changed {
            note(NoteKind::IdChanged { to: message_id.clone() });
        }
        let created_at = message.created_at.filter(|at| *at <= now);
        if created_at != message.created_at {
            note(NoteKind::Future);
        }
        let at = created_at.unwrap_or(positions.high_water()).max(base);
        let position = positions.next(bucket, at);
        origins.push((index, message.id.clone()));
        items.push(Item {
            position,
            message_id,
            batch_id: position,
            number: None,
            sequence_num: 0,
            batch_type: model::BatchType::UserRequest,
            role: message.role,
            content: message.content,
            tool_calls: message.tool_calls,
            tool_call_id: message.tool_call_id,
            metadata: message.metadata,
            token_count: message.token_count,
            created_at: created_at.unwrap_or(at),
        });
    }
    let orphans = boundaries::detect(&mut items);
    let orphan = |at: &usize| {
        let (index, id) = origins.get(*at)?.clone();
        Some(ImportNote { index, id, what: NoteKind::Orphan })
    };
    notes.extend(orphans.iter().filter_map(orphan));
    Numbered { items, notes }
}

/// Ids of a thread: each message keeps its own where it may.
#[derive(Default)]
struct Ids(BTreeMap<MessageId, [u8; 32]>);

enum Id {
    Kept(MessageId),
    Made(MessageId),
    Twice,
}

impl Ids {
    fn take(&mut self, message: &ForeignMessage) -> Id {
        let digest = digest(message);
        let own = message.id.as_deref().and_then(|id| MessageId::parse(id).ok());
        let own = own.filter(|id| !TurnId::is_reserved(id));
        match own.as_ref().and_then(|id| self.0.get(id)) {
            Some(known) if *known == digest => return Id::Twice,
            Some(_) => {}
            None => {
                if let Some(id) = own {
                    self.0.insert(id.clone(), digest);
                    return Id::Kept(id);
                }
            }
        }
        // Two equal messages without ids are two messages: the number distinguishes them.
        let hex: String = digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
        for number in 0_u64.. {
            let text =
                if number == 0 { format!("imported-{hex}") } else { format!("imported-{hex}-{number}") };
            let Ok(id) = MessageId::parse(&text) else { break };
            match self.0.get(&id) {
                Some(_) if message.id.is_some() => return Id::Twice,
                Some(_) => {}
                None => {
                    self.0.insert(id.clone(), digest);
                    return Id::Made(id);
                }
            }
        }
        Id::Twice
    }
}

/// What a message says, with its id there.
fn digest(message: &ForeignMessage) -> [u8; 32] {
    let mut hash = Sha256::new();
    let calls = message.tool_calls.as_ref().map(Value::to_string);
    let parts = [
        message.id.as_deref(),
        Some(message.role.name()),
        Some(&message.content),
        calls.as_deref(),
        message.tool_call_id.as_deref(),
    ];
    for part in parts {
        hash.update((part.map_or(u64::MAX, |part| part.len() as u64)).to_be_bytes());
        hash.update(part.unwrap_or_default());
    }
    hash.update(message.created_at.map_or(0, |at| at.0).to_be_bytes());
    hash.finalize().into()
}
