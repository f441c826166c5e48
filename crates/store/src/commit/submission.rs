//! The input of a commit writer.

use model::{Mark, Seq};
use partition::Commit;

/// A commit, the state of the store that it was decided on, and the stream it comes from.
#[derive(Debug, Clone, Copy)]
pub struct Submission<'a> {
    /// What to write.
    pub commit: &'a Commit,
    /// How many commits the partition has had: it is applied as the next one, or not at all.
    pub commits: u64,
    /// How many saves of the owner the store has acknowledged: one that knows of fewer has gone back in time and applies nothing.
    pub saves: u64,
    /// The incarnation of the partition's stream: part of the keys of dead entries, and of the order of saved inputs.
    pub incarnation: &'a str,
    /// The last entry that was read when it was decided.
    pub read: Option<Mark>,
    /// Entries that the stream had lost when they were to be read.
    pub gone: &'a [StreamGap],
}

/// Sequences that a stream jumped over, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamGap {
    /// The first.
    pub first: Seq,
    /// The last.
    pub last: Seq,
}
