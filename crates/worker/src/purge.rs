//! Purges the stream behind the checkpoint, except for a tail.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bus::Bus;
use model::{PartitionId, Seq};
use runtime::spawn_named;
use tokio::time::Instant;

/// Remembers applied checkpoints for as long as the tail is kept, and purges older entries.
///
/// The tail is kept for the case that Postgres goes back in time. Turns and checkpoint go back
/// together, and the stream must still have the entries to read again. The entry at the checkpoint
/// is always kept, because the stream is recognized by it.
#[derive(Debug)]
pub(crate) struct Purge {
    partition: PartitionId,
    tail: Duration,
    applied: VecDeque<(Instant, Seq)>,
    purged: Seq,
    under_way: Arc<AtomicBool>,
}

impl Purge {
    pub(crate) fn new(partition: PartitionId, tail: Duration) -> Self {
        Self { partition, tail, applied: VecDeque::new(), purged: Seq(0), under_way: Arc::default() }
    }

    /// Purges if due. To be called every few seconds with the last applied checkpoint.
    pub(crate) fn tick(&mut self, bus: &Bus, checkpoint: Seq) {
        if let Some(below) = self.due(checkpoint, Instant::now()) {
            self.start(bus.clone(), below);
        }
    }

    /// The checkpoint below which nothing is needed any more, if it has changed since the last
    /// call.
    fn due(&mut self, checkpoint: Seq, now: Instant) -> Option<Seq> {
        if self.applied.back().is_none_or(|(_, last)| *last < checkpoint) {
            self.applied.push_back((now, checkpoint));
        }
        let mut old = None;
        while self.applied.front().is_some_and(|(at, _)| now.duration_since(*at) >= self.tail) {
            old = self.applied.pop_front().map(|(_, checkpoint)| checkpoint);
        }
        let due = old.filter(|old| *old > self.purged)?;
        self.purged = due;
        Some(due)
    }

    fn start(&self, bus: Bus, below: Seq) {
        if self.under_way.swap(true, Ordering::AcqRel) {
            return;
        }
        let (partition, under_way) = (self.partition, Arc::clone(&self.under_way));
        spawn_named("purge", async move {
            // The next purge makes up for a failed one.
            if let Err(error) = bus.purge_below(partition, below).await {
                tracing::debug!(%partition, %error, "the stream was not purged");
            }
            under_way.store(false, Ordering::Release);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_purged_before_the_tail_has_passed() {
        let (tail, start) = (Duration::from_secs(60), Instant::now());
        let mut purge = Purge::new(PartitionId(0), tail);
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(purge.due(Seq(10), at(0)), None, "a copy of Postgres that is a second old needs it");
        assert_eq!(purge.due(Seq(20), at(30)), None);
        assert_eq!(purge.due(Seq(20), at(59)), None);
        assert_eq!(purge.due(Seq(20), at(60)), Some(Seq(10)), "not what was applied half a minute later");
        assert_eq!(purge.due(Seq(20), at(65)), None);
        assert_eq!(purge.due(Seq(20), at(90)), Some(Seq(20)));
        assert_eq!(purge.due(Seq(20), at(500)), None, "an idle partition purges nothing");
    }
}
