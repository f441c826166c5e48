//! The options of a response, and its id.

use model::{MessageId, Metadata, ThreadId, Timestamp, TurnId};

/// The fields of a response that do not come from its answer.
#[derive(Debug, Clone)]
pub struct ResponseOptions {
    /// The thread of the turn: the `conversation` of the response.
    pub thread: ThreadId,
    /// Id of the answer.
    pub message: MessageId,
    /// The client's name of the model.
    pub model: String,
    /// When the turn was opened.
    pub created_at: Timestamp,
    /// Whether the client does not wait for the answer: the response is `queued` until the first
    /// event.
    pub background: bool,
    /// The client's reference to the previous response.
    pub previous_response_id: Option<String>,
    pub metadata: Metadata,
    /// Further request fields to repeat: [`super::ResponseRequest::shown`].
    pub shown: Metadata,
}

/// The response id of an answer.
pub fn id_of(message: &MessageId) -> String {
    format!("resp_{message}")
}

/// The answer of a response; `None` for a foreign id.
pub fn message_of(response_id: &str) -> Option<MessageId> {
    MessageId::parse(response_id.strip_prefix("resp_")?).ok()
}

/// Prefixes of item ids.
pub(super) const MESSAGE: &str = "msg";
pub(super) const REASONING: &str = "rs";
pub(super) const CALL: &str = "mcp";

/// The id of the item that shows this part of the answer.
pub(super) fn item_id(prefix: &str, message: &MessageId, part: u32) -> String {
    format!("{prefix}_{message}-p{part}")
}

/// The answer that has the item; `None` for a foreign id.
fn answer_of_item(id: &str) -> Option<MessageId> {
    let (prefix, rest) = id.split_once('_')?;
    let (message, part) = rest.rsplit_once("-p").filter(|_| [MESSAGE, REASONING, CALL].contains(&prefix))?;
    part.parse::<u32>().ok()?;
    MessageId::parse(message).ok().filter(|message| TurnId::of_answer(message).is_some())
}

/// The turn whose answer has the item; `None` for a foreign id.
pub(super) fn turn_of_item(id: &str) -> Option<TurnId> {
    TurnId::of_answer(&answer_of_item(id)?).map(|(turn, _)| turn)
}

/// The id of the response whose answer has the item; `None` for a foreign id.
pub(super) fn response_of_item(id: &str) -> Option<String> {
    answer_of_item(id).map(|message| id_of(&message))
}
