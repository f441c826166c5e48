//! Tracks the frames that owners have sent, so that a gateway notices when the last frame of a
//! thread was lost.

use std::collections::HashMap;

use model::PartitionId;
use wire::query::{ChangedThreads, ChangedThreadsQuery};

/// Owners are queried regularly for the threads of the frames that they have sent. A reply arrives
/// after the frames that it counts. A frame that a feed has not received before the reply is lost.
#[derive(Debug, Default)]
pub struct OwnerWatch {
    /// For each partition, the owner's epoch and last frame from its last reply.
    known: HashMap<PartitionId, (u64, u64)>,
}

impl OwnerWatch {
    /// The query to the owner of a partition.
    pub fn question(&self, partition: PartitionId) -> ChangedThreadsQuery {
        let (epoch, number) = self.known.get(&partition).copied().unwrap_or_default();
        ChangedThreadsQuery { epoch, number, unfollowed: Vec::new() }
    }

    /// The highest known epoch of a partition; 0 before the first.
    pub fn epoch(&self, partition: PartitionId) -> u64 {
        self.known.get(&partition).map_or(0, |(epoch, _)| *epoch)
    }

    /// A partition has an owner of this epoch.
    pub fn on_owner(&mut self, partition: PartitionId, epoch: u64) {
        let known = self.known.entry(partition).or_default();
        *known = (*known).max((epoch, 0));
    }

    /// Takes an owner's reply. False if it must be ignored: from a former owner, or older than an
    /// earlier reply.
    pub fn on_reply(&mut self, partition: PartitionId, reply: &ChangedThreads) -> bool {
        let known = self.known.entry(partition).or_default();
        let is_news = (reply.epoch, reply.number) >= *known;
        if is_news {
            *known = (reply.epoch, reply.number);
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_epoch_is_asked_with_and_lower_ones_are_ignored() {
        let (p, mut watch) = (PartitionId(3), OwnerWatch::default());
        let reply = |epoch, number| ChangedThreads { epoch, number, threads: Vec::new(), is_complete: true };
        let asked = |watch: &OwnerWatch| (watch.question(p).epoch, watch.question(p).number);
        assert!(watch.on_reply(p, &reply(1, 7)));
        watch.on_owner(p, 1);
        assert_eq!(asked(&watch), (1, 7));
        watch.on_owner(p, 3);
        assert_eq!((asked(&watch), watch.epoch(p)), ((3, 0), 3));
        assert!(!watch.on_reply(p, &reply(2, 9)));
        assert!(watch.on_reply(p, &reply(3, 4)));
        assert_eq!(asked(&watch), (3, 4));
    }
}
