//! A batch is its messages: grouping them, and whether they make a whole.

mod header;
mod state;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use model::{BatchType, Position, TaskKind, Timestamp};

pub use header::BatchHeader;
pub use state::{BatchState, IncompleteReason};

use crate::turn::{MISSING, STOPPED};
use crate::{AnswerLocation, Item, Pairing, SharedItem};

/// The messages of one batch, as many of them as there are, in the order of their numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    id: Position,
    items: Vec<SharedItem>,
}

/// Groups messages by their batch, not by their neighbourhood: A1 B1 A2 B2 are two batches. Batches come in the order of
/// their first messages, messages in the order of their numbers; a message that was given twice counts once.
pub fn group(items: impl IntoIterator<Item = Item>) -> Vec<Batch> {
    let mut batches: BTreeMap<Position, Vec<SharedItem>> = BTreeMap::new();
    for item in items {
        batches.entry(item.batch_id).or_default().push(item.into());
    }
    batches.into_iter().map(|(id, items)| Batch::new(id, items)).collect()
}

impl Batch {
    /// The batch of that id with these messages, in any order.
    pub(crate) fn new(id: Position, mut items: Vec<SharedItem>) -> Self {
        items.sort_by_key(|item| (item.sequence_num, item.position));
        items.dedup_by_key(|item| item.position);
        Self { id, items }
    }

    /// The position of its first message.
    pub fn id(&self) -> Position {
        self.id
    }

    /// Its messages, by number.
    pub fn items(&self) -> &[SharedItem] {
        &self.items
    }

    /// What it began with.
    pub fn batch_type(&self) -> Option<BatchType> {
        self.items.first().map(|item| item.batch_type)
    }

    /// The batch around it, which is complete or not on its own: `parent_batch` of the metadata, a decimal string.
    pub fn parent(&self) -> Option<Position> {
        self.items
            .iter()
            .find_map(|item| item.position_at("parent_batch"))
            .filter(|parent| *parent != self.id)
    }

    /// The batch whose place it takes: `supersedes` of the metadata, a decimal string.
    pub fn supersedes(&self) -> Option<Position> {
        self.items.iter().find_map(|item| item.position_at("supersedes")).filter(|other| *other != self.id)
    }

    /// Whether it is complete, and if not, why.
    pub fn state(&self) -> BatchState {
        state::state(&self.items)
    }

    /// Whether it is the fleet's own work: a summary that was written for another thread, `task_kind` of the input's metadata.
    pub fn is_maintenance(&self) -> bool {
        let kind = self.items.first().and_then(|item| item.metadata.get("task_kind")?.as_str());
        kind == Some(TaskKind::Compaction.name())
    }

    /// How long it may be without progress, if it says so itself: `timeout_ms` of the metadata.
    fn timeout_ms(&self) -> Option<i64> {
        let said = self.items.iter().find_map(|item| item.metadata.get("timeout_ms"))?.as_i64();
        said.filter(|timeout| *timeout > 0)
    }

    /// When the last of its messages was written.
    pub fn last_at(&self) -> Timestamp {
        self.items.iter().map(|item| item.created_at).max().unwrap_or_default()
    }

    /// Since when it counts as abandoned (kept, but no longer waited for): it is incomplete, and has made no progress for its own timeout,
    /// or for `timeout_ms` where it has none. A hole is no sign of that: nothing that comes could fill it.
    pub fn abandoned_since(&self, now: Timestamp, timeout_ms: i64) -> Option<Timestamp> {
        if matches!(
            self.state(),
            BatchState::Complete | BatchState::Incomplete(IncompleteReason::Hole { .. })
        ) {
            return None;
        }
        let since = self.last_at().plus_ms(self.timeout_ms().unwrap_or(timeout_ms));
        (since <= now).then_some(since)
    }

    /// Its calls and their results, for people.
    pub fn exchanges(&self) -> Vec<Exchange<'_>> {
        let pairing = Pairing::of(&self.items);
        let mut exchanges = Vec::new();
        for (index, item) in self.items.iter().enumerate() {
            for (call, answer) in item.calls().into_iter().zip(pairing.answers(index)) {
                let answering = match answer {
                    AnswerLocation::Message(index) => self.items.get(*index),
                    AnswerLocation::Beside | AnswerLocation::Open => None,
                };
                let is_real =
                    answering.is_none_or(|item| !item.is_marked(MISSING) && !item.is_marked(STOPPED));
                exchanges.push(Exchange {
                    id: call.id.to_owned(),
                    name: call.name.to_owned(),
                    call_at: item.position,
                    result: answering.map(|item| (item.position, item.content.as_str())),
                    is_answered: *answer != AnswerLocation::Open && is_real,
                });
            }
        }
        exchanges
    }
}

/// A call of a batch and what answers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchange<'a> {
    /// The call's id.
    pub id: String,
    /// The tool.
    pub name: String,
    /// The message that calls.
    pub call_at: Position,
    /// The message that answers, and what it says.
    pub result: Option<(Position, &'a str)>,
    /// Whether there is a result, in a message or beside the call. What closes the call of a turn that was stopped is none.
    pub is_answered: bool,
}
