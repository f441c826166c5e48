//! Scripts for this crate's tests.

use model::{BatchType, MessageId, Metadata, Position, Role, Timestamp};
use serde_json::{Value, json};

use crate::{Batch, Item, group};

/// Milliseconds per position in the times of a script.
pub(crate) const STEP_MS: i64 = 1_000;

/// `3.1A:c,d` is message 1 of batch 3, an assistant message with the calls c and d. Roles: `u`
/// user, `a` assistant, `t:c` result of call c, `s` system. `1.1A@22:c` is at position 22. The
/// default position is batch * 10 + number.
pub(crate) fn item(word: &str) -> Item {
    let (head, calls) = word.split_once(':').unwrap_or((word, ""));
    let (head, position) = match head.split_once('@') {
        Some((head, position)) => (head, Some(position.parse().unwrap())),
        None => (head, None),
    };
    let (place, kind) = head.split_at(head.len() - 1);
    let (batch, number) = place.split_once('.').unwrap();
    let (batch, number): (i64, i32) = (batch.parse().unwrap(), number.parse().unwrap());
    let role = match kind {
        "u" => Role::User,
        "t" => Role::Tool,
        "s" => Role::System,
        _ => Role::Assistant,
    };
    let position = position.unwrap_or(batch * 10 + i64::from(number));
    let call = |id: &str| json!({"id": id, "name": format!("tool_{id}"), "arguments": "{}"});
    Item {
        position: Position::from_stored(position),
        message_id: MessageId::parse(&format!("m{position}")).unwrap(),
        batch_id: Position::from_stored(batch * 10),
        number: None,
        sequence_num: number,
        batch_type: BatchType::UserRequest,
        role,
        content: if kind == "A" { String::new() } else { format!("text {batch}.{number}") },
        tool_calls: (kind == "A").then(|| calls.split(',').map(call).collect()),
        tool_call_id: (kind == "t").then(|| calls.to_owned()),
        metadata: Metadata::EMPTY,
        token_count: None,
        created_at: Timestamp(position * STEP_MS),
        started_at: None,
    }
}

pub(crate) fn items(script: &str) -> Vec<Item> {
    script.split_whitespace().map(item).collect()
}

/// The only batch of a script.
pub(crate) fn batch(script: &str) -> Batch {
    let mut batches = group(items(script));
    assert_eq!(batches.len(), 1, "{script}");
    batches.remove(0)
}

pub(crate) fn with_metadata(mut item: Item, metadata: Value) -> Item {
    item.metadata = Metadata::new(metadata.as_object().unwrap().clone()).unwrap();
    item
}

pub(crate) fn position(number: i64) -> Position {
    Position::from_stored(number)
}
