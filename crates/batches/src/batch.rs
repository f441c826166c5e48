//! Groups messages into batches and decides whether a batch is complete.

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

/// The known messages of one batch, ordered by number.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    id: Position,
    items: Vec<SharedItem>,
}

/// Groups messages by batch id, not by adjacency: A1 B1 A2 B2 are two batches. Batches are ordered
/// by their first messages, messages by their numbers. A message that occurs twice counts once.
pub fn group(items: impl IntoIterator<Item = Item>) -> Vec<Batch> {
    let mut batches: BTreeMap<Position, Vec<SharedItem>> = BTreeMap::new();
    for item in items {
        batches.entry(item.batch_id).or_default().push(item.into());
    }
    batches.into_iter().map(|(id, items)| Batch::new(id, items)).collect()
}

impl Batch {
    /// The batch with this id and these messages, in any order.
    pub(crate) fn new(id: Position, mut items: Vec<SharedItem>) -> Self {
        items.sort_by_key(|item| (item.sequence_num, item.position));
        items.dedup_by_key(|item| item.position);
        Self { id, items }
    }

    /// The position of the first message.
    pub fn id(&self) -> Position {
        self.id
    }

    /// The messages, ordered by number.
    pub fn items(&self) -> &[SharedItem] {
        &self.items
    }

    /// The kind of input that began the batch; `None` without messages.
    pub fn batch_type(&self) -> Option<BatchType> {
        self.items.first().map(|item| item.batch_type)
    }

    /// The batch that contains this one (`parent_batch` of the metadata, a decimal string). Both
    /// are judged separately.
    pub fn parent(&self) -> Option<Position> {
        self.items
            .iter()
            .find_map(|item| item.position_at("parent_batch"))
            .filter(|parent| *parent != self.id)
    }

    /// The batch that this batch replaces: `supersedes` of the metadata, a decimal string.
    pub fn supersedes(&self) -> Option<Position> {
        self.items.iter().find_map(|item| item.position_at("supersedes")).filter(|other| *other != self.id)
    }

    /// The state of the batch: complete, or why it is incomplete.
    pub fn state(&self) -> BatchState {
        state::state(&self.items)
    }

    /// True if the fleet itself needs the batch: the input's `task_kind` is `compaction`, so the
    /// batch writes a summary for another thread.
    pub fn is_maintenance(&self) -> bool {
        let kind = self.items.first().and_then(|item| item.metadata.get("task_kind")?.as_str());
        kind == Some(TaskKind::Compaction.name())
    }

    /// The batch's own limit on time without progress: `timeout_ms` of the metadata.
    fn timeout_ms(&self) -> Option<i64> {
        let said = self.items.iter().find_map(|item| item.metadata.get("timeout_ms"))?.as_i64();
        said.filter(|timeout| *timeout > 0)
    }

    /// Time of the newest message.
    pub fn last_at(&self) -> Timestamp {
        self.items.iter().map(|item| item.created_at).max().unwrap_or_default()
    }

    /// The time since which the batch is abandoned, so that it is kept but no longer awaited. A
    /// batch is abandoned if it is incomplete and has made no progress for its own timeout, or else
    /// for `timeout_ms`. A batch with a hole is never abandoned, because a later message cannot
    /// fill the hole.
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

    /// The calls and their results, for people.
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

/// A call of a batch and its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchange<'a> {
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// Position of the message with the call.
    pub call_at: Position,
    /// Position of the message with the result, and the result.
    pub result: Option<(Position, &'a str)>,
    /// True if there is a result, in a message or next to the call. The entry that closes a call of
    /// a stopped turn is not a result.
    pub is_answered: bool,
}
