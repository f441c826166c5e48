//! Messages that were committed and are published afterwards.

use model::Position;

use crate::limits::MOST_UNSENT;
use crate::types::OutboxBatch;

#[derive(Debug)]
pub(crate) struct Outbox {
    /// Batches left by the previous owner, until they are returned.
    pub(crate) to_send: Vec<OutboxBatch>,
    /// Number of unpublished batches.
    pub(crate) unsent: usize,
    /// Published batches that still have rows.
    pub(crate) sent: Vec<Position>,
}

impl Outbox {
    /// True if the maximum number of batches is unpublished: no turn starts and no timer fires.
    pub(crate) fn is_full(&self) -> bool {
        self.unsent >= MOST_UNSENT
    }

    /// Notes that a batch is published.
    pub(crate) fn sent(&mut self, batch: Position) {
        self.unsent -= 1;
        self.sent.push(batch);
    }
}
