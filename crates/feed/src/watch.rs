//! What a gateway learns of the frames that owners have sent, so that it notices when the last one of a thread was lost.

use std::collections::HashMap;

use model::{PartitionId, ThreadId};
use wire::query::{ChangedThreads, ChangedThreadsQuery};

/// Owners are asked now and then of which threads they have sent frames. What they name has had time to arrive by the next time.
#[derive(Debug, Default)]
pub struct OwnerWatch {
    known: HashMap<PartitionId, ChangedThreads>,
}

/// What follows from an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerChanges {
    /// The epoch of the owner: feeds that know only a lower one query it.
    pub epoch: u64,
    /// Frames of these threads have been sent up to these numbers: feeds that have not seen them query the owner.
    pub threads: Vec<(ThreadId, u64)>,
    /// There were more than can be named: all feeds query the owner.
    pub needs_resync: bool,
}

impl OwnerWatch {
    /// What the owner of a partition is asked.
    pub fn question(&self, partition: PartitionId) -> ChangedThreadsQuery {
        let known = self.known.get(&partition);
        known.map(|sent| ChangedThreadsQuery { epoch: sent.epoch, number: sent.number }).unwrap_or_default()
    }

    /// The highest epoch of a partition that was heard of; 0 before the first.
    pub fn epoch(&self, partition: PartitionId) -> u64 {
        self.known.get(&partition).map_or(0, |sent| sent.epoch)
    }

    /// Its answer; `None` when it comes from an owner that is one no more.
    pub fn on_sent(&mut self, partition: PartitionId, sent: ChangedThreads) -> Option<OwnerChanges> {
        let (epoch, is_complete) = (sent.epoch, sent.is_complete);
        if epoch < self.epoch(partition) {
            return None;
        }
        let earlier = self.known.insert(partition, sent).filter(|earlier| earlier.epoch == epoch);
        let threads = earlier.map(|earlier| earlier.threads).unwrap_or_default();
        Some(OwnerChanges { epoch, threads, needs_resync: !is_complete })
    }
}
