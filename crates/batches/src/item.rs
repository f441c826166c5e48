//! A stored message, as this crate sees it.

use model::{BatchType, Message, MessageId, Metadata, Position, Role, Timestamp};
use serde_json::Value;

/// One message of a thread, with its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// Its place in the thread.
    pub position: Position,
    /// Its id.
    pub message_id: MessageId,
    /// The position of the batch's first message.
    pub batch_id: Position,
    /// Its number in the thread, which never changes; `None` where it has none.
    pub number: Option<u64>,
    /// Its number in the batch, from 0.
    pub sequence_num: i32,
    /// What the batch began with.
    pub batch_type: BatchType,
    /// Who speaks.
    pub role: Role,
    /// Its text; of a tool message, the result.
    pub content: String,
    /// `[{"id", "name", "arguments", "result"?}]`; a bare stream has the results beside the calls.
    pub tool_calls: Option<Value>,
    /// Of a tool message: the call that it answers.
    pub tool_call_id: Option<String>,
    /// The final chunk's metadata.
    pub metadata: Metadata,
    /// What the producer said that it used.
    pub token_count: Option<u64>,
    /// Of a turn's input: when it was accepted. Of any other message: when the last of it came.
    pub created_at: Timestamp,
    /// Of a turn's input: when the run began that answered it. Of any other message: when the first of it came. `None`: not known.
    pub started_at: Option<Timestamp>,
}

/// A call that a message makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemCall<'a> {
    /// Unique in its message, if the model kept to the rules.
    pub id: &'a str,
    /// The tool.
    pub name: &'a str,
    /// As the model wrote them: mostly a JSON object.
    pub arguments: &'a str,
    /// The result, where it is stored beside the call.
    pub result: Option<&'a str>,
}

impl Item {
    /// A message that was committed at about `committed_at`, as it is stored but for its number in the thread, which the store gives it. `None`
    /// where the store decides more than that: the place of what goes on with a batch.
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

    /// The calls that it makes, in the order of the model; only assistant messages call.
    pub fn calls(&self) -> Vec<ItemCall<'_>> {
        ItemCall::all_of(self.tool_calls.as_ref().filter(|_| self.role == Role::Assistant))
    }

    /// Whether it makes calls whose results are not beside them.
    pub fn has_open_calls(&self) -> bool {
        self.calls().iter().any(|call| call.result.is_none())
    }

    /// Whether the system made it up, so that people do not see it. Only the boolean `true` says so.
    pub fn is_synthetic(&self) -> bool {
        self.metadata.is_synthetic()
    }

    /// Whether it is a note: a text beside the turns, which is a batch of its own.
    pub fn is_note(&self) -> bool {
        let has_place = self.batch_type == BatchType::SystemTrigger && self.sequence_num == 0;
        has_place && matches!(self.role, Role::User | Role::System) && self.metadata.is_note()
    }

    /// Whether the metadata has the boolean `true` under this key.
    pub(crate) fn is_marked(&self, key: &str) -> bool {
        self.metadata.get(key) == Some(&Value::Bool(true))
    }

    /// The position that the metadata has under this key, a decimal string as positions are in JSON.
    pub(crate) fn position_at(&self, key: &str) -> Option<Position> {
        let number = self.metadata.get(key)?.as_str()?.parse().ok().filter(|number: &i64| *number > 0)?;
        Some(Position::from_stored(number))
    }

    /// Bytes that it takes, about.
    pub fn bytes(&self) -> u64 {
        let calls = self.tool_calls.as_ref().map_or(0, |calls| calls.to_string().len());
        (self.content.len() + calls + self.metadata.size() + 128) as u64
    }
}

impl<'a> ItemCall<'a> {
    /// Those that are stored with a message, in the order of the model.
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
