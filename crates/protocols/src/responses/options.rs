//! The options of a response, and its id.

use model::{MessageId, Metadata, ThreadId, Timestamp};

/// The fields of a response that do not come from its answer.
#[derive(Debug, Clone)]
pub struct ResponseOptions {
    /// Where the turn takes place: the `conversation` of the response.
    pub thread: ThreadId,
    /// The answer.
    pub message: MessageId,
    /// The model, as the client named it.
    pub model: String,
    /// When the turn was opened.
    pub created_at: Timestamp,
    /// Whether the client did not want to wait for it: it is `queued` until the first event.
    pub background: bool,
    /// What the client named as the response before.
    pub previous_response_id: Option<String>,
    /// The request's metadata.
    pub metadata: Metadata,
    /// What else the request asked for, by its fields: [`super::ResponseRequest::shown`].
    pub shown: Metadata,
}

/// The id of the response that an answer is.
pub fn id_of(message: &MessageId) -> String {
    format!("resp_{message}")
}

/// The answer that a response is; `None` for an id that is not of ours.
pub fn message_of(response_id: &str) -> Option<MessageId> {
    MessageId::parse(response_id.strip_prefix("resp_")?).ok()
}
