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
}

/// The id of the response that an answer is.
pub fn id_of(message: &MessageId) -> String {
    format!("resp_{message}")
}

/// The answer that a response is; `None` for an id that is not of ours.
pub fn message_of(response_id: &str) -> Option<MessageId> {
    MessageId::parse(response_id.strip_prefix("resp_")?).ok()
}
