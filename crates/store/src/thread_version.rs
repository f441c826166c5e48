//! Checks whether remembered messages of a thread are still current.

use model::Position;

/// Identifies a state of a thread. While it is current, the remembered last messages are all stored
/// messages up to `head`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadVersion {
    /// When the row of the thread was created, in microseconds since 1970. This time differs if the
    /// thread was erased and created again.
    pub created_us: i64,
    /// Counts all changes of the thread except messages appended after its head.
    pub revision: i32,
    /// The last message of the thread.
    pub head: Position,
    pub messages: i64,
}

impl ThreadVersion {
    /// The number of messages that version `now` has after the head of this one; `None` if earlier
    /// messages have changed.
    pub(crate) fn behind(self, now: Self) -> Option<i64> {
        let is_same = (self.created_us, self.revision) == (now.created_us, now.revision);
        let more = now.messages - self.messages;
        (is_same && self.head <= now.head && more >= 0 && (more == 0) == (self.head == now.head))
            .then_some(more)
    }
}
