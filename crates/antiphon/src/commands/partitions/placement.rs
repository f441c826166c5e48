//! Computes the stream and the sequence to which each entry is moved, without I/O.
//!
//! Every entry after a checkpoint is appended to the stream of its key under the new number, even
//! if its partition stays the same. Splitting, merging and keeping follow the same rule. The old
//! streams are read one after the other, each in its order, so the place of an entry depends on
//! nothing else. A repeated run therefore recognizes what an interrupted one has moved.

use model::{PartitionCount, PartitionId, Seq};
use wire::subject;

/// The end of a stream before the move, and the number of entries that were moved into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MovedStream {
    pub(super) end: Seq,
    pub(super) stored: u64,
}

/// The destination of an entry.
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
    Stored,
    /// Stored, and it is the last one that was stored in this stream.
    StoredLast,
    Missing,
}

/// Computes the places of entries, which must be requested in the order of the move.
#[derive(Debug)]
pub(super) struct Placement {
    count: PartitionCount,
    /// Streams by partition, each with the number of entries that were placed there.
    targets: Vec<(MovedStream, u64)>,
}

impl Placement {
    /// `targets`: by partition, at least one for each of `count`.
    pub(super) fn new(count: PartitionCount, targets: Vec<MovedStream>) -> Self {
        Self { count, targets: targets.into_iter().map(|target| (target, 0)).collect() }
    }

    /// The place of the next entry; `None` if no stream of a partition has such a subject.
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

    /// A stream in which more entries follow the old end than were placed there.
    pub(super) fn with_too_much(&self) -> Option<PartitionId> {
        let beyond = self.targets.iter().position(|(target, placed)| target.stored > *placed);
        beyond.and_then(|number| u16::try_from(number).ok()).map(PartitionId)
    }
}

#[cfg(test)]
mod tests;
