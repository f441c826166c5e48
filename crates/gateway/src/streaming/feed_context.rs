//! What all feed tasks share: which threads have subscribers, and how a drain is spread over time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use model::ThreadId;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;

use crate::backend::Backend;
use crate::streaming::subscriber::FeedCommand;

/// Feeds that begin at the same time: more than the store has connections for would only wait there, and larger.
const BEGINNING: usize = 64;
/// Before the end of a drain, for the notice of those who have waited for an end.
const LAST_DRAIN_NOTICE: Duration = Duration::from_secs(1);

/// What every feed task needs. Cheap to clone.
#[derive(Clone)]
pub(crate) struct FeedContext {
    pub(crate) backend: Backend,
    feeds: Arc<Mutex<HashMap<ThreadId, FeedEntry>>>,
    drain_notices_sent: Arc<AtomicU32>,
    /// Places for feeds that begin: each reads the store.
    pub(crate) beginning: Arc<Semaphore>,
    drain_notices: Arc<Leaving>,
}

/// Who leaves in a drain.
#[derive(Debug, Default)]
struct Leaving {
    began_at: OnceLock<Instant>,
    all: OnceLock<u32>,
    next: AtomicU32,
}

pub(crate) struct FeedEntry {
    pub(crate) commands: mpsc::Sender<FeedCommand>,
    pub(crate) subscribers: Arc<()>,
}

impl FeedContext {
    pub(crate) fn new(backend: Backend) -> Self {
        Self {
            backend,
            feeds: Arc::default(),
            drain_notices_sent: Arc::default(),
            beginning: Arc::new(Semaphore::new(BEGINNING)),
            drain_notices: Arc::default(),
        }
    }

    /// The same for the requests of a tenant: what is read for them is subject to row-level security.
    pub(crate) fn with_backend(&self, backend: Backend) -> Self {
        Self { backend, ..self.clone() }
    }

    /// When a drained client should come back: spread, so that not all come at once.
    pub(crate) fn retry_ms(&self) -> u32 {
        200 + self.drain_notices_sent.fetch_add(1, Ordering::Relaxed).wrapping_mul(997) % 2_800
    }

    /// When the next subscriber of a drain gets its notice: a thousand a second, but all within half the time that connections have. Those who
    /// wait for the end of an answer stay for as long as they can: the last part of the time is for their notice.
    pub(crate) fn drain_notice_at(&self, has_end: bool) -> Instant {
        let spread = self.drain_delay();
        match has_end {
            false => self.drain_began_at() + spread,
            true => self.last_notice_at() - spread / 2,
        }
    }

    /// When the drain stops waiting for subscribers.
    pub(crate) fn last_notice_at(&self) -> Instant {
        let time = self.backend.limits.http.drain;
        self.drain_began_at() + time.saturating_sub(LAST_DRAIN_NOTICE.min(time / 4))
    }

    fn drain_began_at(&self) -> Instant {
        *self.drain_notices.began_at.get_or_init(Instant::now)
    }

    /// Resolves when a drain stops waiting for this subscriber: later for one that waits for an end.
    pub(crate) async fn leaves(&self, has_end: bool) {
        self.backend.drain.cancelled().await;
        if has_end {
            tokio::time::sleep_until(self.drain_notice_at(true)).await;
        }
    }

    fn drain_delay(&self) -> Duration {
        let subscribers = |entry: &FeedEntry| Arc::strong_count(&entry.subscribers).saturating_sub(1);
        let count = || self.feeds().values().map(subscribers).sum::<usize>().try_into().unwrap_or(u32::MAX);
        let all = *self.drain_notices.all.get_or_init(count);
        let number = self.drain_notices.next.fetch_add(1, Ordering::Relaxed).min(all);
        let spread = Duration::from_millis(all.into()).min(self.backend.limits.http.drain / 2);
        spread * number / all.max(1)
    }

    /// Forgets a thread without subscribers; false when one came in the meantime.
    pub(crate) fn retire(&self, thread: &ThreadId) -> bool {
        let mut feeds = self.feeds();
        let is_unused = feeds.get(thread).is_none_or(|entry| Arc::strong_count(&entry.subscribers) == 1);
        if is_unused {
            feeds.remove(thread);
        }
        is_unused
    }

    pub(crate) fn feeds(&self) -> MutexGuard<'_, HashMap<ThreadId, FeedEntry>> {
        self.feeds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
