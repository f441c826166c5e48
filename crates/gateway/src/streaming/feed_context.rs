//! State shared by all feed tasks: which threads have subscribers, and how a drain is spread over
//! time.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use model::{PartitionId, ThreadId};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::backend::Backend;
use crate::streaming::subscriber::FeedCommand;

/// Maximum number of threads that one message to an owner names as no longer followed: a message
/// has at most 1 MB.
const UNFOLLOWED: usize = 2_000;
/// Reserved at the end of a drain for the notices of subscribers that waited for an end.
const LAST_DRAIN_NOTICE: Duration = Duration::from_secs(1);

/// State that every feed task needs. Cheap to clone.
#[derive(Clone)]
pub(crate) struct FeedContext {
    // Shared: each feed holds it twice.
    pub(crate) backend: Arc<Backend>,
    feeds: Arc<Mutex<HashMap<ThreadId, FeedEntry>>>,
    drain_notices_sent: Arc<AtomicU32>,
    /// True once messages of owners reach this gateway.
    is_listening: Arc<watch::Sender<bool>>,
    /// Threads that have no feed any more, but whose owners may still send frames.
    unfollowed: Arc<Mutex<HashSet<ThreadId>>>,
    drain_notices: Arc<Leaving>,
}

/// Drain notices: when the drain began, how many there are in all, and the number of the next one.
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
            backend: Arc::new(backend),
            feeds: Arc::default(),
            drain_notices_sent: Arc::default(),
            is_listening: Arc::default(),
            unfollowed: Arc::default(),
            drain_notices: Arc::default(),
        }
    }

    /// A context that reads on behalf of a tenant, under row-level security.
    pub(crate) fn with_backend(&self, backend: Backend) -> Self {
        Self { backend: Arc::new(backend), ..self.clone() }
    }

    /// Delay in ms after which a drained client should reconnect. The notices are already spread
    /// over time, so this only separates clients whose notices share a millisecond. Readers receive
    /// nothing during the delay.
    pub(crate) fn retry_ms(&self) -> u32 {
        100 + self.drain_notices_sent.fetch_add(1, Ordering::Relaxed).wrapping_mul(997) % 400
    }

    /// The time of the next subscriber's drain notice: a thousand a second, but all within half of
    /// the drain time. Subscribers that wait for the end of an answer stay as long as possible: the
    /// last part of the time is for them.
    pub(crate) fn drain_notice_at(&self, has_end: bool) -> Instant {
        let spread = self.drain_delay();
        match has_end {
            false => self.drain_began_at() + spread,
            true => self.last_notice_at() - spread / 2,
        }
    }

    /// The time at which the drain stops waiting for subscribers.
    pub(crate) fn last_notice_at(&self) -> Instant {
        let time = self.backend.drain_time;
        self.drain_began_at() + time.saturating_sub(LAST_DRAIN_NOTICE.min(time / 4))
    }

    fn drain_began_at(&self) -> Instant {
        *self.drain_notices.began_at.get_or_init(Instant::now)
    }

    /// Resolves when the drain stops waiting for this subscriber: later if it waits for an end.
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
        let spread = Duration::from_millis(all.into()).min(self.backend.drain_time / 2);
        spread * number / all.max(1)
    }

    /// Removes a thread without subscribers; false when one has joined in the meantime.
    pub(crate) fn retire(&self, thread: &ThreadId) -> bool {
        let mut feeds = self.feeds();
        let is_unused = feeds.get(thread).is_none_or(|entry| Arc::strong_count(&entry.subscribers) == 1);
        if is_unused {
            feeds.remove(thread);
            self.unfollow(thread.clone());
        }
        is_unused
    }

    /// Notes that the owner should stop sending frames of this thread: no feed takes them.
    pub(crate) fn unfollow(&self, thread: ThreadId) {
        self.unfollowed().insert(thread);
    }

    /// The threads of a partition that lost their feed since the last call.
    pub(crate) fn take_unfollowed(&self, partition: PartitionId) -> Vec<ThreadId> {
        let feeds = self.feeds();
        let mut unfollowed = self.unfollowed();
        let of_partition = |thread: &ThreadId| self.backend.partition_of(thread) == partition;
        let taken: Vec<_> =
            unfollowed.iter().filter(|it| of_partition(it)).take(UNFOLLOWED).cloned().collect();
        taken.iter().for_each(|thread| {
            unfollowed.remove(thread);
        });
        taken.into_iter().filter(|thread| !feeds.contains_key(thread)).collect()
    }

    /// Forgets unfollowed threads whose owner this gateway no longer queries. Such an owner stops
    /// sending by itself and needs no notification.
    pub(crate) fn keep_unfollowed(&self, is_asked: impl Fn(PartitionId) -> bool) {
        self.unfollowed().retain(|thread| is_asked(self.backend.partition_of(thread)));
    }

    fn unfollowed(&self) -> MutexGuard<'_, HashSet<ThreadId>> {
        self.unfollowed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves once messages of owners reach this gateway.
    pub(crate) async fn listening(&self) {
        let mut is_listening = self.is_listening.subscribe();
        // The sender lives in `self`.
        let _ = is_listening.wait_for(|it| *it).await;
    }

    pub(crate) fn set_listening(&self) {
        self.is_listening.send_replace(true);
    }

    pub(crate) fn feeds(&self) -> MutexGuard<'_, HashMap<ThreadId, FeedEntry>> {
        self.feeds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
