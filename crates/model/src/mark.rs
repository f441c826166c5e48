//! Identifies an entry of a stream.

use crate::Seq;

/// An entry of a stream: its sequence, and when it was stored.
///
/// A stream that loses its end assigns the lost sequences again, at other times. Entries are only
/// appended, so a stream that still has this entry has everything before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    pub seq: Seq,
    /// Storage time by the server's clock: ns of Unix time.
    pub stored_at_ns: i64,
}

impl Mark {
    /// True if a stream whose first sequence is `first` may contain this entry. `found` is the
    /// storage time of the entry that the stream now has at this sequence, if any. Purged entries
    /// cannot be compared.
    pub fn agrees(&self, first: Seq, found: Option<i64>) -> bool {
        found == Some(self.stored_at_ns) || self.seq < first
    }
}
