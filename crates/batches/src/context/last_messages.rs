//! The newest messages of a thread in memory, as input of a context.

use model::Position;

use super::{Builder, NextRead};
use crate::SharedItem;

/// Number of messages per page for a [`Builder`]. Small, because the builder counts the tokens of
/// all messages of a page, even of those that do not fit.
const AT_A_TIME: usize = 16;

/// The newest messages of a thread, without a gap.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LastMessages {
    /// Ordered newest first.
    pub newest: Vec<SharedItem>,
    /// True if the thread has no other messages.
    pub is_all: bool,
}

impl LastMessages {
    /// Feeds the builder with the messages that it needs. Returns the first read of the builder
    /// that these messages cannot answer.
    pub fn feed(&self, builder: &mut Builder<'_>) -> NextRead {
        loop {
            let next = builder.next_read();
            let is_fed = match &next {
                NextRead::Nothing => false,
                NextRead::Older(before) => self.feed_older(*before, builder),
                NextRead::Batches(wanted) => self.feed_batches(wanted, builder),
            };
            if !is_fed {
                return next;
            }
        }
    }

    fn feed_older(&self, before: Option<Position>, builder: &mut Builder<'_>) -> bool {
        let rest = &self.newest[self.from(before)..];
        if !rest.is_empty() {
            builder.page(rest.iter().take(AT_A_TIME).cloned());
        } else if self.is_all {
            builder.end();
        }
        self.is_all || !rest.is_empty()
    }

    fn feed_batches(&self, wanted: &[Position], builder: &mut Builder<'_>) -> bool {
        let is_whole =
            |id: Position| self.is_all || self.newest.last().is_some_and(|oldest| oldest.position <= id);
        let whole = || wanted.iter().copied().filter(|id| is_whole(*id));
        for id in whole() {
            builder.batch(id, self.newest.iter().filter(|item| item.batch_id == id).cloned());
        }
        whole().next().is_some()
    }

    /// Appends messages that precede the oldest one.
    pub fn extend(&mut self, older: Self) {
        self.is_all |= older.is_all;
        self.newest.extend(older.newest);
    }

    /// Keeps the messages from this position on, and at least `least`.
    pub fn truncate(&mut self, low: Position, least: usize) {
        let count = self.from(Some(low)).max(least);
        self.is_all &= count >= self.newest.len();
        self.newest.truncate(count);
    }

    /// Index of the first message before this position.
    fn from(&self, before: Option<Position>) -> usize {
        before.map_or(0, |before| self.newest.partition_point(|item| item.position >= before))
    }
}
