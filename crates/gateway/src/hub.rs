//! Which threads have viewers here, and one driver for each of them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use adapters::{Cursor, Native, Seen, native};
use bus::Bus;
use bytes::Bytes;
use futures_util::future::join_all;
use model::{Bucket, MessageId, PartitionCount, PartitionId, Position, Tenant, ThreadId, Timestamp};
use runtime::{Clock, Heartbeat, spawn_named};
use store::Store;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::driver::{self, Command, Viewer};
use crate::feed::{StoreRead, catch_up};
use crate::lane::Lane;
use crate::metrics::{self, Cut};
use crate::reads;

/// How often each partition with viewers is asked who owns it.
const WATCH_EVERY: Duration = Duration::from_secs(2);
const WATCH_TIMEOUT: Duration = Duration::from_secs(1);
/// Feeds that begin at the same time: more than the store has connections for would only wait there, and larger.
const BEGINNING: usize = 64;

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
    /// How long a head may take, and how long a connection may have nothing to do.
    pub head_timeout: Duration,
    /// How long a body may take.
    pub body_timeout: Duration,
    /// How long a client may take nothing of what is there for it.
    pub write_timeout: Duration,
    /// How long connections have to end when the gateway drains.
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
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
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
}

/// Who leaves in a drain.
#[derive(Debug, Default)]
struct Leaving {
    all: OnceLock<u32>,
    next: AtomicU32,
}

struct Entry {
    commands: mpsc::Sender<Command>,
    viewers: Arc<()>,
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

    /// How long after the drain began the next viewer gets its notice: a thousand a second, but all within half the time
    /// that connections have.
    pub(crate) fn leaves_in(&self) -> Duration {
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
    /// One generation per partition; it rises when something may have been missed there.
    doubts: Arc<Vec<watch::Sender<u64>>>,
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
        let context =
            Context { bus, store, limits, drain, clock, count, feeds, goodbyes, beginning, leaving };
        Self { context, doubts: Arc::new(count.all().map(|_| watch::Sender::new(0)).collect()) }
    }

    /// The same for the requests of a tenant: what is read and written for them stands behind the database's wall.
    pub(crate) fn of_tenant(&self, tenant: Option<Tenant>) -> Self {
        let store = self.context.store.of_tenant(tenant);
        Self { context: Context { store, ..self.context.clone() }, doubts: Arc::clone(&self.doubts) }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.context.store
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Lets a viewer in; what it gets comes through its lane. The seat must live as long as the stream.
    pub(crate) fn attach(
        &self,
        thread: &ThreadId,
        lane: Lane,
        cursor: Option<Cursor>,
    ) -> Result<Seat, Refused> {
        self.bring(thread, Viewer { lane, cursor, until: None, joined: None })
    }

    /// Lets a viewer in who wants one message and nothing after its end. When the receiver is told, the viewer misses
    /// nothing of what is published from then on.
    pub(crate) fn attach_until(
        &self,
        thread: &ThreadId,
        lane: Lane,
        after: Position,
        message: &MessageId,
    ) -> Result<(Seat, oneshot::Receiver<()>), Refused> {
        let mut cursor = Cursor::at(after);
        cursor.set(message, Seen::default());
        let (joined, is_joined) = oneshot::channel();
        let until = Some(message.clone());
        let seat = self.bring(thread, Viewer { lane, cursor: Some(cursor), until, joined: Some(joined) })?;
        Ok((seat, is_joined))
    }

    fn bring(&self, thread: &ThreadId, mut viewer: Viewer) -> Result<Seat, Refused> {
        let (seat, commands) = self.seat(thread)?;
        let (context, thread) = (self.context.clone(), thread.clone());
        spawn_named("attach", async move {
            let lane = viewer.lane.clone();
            let joined = async {
                if let Some(cursor) = viewer.cursor.take() {
                    // On the heap: most viewers have no cursor, and all who wait for one feed wait here.
                    viewer.cursor = Some(Box::pin(bring_near(&context, &thread, &lane, cursor)).await);
                }
                if commands.send(Command::Join(Box::new(viewer))).await.is_err() {
                    lane.cut(Cut::Internal);
                }
            };
            tokio::select! {
                () = joined => {}
                () = context.drain.cancelled() => lane.end_with(native::drain(context.retry_ms())),
            }
        });
        Ok(seat)
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
        let doubts = self.doubts[usize::from(context.partition_of(thread).0)].subscribe();
        spawn_named("feed", driver::run(context.clone(), thread.clone(), inbox, doubts));
        Ok((seat, commands))
    }

    /// Watches for what no frame tells: another owner (what the last one sent may be lost), and times without NATS.
    pub(crate) async fn watch(self, pulse: Heartbeat) {
        let probes: Vec<_> = self.context.count.all().map(|p| probe(p, self.context.count)).collect();
        let mut epochs: HashMap<PartitionId, u64> = HashMap::new();
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
            let watched = self.context.count.all().zip(&probes).filter(|(p, _)| self.is_watched(*p));
            for (p, epoch) in join_all(watched.map(|(p, thread)| self.epoch_of(p, thread))).await {
                if let Some(epoch) = epoch
                    && epochs.insert(p, epoch).is_some_and(|known| known != epoch)
                {
                    self.doubt(p);
                }
            }
        }
    }

    fn is_watched(&self, p: PartitionId) -> bool {
        self.doubts[usize::from(p.0)].receiver_count() > 0
    }

    async fn epoch_of(&self, p: PartitionId, thread: &ThreadId) -> (PartitionId, Option<u64>) {
        let question = wire::ask::encode_ask(&wire::ask::Ask { thread: thread.clone(), have: Vec::new() });
        let reply = driver::read_reply(self.context.bus.ask(p, question, WATCH_TIMEOUT).await);
        (p, reply.ok().map(|reply| reply.epoch))
    }

    fn doubt(&self, p: PartitionId) {
        metrics::doubt();
        self.doubts[usize::from(p.0)].send_modify(|generation| *generation += 1);
    }
}

/// A thread of the partition that does not exist: an answer about it is an epoch and nothing else.
fn probe(p: PartitionId, count: PartitionCount) -> ThreadId {
    let names = (0_u32..).filter_map(|n| ThreadId::parse(&format!("-watch-{n}")).ok());
    let mut own = names.filter(|thread| Bucket::of(thread).partition(count) == p);
    // Every partition has names: FNV-1a spreads.
    #[allow(clippy::expect_used, reason = "an endless iterator has a next element")]
    own.next().expect("there are names without end")
}

/// Shows a viewer page by page what has been committed since its cursor, until what is left fits one page.
async fn bring_near(context: &Context, thread: &ThreadId, lane: &Lane, cursor: Cursor) -> Cursor {
    let mut native = Native::new(thread.clone(), cursor);
    let mut backoff = runtime::Backoff::default();
    loop {
        let keys = native.cursor().open().map(|(message, _)| message.clone()).collect();
        let read = StoreRead { after: native.cursor().base(), keys };
        match reads::view(&context.store, thread, &read).await {
            Ok(view) if view.is_whole => return native.cursor().clone(),
            Ok(view) => {
                let events: Vec<Bytes> = catch_up(&mut native, &view);
                metrics::events(events.len() as u64);
                lane.push_first(events);
                lane.drained().await;
            }
            Err(error) => {
                tracing::debug!(%thread, %error, "the store cannot be read");
                backoff.wait().await;
            }
        }
        if !lane.is_open() {
            return native.cursor().clone();
        }
    }
}
