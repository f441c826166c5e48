//! Which threads have viewers here, and one driver for each of them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bus::Bus;
use futures_util::future::join_all;
use model::{Bucket, MessageId, PartitionCount, PartitionId, Position, Tenant, ThreadId, Timestamp};
use protocols::{Cursor, Native, native};
use runtime::{Clock, Heartbeat, spawn_named};
use store::Store;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use wire::query::ChangedThreads;

use crate::streaming::feed_task;
use crate::streaming::feed_task::{Command, Viewer};
use crate::streaming::send_queue::Lane;
use crate::metrics;
use crate::metrics::Cut;
use crate::streaming::store_reads;
use crate::settings_cache::Remembered;
use feed::{BadCursor, CatchUp, Watch, catch_up};

/// How often the owner of each partition with viewers is asked of which threads it has sent frames.
const WATCH_EVERY: Duration = Duration::from_secs(2);
const WATCH_TIMEOUT: Duration = Duration::from_secs(5);
/// A viewer that lacks fewer ends than this is near enough to join its feed.
const NEAR: usize = 32;
/// Feeds that begin at the same time: more than the store has connections for would only wait there, and larger.
const BEGINNING: usize = 64;

/// Before the end of a drain, for the notice of those who have waited for an end.
const LAST_NOTICE: Duration = Duration::from_secs(1);

/// Bounds of a gateway.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Open HTTP connections.
    pub connections: usize,
    /// Event streams of one thread.
    pub viewers_per_thread: usize,
    /// Threads with viewers.
    pub feeds: usize,
    /// Bytes of open text kept per thread for viewers who join late.
    pub feed_bytes: usize,
    /// Bytes that a viewer may lag behind.
    pub lag_bytes: usize,
    /// How long a thread is followed after its last viewer left, ms.
    pub linger_ms: i64,
    /// How long a stop waits for the owner of its turn, ms.
    pub owner_patience_ms: u64,
    /// Of connections.
    pub http: HttpLimits,
}

/// Bounds of connections.
#[derive(Debug, Clone, Copy)]
pub struct HttpLimits {
    /// Connections, and requests under way on HTTP/2 ones, of one peer: an IPv4 address or an IPv6 network of 64 bits. 0 is
    /// no bound, for behind a proxy all have its address.
    pub connections_per_peer: usize,
    /// How long a head may take once it has begun, and how long a new connection may say nothing.
    pub head_timeout: Duration,
    /// How long a connection may have nothing to do after a request. Proxies keep theirs for a minute, and whoever closes first must be
    /// the proxy: it would send a request into a connection that has just been closed.
    pub idle_timeout: Duration,
    /// How long a body may take.
    pub body_timeout: Duration,
    /// How long a client may take nothing of what is there for it.
    pub write_timeout: Duration,
    /// How long the gateway still takes connections after it has said that it is not ready, so that load balancers forget it.
    pub close_delay: Duration,
    /// How long connections have to end then.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 20_000,
            viewers_per_thread: 10_000,
            feeds: 10_000,
            feed_bytes: 16 << 20,
            lag_bytes: 1 << 20,
            linger_ms: 5_000,
            // A lease that nobody renews runs out, and the next owner reads what there is.
            owner_patience_ms: 15_000,
            http: HttpLimits::default(),
        }
    }
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            connections_per_peer: 1_000,
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            close_delay: Duration::ZERO,
            drain: Duration::from_secs(10),
        }
    }
}

/// What every driver needs. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) bus: Bus,
    pub(crate) store: Store,
    pub(crate) limits: Limits,
    pub(crate) drain: CancellationToken,
    pub(crate) count: PartitionCount,
    clock: Clock,
    feeds: Arc<Mutex<HashMap<ThreadId, Entry>>>,
    goodbyes: Arc<AtomicU32>,
    /// Places for feeds that begin: each reads the store.
    pub(crate) beginning: Arc<Semaphore>,
    leaving: Arc<Leaving>,
    /// For inputs while Postgres is away.
    pub(crate) remembered: Arc<Remembered>,
}

/// Who leaves in a drain.
#[derive(Debug, Default)]
struct Leaving {
    began_at: OnceLock<Instant>,
    all: OnceLock<u32>,
    next: AtomicU32,
}

struct Entry {
    commands: mpsc::Sender<Command>,
    viewers: Arc<()>,
}

/// What a gateway has heard of a partition.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Heard {
    /// Rises when something may have been missed.
    pub(crate) doubts: u64,
    /// The highest epoch of its owners; 0 before the first.
    pub(crate) epoch: u64,
}

/// Why a viewer is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error("this thread has as many viewers here as it may have; try again, perhaps at another gateway")]
    Viewers,
    #[error("this gateway follows as many threads as it may; try again, perhaps at another gateway")]
    Feeds,
    #[error("this gateway is about to stop; try again")]
    Draining,
}

impl Refused {
    pub(crate) fn code(self) -> &'static str {
        match self {
            Self::Viewers => "too_many_viewers",
            Self::Feeds => "too_many_threads",
            Self::Draining => "draining",
        }
    }
}

/// Whether a viewer has been let in.
pub(crate) type Verdict = oneshot::Receiver<Result<(), BadCursor>>;

/// Keeps a viewer counted while its stream lives.
#[derive(Debug)]
pub(crate) struct Seat {
    _viewers: Arc<()>,
}

impl Context {
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp(self.clock.now_ms())
    }

    pub(crate) fn partition_of(&self, thread: &ThreadId) -> PartitionId {
        Bucket::of(thread).partition(self.count)
    }

    /// When a drained client should come back: spread, so that not all come at once.
    pub(crate) fn retry_ms(&self) -> u32 {
        200 + self.goodbyes.fetch_add(1, Ordering::Relaxed).wrapping_mul(997) % 2_800
    }

    /// When the next viewer of a drain gets its notice: a thousand a second, but all within half the time that connections have. Those who
    /// wait for the end of an answer stay for as long as they can: the last part of the time is for their notice.
    pub(crate) fn leaves_at(&self, has_end: bool) -> Instant {
        let spread = self.leaves_in();
        match has_end {
            false => self.leaving_since() + spread,
            true => self.last_notice_at() - spread / 2,
        }
    }

    /// When nobody is waited for any more.
    pub(crate) fn last_notice_at(&self) -> Instant {
        let time = self.limits.http.drain;
        self.leaving_since() + time.saturating_sub(LAST_NOTICE.min(time / 4))
    }

    fn leaving_since(&self) -> Instant {
        *self.leaving.began_at.get_or_init(Instant::now)
    }

    /// Until nobody of a drain is waited for who wants an end, or none.
    pub(crate) async fn leaves(&self, has_end: bool) {
        self.drain.cancelled().await;
        if has_end {
            tokio::time::sleep_until(self.leaves_at(true)).await;
        }
    }

    fn leaves_in(&self) -> Duration {
        let viewers = |entry: &Entry| Arc::strong_count(&entry.viewers).saturating_sub(1);
        let count = || self.feeds().values().map(viewers).sum::<usize>().try_into().unwrap_or(u32::MAX);
        let all = *self.leaving.all.get_or_init(count);
        let number = self.leaving.next.fetch_add(1, Ordering::Relaxed).min(all);
        let spread = Duration::from_millis(all.into()).min(self.limits.http.drain / 2);
        spread * number / all.max(1)
    }

    /// Forgets a thread without viewers; false when one came in the meantime.
    pub(crate) fn retire(&self, thread: &ThreadId) -> bool {
        let mut feeds = self.feeds();
        let is_unused = feeds.get(thread).is_none_or(|entry| Arc::strong_count(&entry.viewers) == 1);
        if is_unused {
            feeds.remove(thread);
        }
        is_unused
    }

    fn feeds(&self) -> MutexGuard<'_, HashMap<ThreadId, Entry>> {
        self.feeds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All feeds of a gateway.
#[derive(Clone)]
pub(crate) struct Hub {
    context: Context,
    /// What concerns every feed of a partition.
    heard: Arc<Vec<watch::Sender<Heard>>>,
}

impl Hub {
    pub(crate) fn new(
        bus: Bus,
        store: Store,
        clock: Clock,
        count: PartitionCount,
        limits: Limits,
        drain: CancellationToken,
    ) -> Self {
        let (feeds, goodbyes, leaving) = (Arc::default(), Arc::default(), Arc::default());
        let beginning = Arc::new(Semaphore::new(BEGINNING));
        let remembered = Arc::default();
        let context = Context {
            bus,
            store,
            limits,
            drain,
            clock,
            count,
            feeds,
            goodbyes,
            beginning,
            leaving,
            remembered,
        };
        Self { context, heard: Arc::new(count.all().map(|_| watch::Sender::default()).collect()) }
    }

    /// The same for the requests of a tenant: what is read and written for them stands behind the database's wall.
    pub(crate) fn of_tenant(&self, tenant: Option<Tenant>) -> Self {
        let store = self.context.store.of_tenant(tenant);
        Self { context: Context { store, ..self.context.clone() }, heard: Arc::clone(&self.heard) }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.context.store
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Lets a viewer in; what it gets comes through its lane. The seat must live as long as the stream. The receiver is told when
    /// the viewer has been let in, or that its cursor is none of the thread's; if nobody listens, the viewer is then told to begin anew.
    pub(crate) fn attach(
        &self,
        thread: &ThreadId,
        lane: Lane,
        cursor: Option<Cursor>,
    ) -> Result<(Seat, Verdict), Refused> {
        self.bring(thread, lane, cursor, None)
    }

    /// Lets a viewer in who wants one message, which ends after `after`, and nothing after its end.
    pub(crate) fn attach_until(
        &self,
        thread: &ThreadId,
        lane: Lane,
        after: Cursor,
        message: &MessageId,
    ) -> Result<(Seat, Verdict), Refused> {
        self.bring(thread, lane, Some(after), Some(message.clone()))
    }

    fn bring(
        &self,
        thread: &ThreadId,
        lane: Lane,
        cursor: Option<Cursor>,
        until: Option<MessageId>,
    ) -> Result<(Seat, Verdict), Refused> {
        let (seat, commands) = self.seat(thread)?;
        let (context, thread) = (self.context.clone(), thread.clone());
        let (verdict, is_in) = oneshot::channel();
        let has_end = until.is_some();
        let mut viewer = Viewer { lane, cursor, until, has_end, verdict: Some(verdict) };
        spawn_named("attach", async move {
            let lane = viewer.lane.clone();
            let joined = async {
                // On the heap: most viewers have no cursor, and all who wait for one feed wait here.
                if viewer.cursor.is_some() && !Box::pin(bring_near(&context, &thread, &mut viewer)).await {
                    return;
                }
                if commands.send(Command::Join(Box::new(viewer))).await.is_err() {
                    lane.cut(Cut::Internal);
                }
            };
            tokio::select! {
                () = joined => {}
                () = context.leaves(has_end) => lane.end_with(native::drain(context.retry_ms())),
            }
        });
        Ok((seat, is_in))
    }

    fn seat(&self, thread: &ThreadId) -> Result<(Seat, mpsc::Sender<Command>), Refused> {
        let context = &self.context;
        if context.drain.is_cancelled() {
            return Err(Refused::Draining);
        }
        let mut feeds = context.feeds();
        // A driver that has ended without a word (it panicked) is replaced.
        if let Some(entry) = feeds.get(thread).filter(|entry| !entry.commands.is_closed()) {
            // One of the count is the entry's own.
            if Arc::strong_count(&entry.viewers) > context.limits.viewers_per_thread {
                return Err(Refused::Viewers);
            }
            return Ok((Seat { _viewers: Arc::clone(&entry.viewers) }, entry.commands.clone()));
        }
        if feeds.len() >= context.limits.feeds {
            return Err(Refused::Feeds);
        }
        let (commands, inbox) = mpsc::channel(256);
        let viewers = Arc::new(());
        let seat = Seat { _viewers: Arc::clone(&viewers) };
        feeds.insert(thread.clone(), Entry { commands: commands.clone(), viewers });
        let heard = self.heard[usize::from(context.partition_of(thread).0)].subscribe();
        spawn_named("feed", feed_task::run(context.clone(), thread.clone(), inbox, heard));
        Ok((seat, commands))
    }

    /// Watches for what no frame tells: that the last one of a thread was lost, another owner (what the one before it sent may be lost), and
    /// times without NATS.
    pub(crate) async fn watch(self, pulse: Heartbeat) {
        let mut watch = Watch::default();
        let mut dropped = self.context.bus.slow_consumer_drops();
        let mut is_away = false;
        loop {
            tokio::time::sleep(WATCH_EVERY).await;
            pulse.beat();
            let drops = self.context.bus.slow_consumer_drops();
            let was_away = std::mem::replace(&mut is_away, !self.context.bus.is_connected());
            if drops != dropped || (was_away && !is_away) {
                dropped = drops;
                self.context.count.all().for_each(|p| self.doubt(p));
            }
            let watched = self.context.count.all().filter(|p| self.is_watched(*p));
            let asked: Vec<_> = watched.map(|p| self.sent_after(p, &watch)).collect();
            for (p, sent) in join_all(asked).await {
                let Some(noticed) = sent.and_then(|sent| watch.on_sent(p, sent)) else { continue };
                self.owned(p, noticed.epoch);
                self.tell(p, noticed.epoch, &noticed.threads);
                if noticed.is_doubtful {
                    self.doubt(p);
                }
            }
        }
    }

    fn is_watched(&self, p: PartitionId) -> bool {
        self.heard[usize::from(p.0)].receiver_count() > 0
    }

    async fn sent_after(&self, p: PartitionId, watch: &Watch) -> (PartitionId, Option<ChangedThreads>) {
        let question = wire::query::encode_changed_threads_query(&watch.question(p));
        let reply = self.context.bus.ask(p, question, WATCH_TIMEOUT).await;
        (p, feed_task::read_reply(reply, wire::query::decode_sent).ok())
    }

    /// Tells the feeds up to which frame their owner has sent.
    fn tell(&self, p: PartitionId, epoch: u64, threads: &[(ThreadId, u64)]) {
        let feeds = self.context.feeds();
        for (thread, number) in threads {
            let Some(entry) = feeds.get(thread) else { continue };
            let is_full = entry.commands.try_send(Command::Sent(epoch, *number)).is_err();
            if is_full && !entry.commands.is_closed() {
                return self.doubt(p);
            }
        }
    }

    /// The partition has an owner of this epoch.
    fn owned(&self, p: PartitionId, epoch: u64) {
        self.heard[usize::from(p.0)].send_if_modified(|heard| {
            let is_new = heard.epoch < epoch;
            heard.epoch = heard.epoch.max(epoch);
            is_new
        });
    }

    fn doubt(&self, p: PartitionId) {
        metrics::doubt();
        self.heard[usize::from(p.0)].send_modify(|heard| heard.doubts += 1);
    }
}

/// Shows a viewer page by page what has been committed since its cursor, until what is left fits one page. False when nothing is left to do
/// for it.
async fn bring_near(context: &Context, thread: &ThreadId, viewer: &mut Viewer) -> bool {
    let Some(cursor) = viewer.cursor.take() else { return true };
    let mut native = Native::new(thread.clone(), cursor);
    let mut backoff = runtime::Backoff::default();
    while viewer.lane.is_open() {
        match store_reads::page(&context.store, thread, native.cursor().base(), Position::MAX).await {
            Ok(page) if page.ends.len() < NEAR => {
                viewer.cursor = Some(native.cursor().clone());
                return true;
            }
            Ok(page) => match catch_up(&mut native, &page, viewer.until.as_ref()) {
                CatchUp::Told(events) => {
                    metrics::events(events.len() as u64);
                    viewer.lane.push_first(events);
                    viewer.lane.drained().await;
                }
                CatchUp::Last(events) => {
                    viewer.lane.push_first(events);
                    viewer.accept();
                    viewer.lane.finish();
                    return false;
                }
                // Whoever waits for the verdict is told; a stream that has begun is told to begin anew by its feed.
                CatchUp::Ahead => {
                    viewer.cursor = Some(native.cursor().clone());
                    return true;
                }
            },
            Err(error) => {
                tracing::debug!(%thread, %error, "the store cannot be read");
                backoff.wait().await;
            }
        }
    }
    false
}
