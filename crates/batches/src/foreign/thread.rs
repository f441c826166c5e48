//! Messages and threads of other systems.

use model::{InvalidMetadata, Metadata, Role, Timestamp};
use serde_json::Value;

use super::notes::{ImportNote, LeftOut, NoteKind};

/// Maximum number of calls in one message.
pub const MAX_CALLS: usize = 4_096;

/// A message of another system, without a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct ForeignMessage {
    /// Index of the message in the input, from 0; one input message may become several.
    pub index: usize,
    /// The id of the message in the input.
    pub id: Option<String>,
    /// The author's role.
    pub role: Role,
    pub content: String,
    /// The calls, as `[{"id", "name", "arguments"}]`.
    pub tool_calls: Option<Value>,
    /// For a tool message: the id of the answered call.
    pub tool_call_id: Option<String>,
    /// Time of writing, if known.
    pub created_at: Option<Timestamp>,
    /// All other data of the message.
    pub metadata: Metadata,
    /// Tokens that the provider counted for the message.
    pub token_count: Option<u64>,
}

/// A thread after parsing.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ForeignThread {
    /// The id of the thread in the input; only chats have one.
    pub id: Option<String>,
    /// The title of the thread in the input.
    pub title: Option<String>,
    /// Time of creation.
    pub created_at: Option<Timestamp>,
    /// The person's instructions to the model for this chat, which are not a message.
    pub instructions: Option<String>,
    /// True if the chat does not name its current branch, so that the branch with the newest
    /// message was read.
    pub is_guessed: bool,
    /// The messages in chronological order.
    pub messages: Vec<ForeignMessage>,
    /// Notes about the messages.
    pub notes: Vec<ImportNote>,
    /// Parts of the export that did not become messages.
    pub left_out: LeftOut,
}

/// The reason why a message is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The message is not an object.
    #[error("it is no JSON object")]
    NotAnObject,
    /// The role of the message is unknown.
    #[error("its role or type is {0}")]
    Role(String),
    /// The content is neither a text nor a list of parts.
    #[error("its content is neither a text nor a list of parts")]
    Content,
    /// The calls are not a list of calls.
    #[error("its tool calls are no list of objects")]
    Calls,
    /// The message has this many calls, more than the maximum.
    #[error("it has {0} tool calls; at most {MAX_CALLS} are allowed")]
    TooManyCalls(usize),
    /// A strict import refuses changes and losses.
    #[error("{}", .0.what())]
    Loss(NoteKind),
    /// The metadata cannot be stored.
    #[error(transparent)]
    Metadata(#[from] InvalidMetadata),
}
