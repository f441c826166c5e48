//! What an entry of a stream is recognised by.

use crate::Seq;

/// An entry of a stream: its sequence, and when it was stored.
///
/// A stream that loses its end gives the lost sequences out again, at other times. As entries are only ever appended, a stream that
/// still has this entry still has everything that came before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Its sequence.
    pub seq: Seq,
    /// When it was stored, by the server's clock: ns of Unix time.
    pub stored_at_ns: i64,
}

impl Mark {
    /// Whether a stream whose first sequence is `first` may be the one with this entry: `found` is when it stored what it has under the
    /// same sequence, if it has anything there. What was purged cannot be compared.
    pub fn agrees(&self, first: Seq, found: Option<i64>) -> bool {
        found == Some(self.stored_at_ns) || self.seq < first
    }
}
