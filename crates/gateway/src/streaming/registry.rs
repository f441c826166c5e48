//! Which threads have viewers here, and one driver for each of them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use model::{MessageId, PartitionId, Position, Tenant, ThreadId};
use protocols::{Cursor, Native, native};
use runtime::{Heartbeat, spawn_named};
use tokio::sync::{mpsc, oneshot, watch};
use wire::query::ChangedThreads;

use crate::backend::Backend;
use crate::metrics::{self, Cut};
use crate::streaming::feed_context::{Entry, FeedContext};
use crate::streaming::feed_task;
use crate::streaming::send_queue::Lane;
use crate::streaming::store_reads;
use crate::streaming::subscriber::{Command, Heard, Refused, Seat, Verdict, Viewer};
use feed::{CatchUp, OwnerWatch, catch_up};

/// How often the owner of each partition with viewers is asked of which threads it has sent frames.
const WATCH_EVERY: Duration = Duration::from_secs(2);
const WATCH_TIMEOUT: Duration = Duration::from_secs(5);
/// A viewer that lacks fewer ends than this is near enough to join its feed.
const NEAR: usize = 32;

/// All feeds of a gateway.
#[derive(Clone)]
pub(crate) struct Hub {
    context: FeedContext,
    /// What concerns every feed of a partition.
    heard: Arc<Vec<watch::Sender<Heard>>>,
}

impl Hub {
    pub(crate) fn new(backend: Backend) -> Self {
        let heard = Arc::new(backend.count.all().map(|_| watch::Sender::default()).collect());
        Self { context: FeedContext::new(backend), heard }
    }

    /// The same for the requests of a tenant: what is read and written for them is subject to row-level security.
    pub(crate) fn of_tenant(&self, tenant: Option<Tenant>) -> Self {
        let backend = self.context.backend.of_tenant(tenant);
        Self { context: self.context.with_backend(backend), heard: Arc::clone(&self.heard) }
    }

    pub(crate) fn backend(&self) -> &Backend {
        &self.context.backend
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
        if context.backend.drain.is_cancelled() {
            return Err(Refused::Draining);
        }
        let mut feeds = context.feeds();
        // A driver that has ended without a word (it panicked) is replaced.
        if let Some(entry) = feeds.get(thread).filter(|entry| !entry.commands.is_closed()) {
            // One of the count is the entry's own.
            if Arc::strong_count(&entry.viewers) > context.backend.limits.viewers_per_thread {
                return Err(Refused::Viewers);
            }
            return Ok((Seat { _viewers: Arc::clone(&entry.viewers) }, entry.commands.clone()));
        }
        if feeds.len() >= context.backend.limits.feeds {
            return Err(Refused::Feeds);
        }
        let (commands, inbox) = mpsc::channel(256);
        let viewers = Arc::new(());
        let seat = Seat { _viewers: Arc::clone(&viewers) };
        feeds.insert(thread.clone(), Entry { commands: commands.clone(), viewers });
        let heard = self.heard[usize::from(context.backend.partition_of(thread).0)].subscribe();
        spawn_named("feed", feed_task::run(context.clone(), thread.clone(), inbox, heard));
        Ok((seat, commands))
    }

    /// Watches for what no frame tells: that the last one of a thread was lost, another owner (what the one before it sent may be lost), and
    /// times without NATS.
    pub(crate) async fn watch(self, pulse: Heartbeat) {
        let mut watch = OwnerWatch::default();
        let mut dropped = self.context.backend.bus.slow_consumer_drops();
        let mut is_away = false;
        loop {
            tokio::time::sleep(WATCH_EVERY).await;
            pulse.beat();
            let drops = self.context.backend.bus.slow_consumer_drops();
            let was_away = std::mem::replace(&mut is_away, !self.context.backend.bus.is_connected());
            if drops != dropped || (was_away && !is_away) {
                dropped = drops;
                self.context.backend.count.all().for_each(|p| self.doubt(p));
            }
            let watched = self.context.backend.count.all().filter(|p| self.is_watched(*p));
            let asked: Vec<_> = watched.map(|p| self.sent_after(p, &watch)).collect();
            for (p, sent) in join_all(asked).await {
                let Some(noticed) = sent.and_then(|sent| watch.on_sent(p, sent)) else { continue };
                self.owned(p, noticed.epoch);
                self.tell(p, noticed.epoch, &noticed.threads);
                if noticed.needs_resync {
                    self.doubt(p);
                }
            }
        }
    }

    fn is_watched(&self, p: PartitionId) -> bool {
        self.heard[usize::from(p.0)].receiver_count() > 0
    }

    async fn sent_after(&self, p: PartitionId, watch: &OwnerWatch) -> (PartitionId, Option<ChangedThreads>) {
        let question = wire::query::encode_changed_threads_query(&watch.question(p));
        (
            p,
            self.context
                .backend
                .query_owner(p, question, WATCH_TIMEOUT, wire::query::decode_changed_threads)
                .await,
        )
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
async fn bring_near(context: &FeedContext, thread: &ThreadId, viewer: &mut Viewer) -> bool {
    let Some(cursor) = viewer.cursor.take() else { return true };
    let mut native = Native::new(thread.clone(), cursor);
    let mut backoff = runtime::Backoff::default();
    while viewer.lane.is_open() {
        match store_reads::page(context.backend.store(), thread, native.cursor().base(), Position::MAX).await
        {
            Ok(page) if page.ends.len() < NEAR => {
                viewer.cursor = Some(native.cursor().clone());
                return true;
            }
            Ok(page) => match catch_up(&mut native, &page, viewer.until.as_ref()) {
                CatchUp::NativeEvent(events) => {
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
