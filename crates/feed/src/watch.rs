//! What a gateway learns of the frames that owners have sent, so that it notices when the last one of a thread was lost.

use std::collections::HashMap;

use model::{PartitionId, ThreadId};
use wire::ask::{Sent, SentAfter};

/// Owners are asked now and then of which threads they have sent frames. What they name has had time to arrive by the next time.
#[derive(Debug, Default)]
pub struct Watch {
    known: HashMap<PartitionId, Sent>,
}

/// What follows from an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Noticed {
    /// Frames of these threads have been sent up to these numbers, under this epoch: whoever has not seen them asks.
    Sent(u64, Vec<(ThreadId, u64)>),
    /// Another owner, or more than can be named: everybody asks.
    Doubt,
}

impl Watch {
    /// What the owner of a partition is asked.
    pub fn question(&self, partition: PartitionId) -> SentAfter {
        let known = self.known.get(&partition);
        known.map(|sent| SentAfter { epoch: sent.epoch, number: sent.number }).unwrap_or_default()
    }

    /// Its answer.
    pub fn on_sent(&mut self, partition: PartitionId, sent: Sent) -> Noticed {
        let are_all = sent.are_all;
        match self.known.insert(partition, sent.clone()) {
            Some(earlier) if earlier.epoch == sent.epoch && are_all => {
                Noticed::Sent(earlier.epoch, earlier.threads)
            }
            // Feeds ask by themselves when they begin.
            None if are_all => Noticed::Sent(sent.epoch, Vec::new()),
            Some(_) | None => Noticed::Doubt,
        }
    }
}
