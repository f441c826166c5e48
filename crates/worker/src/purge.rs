//! Purging the stream behind the checkpoint, with a tail.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bus::Bus;
use model::{PartitionId, Seq};
use runtime::spawn_named;
use tokio::time::Instant;

/// Remembers applied checkpoints for as long as the tail is kept, and purges what is older.
///
/// The tail is there for a Postgres that goes back in time: turns and checkpoint step back together, and the stream must still have what
/// is read again. The entry at the checkpoint stays in any case: by it the stream is recognised.
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

    /// To be called every few seconds with the last applied checkpoint.
    pub(crate) fn tick(&mut self, bus: &Bus, checkpoint: Seq) {
        let now = Instant::now();
        if self.applied.back().is_none_or(|(_, last)| *last < checkpoint) {
            self.applied.push_back((now, checkpoint));
        }
        let mut old = None;
        while self.applied.front().is_some_and(|(at, _)| now.duration_since(*at) >= self.tail) {
            old = self.applied.pop_front().map(|(_, checkpoint)| checkpoint);
        }
        if let Some(old) = old.filter(|old| *old > self.purged) {
            self.purged = old;
            self.start(bus.clone(), old);
        }
    }

    fn start(&self, bus: Bus, below: Seq) {
        if self.under_way.swap(true, Ordering::AcqRel) {
            return;
        }
        let (partition, under_way) = (self.partition, Arc::clone(&self.under_way));
        spawn_named("purge", async move {
            // A purge that fails is made up for by the next one.
            if let Err(error) = bus.purge_below(partition, below).await {
                tracing::debug!(%partition, %error, "the stream was not purged");
            }
            under_way.store(false, Ordering::Release);
        });
    }
}
