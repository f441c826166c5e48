//! Whether what is known of a thread is still so.

use model::Position;

/// What proves that the last messages of a thread that are known are its messages, all of them up to `head`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadVersion {
    /// When its row was made, microseconds since 1970: a thread that was erased and made again is another one.
    pub created_us: i64,
    /// Counts what has changed it other than by messages behind its head.
    pub revision: i32,
    /// Its last message.
    pub head: Position,
    /// How many messages it has.
    pub messages: i64,
}

impl ThreadVersion {
    /// How many messages that version has behind this one's head, if everything up to there can be as it was.
    pub(crate) fn behind(self, now: Self) -> Option<i64> {
        let is_same = (self.created_us, self.revision) == (now.created_us, now.revision);
        let more = now.messages - self.messages;
        (is_same && self.head <= now.head && more >= 0 && (more == 0) == (self.head == now.head))
            .then_some(more)
    }
}
