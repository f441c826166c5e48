//! Budget of open messages and their bytes for all partitions of a worker.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Limits for all partitions of one worker together. Messages are reserved before a batch is
/// handled, so that the limit is exact although partitions run in parallel.
#[derive(Debug)]
pub(crate) struct OpenMessageLimit {
    most_open: usize,
    most_bytes: usize,
    open: AtomicUsize,
    bytes: AtomicUsize,
}

/// The share of the limit that one partition has taken; dropping the value gives the share back.
#[derive(Debug)]
pub(crate) struct Reservation<'a> {
    limit: &'a OpenMessageLimit,
    open: usize,
    bytes: usize,
}

impl OpenMessageLimit {
    pub(crate) fn new(most_open: usize, most_bytes: usize) -> Self {
        Self { most_open, most_bytes, open: AtomicUsize::new(0), bytes: AtomicUsize::new(0) }
    }

    pub(crate) fn reservation(&self) -> Reservation<'_> {
        Reservation { limit: self, open: 0, bytes: 0 }
    }

    fn bytes_left(&self) -> usize {
        self.most_bytes.saturating_sub(self.bytes.load(Ordering::Relaxed))
    }
}

impl Reservation<'_> {
    /// Reserves room for at most `wanted` new messages.
    pub(crate) fn reserve(&mut self, wanted: usize) -> usize {
        if self.limit.bytes_left() == 0 {
            return 0;
        }
        let take = |open: usize| {
            let room = self.limit.most_open.saturating_sub(open).min(wanted);
            (room > 0).then_some(open + room)
        };
        let before = self.limit.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        let room = before.map_or(0, |open| self.limit.most_open.saturating_sub(open).min(wanted));
        self.open += room;
        room
    }

    /// Sets the actual use of the partition and gives back what was reserved beyond it.
    pub(crate) fn settle(&mut self, open: usize, bytes: usize) {
        adjust(&self.limit.open, self.open, open);
        adjust(&self.limit.bytes, self.bytes, bytes);
        (self.open, self.bytes) = (open, bytes);
    }

    /// True when a tenth of the limit is free, so that waiting messages can be accepted.
    pub(crate) fn has_room(&self) -> bool {
        let open = self.limit.open.load(Ordering::Relaxed);
        let enough_open = open + self.limit.most_open.div_ceil(10) <= self.limit.most_open;
        enough_open && self.limit.bytes_left() >= self.limit.most_bytes / 10
    }

    /// Bytes that this partition should drop: half of its own if the worker holds twice the limit.
    pub(crate) fn excess(&self) -> Option<usize> {
        let over = self.limit.bytes.load(Ordering::Relaxed) > self.limit.most_bytes.saturating_mul(2);
        (over && self.bytes > 0).then_some(self.bytes / 2)
    }
}

impl Drop for Reservation<'_> {
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
        let limit = OpenMessageLimit::new(10, 100);
        let (mut one, mut two) = (limit.reservation(), limit.reservation());
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
    fn limit_without_bytes_has_no_room_and_then_excess() {
        let limit = OpenMessageLimit::new(10, 100);
        let mut share = limit.reservation();
        share.settle(1, 100);
        assert_eq!(share.reserve(1), 0);
        assert_eq!(share.excess(), None);
        share.settle(1, 201);
        assert_eq!(share.excess(), Some(100));
    }
}
