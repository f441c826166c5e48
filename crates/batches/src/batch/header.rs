//! The data of a batch that compaction and retention need, without its messages.

use model::{BatchType, Position, Timestamp};
use serde_json::Value;

use super::{Batch, BatchState};
use crate::tokens::{self, TokenCounter};

/// Summary of a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchHeader {
    /// Position of the first message.
    pub id: Position,
    /// Position of the last message. Other batches may lie in between.
    pub last: Position,
    /// The kind of input that began the batch.
    pub batch_type: BatchType,
    pub is_complete: bool,
    /// Number of messages.
    pub messages: u64,
    /// Tokens in a context.
    pub tokens: u64,
    /// Approximate bytes in storage.
    pub bytes: u64,
    /// Time of the newest message.
    pub last_at: Timestamp,
    /// The batch is never compacted because it has a pinned message (`pinned: true` in the
    /// metadata).
    pub is_pinned: bool,
    /// Importance from 0 to 1.
    pub importance: f64,
}

impl BatchHeader {
    /// The summary of this batch.
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

/// The highest importance in the messages' metadata. If there is none, the default of the batch
/// type: highest for inputs of people, lowest for synthetic ones.
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
