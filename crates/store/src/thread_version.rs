//! Checks whether remembered messages of a thread are still current.

use model::Position;

/// Proves that the remembered last messages of a thread are its messages, all of them up to `head`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadVersion {
    /// When its row was created, microseconds since 1970: a thread that was erased and created
    /// again differs.
    pub created_us: i64,
    /// Counts all changes except messages appended behind its head.
    pub revision: i32,
    /// Its last message.
    pub head: Position,
    pub messages: i64,
}

impl ThreadVersion {
    /// How many messages version `now` has behind this one's head; `None` if earlier messages have
    /// changed.
    pub(crate) fn behind(self, now: Self) -> Option<i64> {
        let is_same = (self.created_us, self.revision) == (now.created_us, now.revision);
        let more = now.messages - self.messages;
        (is_same && self.head <= now.head && more >= 0 && (more == 0) == (self.head == now.head))
            .then_some(more)
    }
}
