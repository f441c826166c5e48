//! What compaction and retention need to know of a batch, without its messages.

use model::{BatchType, Position, Timestamp};
use serde_json::Value;

use super::{Batch, BatchState};
use crate::tokens::{self, TokenCounter};

/// A batch in numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchHeader {
    /// The position of its first message.
    pub id: Position,
    /// The position of its last message: a batch may go on after others.
    pub last: Position,
    /// What it began with.
    pub batch_type: BatchType,
    /// Whether it is complete.
    pub is_complete: bool,
    /// How many messages it has.
    pub messages: u64,
    /// What it takes in a context.
    pub tokens: u64,
    /// What it takes in storage, about.
    pub bytes: u64,
    /// When its last message was written.
    pub last_at: Timestamp,
    /// Never compacted, because a message of it is pinned (`pinned: true` in the metadata).
    pub is_pinned: bool,
    /// From 0 to 1.
    pub importance: f64,
}

impl BatchHeader {
    /// The numbers of a batch.
    pub fn of(batch: &Batch, counter: &dyn TokenCounter) -> Self {
        let batch_type = batch.batch_type().unwrap_or(BatchType::SystemTrigger);
        Self {
            id: batch.id(),
            last: batch.items().iter().map(|item| item.position).max().unwrap_or(batch.id()),
            batch_type,
            is_complete: batch.state() == BatchState::Complete,
            messages: batch.items().len() as u64,
            tokens: tokens::of_batch(batch, counter),
            bytes: batch.items().iter().map(|item| item.bytes()).sum(),
            last_at: batch.last_at(),
            is_pinned: batch.items().iter().any(|item| item.is_marked("pinned")),
            importance: importance(batch, batch_type),
        }
    }
}

/// The highest that a message claims; else by what the batch is: what a person asked for counts most, what the system
/// made up least.
fn importance(batch: &Batch, batch_type: BatchType) -> f64 {
    let claim = |value: &Value| value.as_f64().filter(|claim| (0.0..=1.0).contains(claim));
    let claims = batch.items().iter().filter_map(|item| claim(item.metadata.get("importance")?));
    let claimed =
        claims.fold(None, |most: Option<f64>, claim| Some(most.map_or(claim, |most| most.max(claim))));
    let by_kind = match batch_type {
        _ if batch.items().first().is_some_and(|item| item.is_synthetic()) => 0.1,
        BatchType::UserRequest => 0.6,
        BatchType::AgentToAgent => 0.4,
        BatchType::Continuation => 0.3,
        BatchType::SystemTrigger => 0.2,
    };
    claimed.unwrap_or(by_kind)
}
