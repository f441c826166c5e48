//! Random histories of a thread.

use batches::Item;
use model::{BatchType, MessageId, Metadata, Position, Role, Timestamp};
use proptest::prelude::*;
use serde_json::{Value, json};

/// An event in a thread. The numbers select existing items.
#[derive(Debug, Clone)]
pub(crate) enum Happens {
    /// A batch begins, sometimes within another batch.
    Begins { kind: u8, parent: Option<u8>, text: u8 },
    /// The model calls several tools at once, with ids that may have been used before.
    Calls { batch: u8, ids: Vec<u8>, text: u8, arguments: u8 },
    /// A tool answers an open call of the batch, or a call that the batch does not have.
    Answers { batch: u8, call: u8, text: u8 },
    /// The model writes text.
    Says { batch: u8, text: u8, marker: bool },
    /// The batch continues.
    Beats { batch: u8, text: u8 },
    /// A message is read twice.
    Repeats { message: u8 },
    /// A message is lost.
    Loses { message: u8 },
    /// A message is added with the number of another one.
    Doubles { message: u8 },
}

pub(crate) fn happens() -> impl Strategy<Value = Happens> {
    use Happens as H;
    prop_oneof![
        4 => (0..8_u8, proptest::option::weighted(0.2, any::<u8>()), any::<u8>())
            .prop_map(|(kind, parent, text)| H::Begins { kind, parent, text }),
        6 => (any::<u8>(), proptest::collection::vec(0..6_u8, 1..4), any::<u8>(), any::<u8>())
            .prop_map(|(batch, ids, text, arguments)| H::Calls { batch, ids, text, arguments }),
        8 => (any::<u8>(), any::<u8>(), any::<u8>()).prop_map(|(batch, call, text)| H::Answers { batch, call, text }),
        6 => (any::<u8>(), any::<u8>(), proptest::bool::weighted(0.1))
            .prop_map(|(batch, text, marker)| H::Says { batch, text, marker }),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(batch, text)| H::Beats { batch, text }),
        1 => any::<u8>().prop_map(|message| H::Repeats { message }),
        1 => any::<u8>().prop_map(|message| H::Loses { message }),
        1 => any::<u8>().prop_map(|message| H::Doubles { message }),
    ]
}

/// A call id: plain, too long, with punctuation, or empty.
fn call_id(number: u8) -> String {
    match number {
        0 => "a".to_owned(),
        1 => "a_2".to_owned(),
        2 => "functions.f:0".to_owned(),
        3 => "x".repeat(90),
        4 => String::new(),
        _ => "é|".to_owned(),
    }
}

/// A text that occurs only once, sometimes blank.
fn text(number: u8, position: i64) -> String {
    match number % 8 {
        0 => String::new(),
        1 => " \n\t".to_owned(),
        _ => format!("<{position}>{}", "word ".repeat(usize::from(number) / 4)),
    }
}

/// A thread with the messages that events have added.
#[derive(Debug, Default)]
pub(crate) struct Thread {
    pub(crate) items: Vec<Item>,
    batches: Vec<(Position, BatchType, i32)>,
    next: i64,
}

impl Thread {
    pub(crate) fn happen(&mut self, what: &Happens) {
        match what {
            Happens::Begins { kind, parent, text } => self.begin(*kind, *parent, *text),
            Happens::Calls { batch, ids, text, arguments } => self.call(*batch, ids, *text, *arguments),
            Happens::Answers { batch, call, text } => self.answer(*batch, *call, *text),
            Happens::Says { batch, text, marker } => {
                let metadata = if *marker { json!({"continuation": true}) } else { json!({}) };
                self.add(*batch, Role::Assistant, *text, metadata);
            }
            Happens::Beats { batch, text } => {
                self.add(*batch, Role::User, *text, json!({"continues": "1"}));
            }
            Happens::Repeats { message } => {
                let again = self.at(*message).map(|index| self.items[index].clone());
                self.items.extend(again);
            }
            Happens::Loses { message } => {
                if let Some(index) = self.at(*message) {
                    self.items.remove(index);
                }
            }
            Happens::Doubles { message } => {
                let again = self.at(*message).map(|index| self.items[index].clone());
                let position = self.position();
                self.items.extend(again.map(|item| Item { position, ..item }));
            }
        }
    }

    /// The batch that this number selects.
    pub(crate) fn batch(&self, number: u8) -> Option<Position> {
        let index = usize::from(number).checked_rem(self.batches.len())?;
        Some(self.batches[index].0)
    }

    /// Sets the position above which later messages are placed.
    pub(crate) fn skip_to(&mut self, position: i64) {
        self.next = position;
    }

    fn at(&self, number: u8) -> Option<usize> {
        usize::from(number).checked_rem(self.items.len())
    }

    fn position(&mut self) -> Position {
        self.next += 1;
        Position::from_stored(self.next)
    }

    fn begin(&mut self, kind: u8, parent: Option<u8>, text: u8) {
        let batch_type = match kind {
            0 => BatchType::SystemTrigger,
            1 | 2 => BatchType::AgentToAgent,
            _ => BatchType::UserRequest,
        };
        let role = match kind {
            0 => Role::Assistant,
            3 => Role::System,
            _ => Role::User,
        };
        let parent = parent.and_then(|parent| self.batch(parent));
        let metadata = parent.map_or(json!({}), |parent| json!({"parent_batch": parent}));
        let id = Position::from_stored(self.next + 1);
        self.batches.push((id, batch_type, 0));
        let number = (self.batches.len() - 1) as u8;
        self.add(number, role, text, metadata);
    }

    fn call(&mut self, batch: u8, ids: &[u8], text: u8, arguments: u8) {
        let arguments = ["{}", "{\"x\": [1, 2]}", "", "[1]", "{broken", "null"][usize::from(arguments % 6)];
        let name = ["f", "ns.tool", "", "g-h_1"][usize::from(text % 4)];
        let calls = ids.iter().map(|id| {
            let mut call = json!({"id": call_id(*id), "name": name, "arguments": arguments});
            if text.is_multiple_of(16) {
                call["result"] = json!("beside");
            }
            call
        });
        let calls: Value = calls.collect();
        if let Some(item) = self.add(batch, Role::Assistant, text, json!({})) {
            item.tool_calls = Some(calls);
        }
    }

    fn answer(&mut self, batch: u8, call: u8, text: u8) {
        let Some(id) = self.batch(batch) else { return };
        let called = self.items.iter().filter(|item| item.batch_id == id).flat_map(Item::calls);
        let ids: Vec<String> = called.map(|call| call.id.to_owned()).collect();
        let chosen =
            usize::from(call).checked_rem(ids.len() * 8 / 7 + 1).and_then(|index| ids.get(index).cloned());
        if let Some(item) = self.add(batch, Role::Tool, text, json!({})) {
            item.tool_call_id = Some(chosen.unwrap_or_else(|| "never-called".to_owned()));
        }
    }

    fn add(&mut self, batch: u8, role: Role, words: u8, metadata: Value) -> Option<&mut Item> {
        let index = usize::from(batch).checked_rem(self.batches.len())?;
        let position = self.position();
        let (batch_id, batch_type, number) = &mut self.batches[index];
        let sequence_num = *number;
        *number += 1;
        self.items.push(Item {
            position,
            message_id: MessageId::parse(&format!("m{position}")).unwrap(),
            batch_id: *batch_id,
            number: None,
            sequence_num,
            batch_type: *batch_type,
            role,
            content: text(words, position.get()),
            tool_calls: None,
            tool_call_id: None,
            metadata: Metadata::new(metadata.as_object().unwrap().clone()).unwrap(),
            token_count: None,
            created_at: Timestamp(position.get() * 1_000),
            started_at: None,
        });
        self.items.last_mut()
    }
}
