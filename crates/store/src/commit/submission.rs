//! The input of a commit writer.

use model::{Mark, Seq};
use partition::Commit;

/// A commit with the state of the store on which it was decided, and its source stream.
#[derive(Debug, Clone, Copy)]
pub struct Submission<'a> {
    pub commit: &'a Commit,
    /// The number of earlier commits of the partition. This commit is applied as the next one or
    /// not at all.
    pub commits: u64,
    /// The number of saves that the store has acknowledged to the owner. A store with fewer has
    /// gone back in time and applies nothing.
    pub saves: u64,
    /// The incarnation of the partition's stream. It is part of the keys of dead letters for
    /// entries, and of the order of saved inputs.
    pub incarnation: &'a str,
    /// The last entry that was read when the commit was decided.
    pub read: Option<Mark>,
    /// Entries that the stream had lost before they were read.
    pub gone: &'a [StreamGap],
}

/// Sequences that a stream skipped, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamGap {
    pub first: Seq,
    pub last: Seq,
}
