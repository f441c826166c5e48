//! What a response says of itself, and its id.

use model::{MessageId, Metadata, ThreadId, Timestamp};

/// What a response says of itself.
#[derive(Debug, Clone)]
pub struct ResponseOptions {
    /// Where the turn takes place: the `conversation` of the response.
    pub thread: ThreadId,
    /// The answer.
    pub message: MessageId,
    /// What the client called the model.
    pub model: String,
    /// When the turn was opened.
    pub created_at: Timestamp,
    /// Whether it was asked for without a connection to wait on: it is `queued` until something comes.
    pub background: bool,
    /// What the client named as the response before.
    pub previous_response_id: Option<String>,
    /// The request's metadata.
    pub metadata: Metadata,
    /// How the calls of tools are shown.
    pub calls: ToolCallDisplay,
}

/// How a client is shown the tool calls of an answer, which were made here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ToolCallDisplay {
    /// As `function_call` items, without their results. Some clients take these for calls that they have to make.
    #[default]
    Functions,
    /// As `mcp_call` items: calls that were made elsewhere, with their results.
    Hosted,
    /// Not at all.
    Hidden,
}

/// The id of the response that an answer is.
pub fn id_of(message: &MessageId) -> String {
    format!("resp_{message}")
}

/// The answer that a response is; `None` for an id that is not of ours.
pub fn message_of(response_id: &str) -> Option<MessageId> {
    MessageId::parse(response_id.strip_prefix("resp_")?).ok()
}
