//! Which stream each entry is moved to, and at which sequence it stands there. Pure.
//!
//! Every entry behind a checkpoint is appended anew, whether its partition stays the same or not: to the stream of its key under the new
//! number. One rule for splitting, merging and keeping. The old streams are read one after the other, each in its order, so that the place of
//! an entry depends on nothing else, and a move that was interrupted finds what it has done.

use model::{PartitionCount, PartitionId, Seq};
use wire::subject;

/// A stream as it stood before the move, and how many moved entries it has by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MovedStream {
    pub(super) end: Seq,
    pub(super) stored: u64,
}

/// Where an entry goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) partition: PartitionId,
    pub(super) subject: String,
    pub(super) seq: Seq,
    pub(super) progress: Progress,
}

/// Whether an earlier run has stored an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// It has.
    Stored,
    /// It has, and none after it in this stream.
    StoredLast,
    /// It has not.
    Missing,
}

/// The places of entries, which are asked for in the order of the move.
#[derive(Debug)]
pub(super) struct Placement {
    count: PartitionCount,
    /// By partition, with how many entries have been placed there.
    targets: Vec<(MovedStream, u64)>,
}

impl Placement {
    /// `targets`: by partition, one for each of `count` at least.
    pub(super) fn new(count: PartitionCount, targets: Vec<MovedStream>) -> Self {
        Self { count, targets: targets.into_iter().map(|target| (target, 0)).collect() }
    }

    /// The place of the next entry. `None`: no stream of a partition has such a subject.
    pub(super) fn place(&mut self, stored_under: &str) -> Option<Place> {
        let (partition, subject) = subject::in_fleet(self.count, stored_under)?;
        let (target, placed) = self.targets.get_mut(usize::from(partition.0))?;
        *placed += 1;
        let progress = match (*placed).cmp(&target.stored) {
            std::cmp::Ordering::Less => Progress::Stored,
            std::cmp::Ordering::Equal => Progress::StoredLast,
            std::cmp::Ordering::Greater => Progress::Missing,
        };
        Some(Place { partition, subject, seq: Seq(target.end.0 + *placed), progress })
    }

    /// A stream that has more behind its end than was to be moved there.
    pub(super) fn with_too_much(&self) -> Option<PartitionId> {
        let beyond = self.targets.iter().position(|(target, placed)| target.stored > *placed);
        beyond.and_then(|number| u16::try_from(number).ok()).map(PartitionId)
    }
}

#[cfg(test)]
mod tests;
