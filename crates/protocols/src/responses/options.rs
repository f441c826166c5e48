//! The options of a response, and its id.

use model::{MessageId, Metadata, ThreadId, Timestamp, TurnId};

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

/// What the ids of items of the output begin with.
pub(super) const MESSAGE: &str = "msg";
pub(super) const REASONING: &str = "rs";
pub(super) const CALL: &str = "mcp";

/// The id of an item: the part of an answer that it shows.
pub(super) fn item_id(prefix: &str, message: &MessageId, part: u32) -> String {
    format!("{prefix}_{message}-p{part}")
}

/// The turn whose answer has an item; `None` for an id that is not of ours.
pub(super) fn turn_of_item(id: &str) -> Option<TurnId> {
    let (prefix, rest) = id.split_once('_')?;
    let (message, part) = rest.rsplit_once("-p").filter(|_| [MESSAGE, REASONING, CALL].contains(&prefix))?;
    part.parse::<u32>().ok()?;
    TurnId::of_answer(&MessageId::parse(message).ok()?).map(|(turn, _)| turn)
}
