//! Budget of open messages and their bytes for all partitions of a worker.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Limits for all partitions of one worker together. Messages are reserved before a batch is
/// handled, so that the limit is exact although partitions run in parallel.
#[derive(Debug)]
pub(crate) struct Budget {
    most_open: usize,
    most_bytes: usize,
    open: AtomicUsize,
    bytes: AtomicUsize,
}

/// Part of the budget used by one partition; given back on drop.
#[derive(Debug)]
pub(crate) struct Share<'a> {
    budget: &'a Budget,
    open: usize,
    bytes: usize,
}

impl Budget {
    pub(crate) fn new(most_open: usize, most_bytes: usize) -> Self {
        Self { most_open, most_bytes, open: AtomicUsize::new(0), bytes: AtomicUsize::new(0) }
    }

    pub(crate) fn share(&self) -> Share<'_> {
        Share { budget: self, open: 0, bytes: 0 }
    }

    fn bytes_left(&self) -> usize {
        self.most_bytes.saturating_sub(self.bytes.load(Ordering::Relaxed))
    }
}

impl Share<'_> {
    /// Reserves room for at most `wanted` new messages.
    pub(crate) fn reserve(&mut self, wanted: usize) -> usize {
        if self.budget.bytes_left() == 0 {
            return 0;
        }
        let take = |open: usize| {
            let room = self.budget.most_open.saturating_sub(open).min(wanted);
            (room > 0).then_some(open + room)
        };
        let before = self.budget.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        let room = before.map_or(0, |open| self.budget.most_open.saturating_sub(open).min(wanted));
        self.open += room;
        room
    }

    /// Sets the actual use of the partition and gives back what was reserved beyond it.
    pub(crate) fn settle(&mut self, open: usize, bytes: usize) {
        adjust(&self.budget.open, self.open, open);
        adjust(&self.budget.bytes, self.bytes, bytes);
        (self.open, self.bytes) = (open, bytes);
    }

    /// True if a tenth of the budget is free: waiting messages may be let in.
    pub(crate) fn has_room(&self) -> bool {
        let open = self.budget.open.load(Ordering::Relaxed);
        let enough_open = open + self.budget.most_open.div_ceil(10) <= self.budget.most_open;
        enough_open && self.budget.bytes_left() >= self.budget.most_bytes / 10
    }

    /// Bytes that this partition should drop: half of its own if the worker holds twice the limit.
    pub(crate) fn excess(&self) -> Option<usize> {
        let over = self.budget.bytes.load(Ordering::Relaxed) > self.budget.most_bytes.saturating_mul(2);
        (over && self.bytes > 0).then_some(self.bytes / 2)
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.settle(0, 0);
    }
}

fn adjust(total: &AtomicUsize, before: usize, after: usize) {
    if after >= before {
        total.fetch_add(after - before, Ordering::Relaxed);
    } else {
        total.fetch_sub(before - after, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_never_exceed_the_limit_and_go_back() {
        let budget = Budget::new(10, 100);
        let (mut one, mut two) = (budget.share(), budget.share());
        assert_eq!(one.reserve(7), 7);
        assert_eq!(two.reserve(7), 3);
        assert_eq!(two.reserve(1), 0);
        one.settle(2, 10);
        assert_eq!(two.reserve(7), 5);
        assert!(!one.has_room());
        drop(two);
        assert!(one.has_room());
        assert_eq!(one.reserve(100), 8);
    }

    #[test]
    fn budget_without_bytes_has_no_room_and_then_excess() {
        let budget = Budget::new(10, 100);
        let mut share = budget.share();
        share.settle(1, 100);
        assert_eq!(share.reserve(1), 0);
        assert_eq!(share.excess(), None);
        share.settle(1, 201);
        assert_eq!(share.excess(), Some(100));
    }
}
