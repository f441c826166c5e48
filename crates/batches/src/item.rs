//! A stored message, as this crate uses it.

use model::{BatchType, Message, MessageId, Metadata, Position, Role, Timestamp};
use serde_json::Value;

/// A message of a thread, with its position, batch and number.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    pub position: Position,
    pub message_id: MessageId,
    /// The position of the batch's first message.
    pub batch_id: Position,
    /// Number in the thread, which never changes; `None`: the message has no number.
    pub number: Option<u64>,
    /// Number in the batch, from 0.
    pub sequence_num: i32,
    /// The kind of input that began the batch.
    pub batch_type: BatchType,
    pub role: Role,
    /// The text; for a tool message, the result.
    pub content: String,
    /// The calls, as `[{"id", "name", "arguments", "result"?}]`. Only a message without a turn has
    /// results in them.
    pub tool_calls: Option<Value>,
    /// For a tool message: the id of the answered call.
    pub tool_call_id: Option<String>,
    /// The final chunk's metadata.
    pub metadata: Metadata,
    /// Tokens used, as the producer reported.
    pub token_count: Option<u64>,
    /// For a turn's input: when it was accepted. For other messages: when the last chunk arrived.
    pub created_at: Timestamp,
    /// For a turn's input: when the run that answered it began. For other messages: when the first
    /// chunk arrived. `None`: unknown.
    pub started_at: Option<Timestamp>,
}

/// A call that a message makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemCall<'a> {
    /// The id, which is unique in its message if the model followed the rules.
    pub id: &'a str,
    /// Name of the tool.
    pub name: &'a str,
    /// The arguments as the model wrote them, usually a JSON object.
    pub arguments: &'a str,
    /// The result, if it is stored in the call.
    pub result: Option<&'a str>,
}

impl Item {
    /// The stored form of a message committed at about `committed_at`, without its thread number,
    /// which the store assigns. Returns `None` if the store decides more than that, which is the
    /// case for a message that continues a batch.
    pub fn written(message: Message, committed_at: Timestamp) -> Option<Self> {
        let placement = message.placement;
        (placement.batch_type != BatchType::Continuation).then(|| Self {
            position: placement.position,
            message_id: message.key.message,
            batch_id: placement.batch_id,
            number: None,
            sequence_num: placement.sequence_num,
            batch_type: placement.batch_type,
            role: message.role,
            content: message.content,
            tool_calls: message.tool_calls,
            tool_call_id: message.tool_call_id,
            metadata: message.metadata,
            token_count: message.token_count.and_then(|count| count.try_into().ok()),
            created_at: message.times.created_at.unwrap_or(committed_at),
            started_at: message.times.started_at,
        })
    }

    /// The calls in the model's order; only assistant messages have calls.
    pub fn calls(&self) -> Vec<ItemCall<'_>> {
        ItemCall::all_of(self.tool_calls.as_ref().filter(|_| self.role == Role::Assistant))
    }

    /// True if the message has calls whose results are not stored in them.
    pub fn has_open_calls(&self) -> bool {
        self.calls().iter().any(|call| call.result.is_none())
    }

    /// True if the system created the message, so that people do not see it. Only the boolean
    /// `true` counts.
    pub fn is_synthetic(&self) -> bool {
        self.metadata.is_synthetic()
    }

    /// True if the message is a note: a text that belongs to no turn, in a batch of its own.
    pub fn is_note(&self) -> bool {
        let has_place = self.batch_type == BatchType::SystemTrigger && self.sequence_num == 0;
        has_place && matches!(self.role, Role::User | Role::System) && self.metadata.is_note()
    }

    /// True if the metadata has the boolean `true` under this key.
    pub(crate) fn is_marked(&self, key: &str) -> bool {
        self.metadata.get(key) == Some(&Value::Bool(true))
    }

    /// The position in the metadata under this key. It is a decimal string, like all positions in
    /// JSON.
    pub(crate) fn position_at(&self, key: &str) -> Option<Position> {
        let number = self.metadata.get(key)?.as_str()?.parse().ok().filter(|number: &i64| *number > 0)?;
        Some(Position::from_stored(number))
    }

    /// Approximate size in bytes.
    pub fn bytes(&self) -> u64 {
        let calls = self.tool_calls.as_ref().map_or(0, |calls| calls.to_string().len());
        (self.content.len() + calls + self.metadata.size() + 128) as u64
    }
}

impl<'a> ItemCall<'a> {
    /// The stored calls of a message, in the model's order.
    pub(crate) fn all_of(stored: Option<&'a Value>) -> Vec<Self> {
        stored.and_then(Value::as_array).into_iter().flatten().map(ItemCall::of).collect()
    }

    fn of(stored: &'a Value) -> Self {
        let text = |key: &str| stored.get(key).and_then(Value::as_str);
        Self {
            id: text("id").unwrap_or_default(),
            name: text("name").unwrap_or_default(),
            arguments: text("arguments").unwrap_or_default(),
            result: text("result"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::testing::{item, with_metadata};

    #[test]
    fn only_the_boolean_true_is_synthetic() {
        let synthetic = |value| with_metadata(item("1.0u"), json!({ "synthetic": value })).is_synthetic();
        assert!(synthetic(json!(true)));
        for real in [json!("true"), json!(1), json!(null), json!(false), json!([true])] {
            assert!(!synthetic(real.clone()), "{real}");
        }
        assert!(!item("1.0u").is_synthetic());
    }

    #[test]
    fn calls_are_read_as_the_folds_write_them() {
        let mut message = item("1.1A");
        message.tool_calls =
            Some(json!([{"id": "a", "name": "f", "arguments": "{}"}, {"id": "b", "result": "B"}, 7]));
        let calls = message.calls();
        assert_eq!((calls[0].id, calls[0].name, calls[0].arguments, calls[0].result), ("a", "f", "{}", None));
        assert_eq!((calls[1].id, calls[1].name, calls[1].result), ("b", "", Some("B")));
        assert_eq!((calls[2].id, calls.len()), ("", 3));
        message.role = model::Role::User;
        assert_eq!(message.calls(), []);
    }
}
