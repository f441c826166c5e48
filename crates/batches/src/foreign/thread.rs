//! Messages and threads of other systems.

use model::{InvalidMetadata, Metadata, Role, Timestamp};
use serde_json::Value;

use super::notes::{ImportNote, LeftOut, NoteKind};

/// Calls that one message may have.
pub const MAX_CALLS: usize = 4_096;

/// A message of another system, without a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct ForeignMessage {
    /// The number of its message in the input, from 0; one there may become several here.
    pub index: usize,
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

/// A thread as it was read.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ForeignThread {
    /// Its id there; only chats have one.
    pub id: Option<String>,
    /// Its title there.
    pub title: Option<String>,
    /// When it was begun.
    pub created_at: Option<Timestamp>,
    /// The person's instructions to the model for this chat, beside the messages.
    pub instructions: Option<String>,
    /// The chat does not name its current branch: the one with the newest message was read.
    pub is_guessed: bool,
    /// In their order.
    pub messages: Vec<ForeignMessage>,
    /// What was found in them.
    pub notes: Vec<ImportNote>,
    /// What did not become a message.
    pub left_out: LeftOut,
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
    /// A strict import refuses what it would have to change.
    #[error("{}", .0.what())]
    Loss(NoteKind),
    /// What it came with cannot be kept.
    #[error(transparent)]
    Metadata(#[from] InvalidMetadata),
}
