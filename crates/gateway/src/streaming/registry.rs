//! Feeds by thread: which threads have subscribers on this gateway, and one task for each of them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use model::{MessageKey, PartitionId, Position, Tenant, ThreadId};
use protocols::{Cursor, Native, native};
use runtime::{Heartbeat, spawn_named};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{MissedTickBehavior, interval};
use wire::query::{ChangedThreads, ChangedThreadsQuery};

use crate::backend::Backend;
use crate::metrics::{self, AbortReason};
use crate::streaming::feed_context::{FeedContext, FeedEntry};
use crate::streaming::feed_task;
use crate::streaming::live_listener::{LiveEvent, LiveListener};
use crate::streaming::send_queue::{SendQueue, SubscriberPermit};
use crate::streaming::store_reads;
use crate::streaming::subscriber::{FeedCommand, JoinReceiver, PartitionSignal, SubscribeError, Subscriber};
use feed::{CatchUp, OwnerWatch, StreamPart, Subscription, catch_up};

/// Interval at which the owner of each partition with subscribers is asked for the threads it has
/// sent frames of.
const OWNER_CHECK_INTERVAL: Duration = Duration::from_secs(2);
const OWNER_CHECK_TIMEOUT: Duration = Duration::from_secs(5);
/// A subscriber that lacks fewer ends than this is close enough to join its feed.
const NEAR: usize = 32;
/// Capacity of a feed's command channel (frames and joining subscribers).
const FEED_QUEUE: usize = 1_024;

/// All feeds of a gateway.
#[derive(Clone)]
pub(crate) struct FeedRegistry {
    context: FeedContext,
    /// The signals for all feeds of a partition, by partition.
    signal: Arc<Vec<watch::Sender<PartitionSignal>>>,
}

impl FeedRegistry {
    pub(crate) fn new(backend: Backend) -> Self {
        let signal = Arc::new(backend.count.all().map(|_| watch::Sender::default()).collect());
        Self { context: FeedContext::new(backend), signal }
    }

    /// A registry that shares the feeds, and reads and writes on behalf of a tenant, under
    /// row-level security.
    pub(crate) fn of_tenant(&self, tenant: Option<Tenant>) -> Self {
        let backend = self.context.backend.of_tenant(tenant);
        Self { context: self.context.with_backend(backend), signal: Arc::clone(&self.signal) }
    }

    pub(crate) fn backend(&self) -> &Backend {
        &self.context.backend
    }

    /// Subscribes; events arrive through the send queue. The permit must live as long as the
    /// stream. The receiver resolves when the subscriber has joined, or with an error when its
    /// cursor is not of this thread. If the receiver was dropped, the stream begins with `restart`
    /// instead.
    pub(crate) fn subscribe(
        &self,
        thread: &ThreadId,
        send_queue: SendQueue,
        cursor: Option<Cursor>,
        subscription: Subscription,
    ) -> Result<(SubscriberPermit, JoinReceiver), SubscribeError> {
        let (permit, commands) = self.acquire_permit(thread)?;
        let (context, thread) = (self.context.clone(), thread.clone());
        let (verdict, is_in) = oneshot::channel();
        let mut subscriber = Subscriber { send_queue, cursor, subscription, verdict: Some(verdict) };
        let has_end = subscriber.has_end();
        spawn_named("subscribe", async move {
            let send_queue = subscriber.send_queue.clone();
            let joined = async {
                // Boxed: most subscribers have no cursor and need no room for this future, while
                // all subscribers that wait for one feed wait here.
                if subscriber.cursor.is_some()
                    && !Box::pin(catch_up_from_store(&context, &thread, &mut subscriber)).await
                {
                    return;
                }
                if commands.send(FeedCommand::Join(Box::new(subscriber))).await.is_err() {
                    send_queue.abort(AbortReason::Internal);
                }
            };
            tokio::select! {
                () = joined => {}
                () = context.leaves(has_end) => send_queue.end_with(StreamPart::Encoded(native::drain(context.retry_ms()))),
            }
        });
        Ok((permit, is_in))
    }

    /// Counts one more subscriber of the thread, and starts its feed for the first one.
    fn acquire_permit(
        &self,
        thread: &ThreadId,
    ) -> Result<(SubscriberPermit, mpsc::Sender<FeedCommand>), SubscribeError> {
        let context = &self.context;
        if context.backend.drain.is_cancelled() {
            return Err(SubscribeError::Draining);
        }
        let mut feeds = context.feeds();
        // A feed task that has panicked is replaced.
        if let Some(entry) = feeds.get(thread).filter(|entry| !entry.commands.is_closed()) {
            // The entry itself holds one reference.
            if Arc::strong_count(&entry.subscribers) > context.backend.limits.subscribers_per_thread {
                return Err(SubscribeError::TooManySubscribers);
            }
            return Ok((
                SubscriberPermit { _subscribers: Arc::clone(&entry.subscribers) },
                entry.commands.clone(),
            ));
        }
        if feeds.len() >= context.backend.limits.feeds {
            return Err(SubscribeError::TooManyFeeds);
        }
        let (commands, inbox) = mpsc::channel(FEED_QUEUE);
        let subscribers = Arc::new(());
        let permit = SubscriberPermit { _subscribers: Arc::clone(&subscribers) };
        feeds.insert(thread.clone(), FeedEntry { commands: commands.clone(), subscribers });
        let signal = &self.signal[usize::from(context.backend.partition_of(thread).0)];
        let signal = (signal.clone(), signal.subscribe());
        spawn_named("feed", feed_task::run(context.clone(), thread.clone(), inbox, signal));
        Ok((permit, commands))
    }

    /// Passes frames to their feeds, and detects two conditions that no frame shows: the last frame
    /// of a thread was lost, or a partition has a new owner. A new owner knows no followers, and
    /// frames of the previous owner may be lost. A missing reply delays nothing: each owner is
    /// asked again after the interval.
    pub(crate) async fn watch(self, heartbeat: Heartbeat) {
        let mut watch = OwnerWatch::default();
        let mut replies = FuturesUnordered::new();
        let mut live = LiveListener::new(&self.context.backend);
        let mut checks = interval(OWNER_CHECK_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // Frames before replies: a reply counts the frames that were sent before it.
            tokio::select! {
                biased;
                _ = checks.tick() => {
                    heartbeat.beat();
                    self.context.keep_unfollowed(|p| self.has_feeds(p));
                    let watched = self.context.backend.count.all().filter(|p| self.has_feeds(*p));
                    for p in watched {
                        watch.on_owner(p, self.signal[usize::from(p.0)].borrow().epoch);
                        replies.push(self.ask_owner(p, watch.question(p)));
                    }
                }
                event = live.next() => self.on_live_event(event),
                Some((p, reply)) = replies.next() => {
                    if let Some(reply) = reply.filter(|reply| watch.on_reply(p, reply)) {
                        self.on_owner_reply(p, &reply);
                    }
                }
            }
        }
    }

    fn on_live_event(&self, event: LiveEvent) {
        match event {
            LiveEvent::Begun => {
                self.context.set_listening();
                self.context
                    .backend
                    .count
                    .all()
                    .filter(|p| self.has_feeds(*p))
                    .for_each(|p| self.request_resync(p));
            }
            LiveEvent::Frames(frames) => self.deliver(frames),
            LiveEvent::Owner(p, epoch) if usize::from(p.0) < self.signal.len() => self.owned(p, epoch),
            LiveEvent::Owner(..) => {}
            LiveEvent::Remembered(answer) => self.remembered(answer),
        }
    }

    fn deliver(&self, frames: Vec<(ThreadId, Bytes)>) {
        let feeds = self.context.feeds();
        for (thread, frame) in frames {
            match feeds.get(&thread) {
                // If the frame is dropped, the feed detects the gap in the frame numbers.
                Some(entry) => {
                    if entry.commands.try_send(FeedCommand::Frame(frame)).is_err() {
                        metrics::frame_dropped();
                    }
                }
                None => self.context.unfollow(thread),
            }
        }
    }

    /// A notification that finds no room is dropped: the facts are in the history, and no client
    /// waits for them.
    fn remembered(&self, MessageKey { thread, message }: MessageKey) {
        if let Some(entry) = self.context.feeds().get(&thread)
            && entry.commands.try_send(FeedCommand::Remembered(message)).is_err()
        {
            metrics::frame_dropped();
        }
    }

    fn on_owner_reply(&self, p: PartitionId, reply: &ChangedThreads) {
        self.owned(p, reply.epoch);
        self.notify_sent(p, reply.epoch, &reply.threads);
        if !reply.is_complete {
            self.request_resync(p);
        }
    }

    fn has_feeds(&self, p: PartitionId) -> bool {
        self.signal[usize::from(p.0)].receiver_count() > 0
    }

    async fn ask_owner(
        &self,
        p: PartitionId,
        question: ChangedThreadsQuery,
    ) -> (PartitionId, Option<ChangedThreads>) {
        let question = ChangedThreadsQuery { unfollowed: self.context.take_unfollowed(p), ..question };
        let question = wire::query::encode_changed_threads_query(&self.context.backend.id, &question);
        let decode = wire::query::decode_changed_threads;
        (p, self.context.backend.query_owner(p, question, OWNER_CHECK_TIMEOUT, decode).await)
    }

    /// Notifies each feed of the last frame that its owner has sent.
    fn notify_sent(&self, p: PartitionId, epoch: u64, threads: &[(ThreadId, u64)]) {
        let feeds = self.context.feeds();
        for (thread, number) in threads {
            let Some(entry) = feeds.get(thread) else { continue };
            let is_full = entry.commands.try_send(FeedCommand::Sent(epoch, *number)).is_err();
            if is_full && !entry.commands.is_closed() {
                return self.request_resync(p);
            }
        }
    }

    /// Records that the partition has an owner of this epoch.
    fn owned(&self, p: PartitionId, epoch: u64) {
        PartitionSignal::owned(&self.signal[usize::from(p.0)], epoch);
    }

    fn request_resync(&self, p: PartitionId) {
        metrics::resync();
        self.signal[usize::from(p.0)].send_modify(|signal| signal.resyncs += 1);
    }
}

/// Sends a subscriber, page by page, the messages that were committed since its cursor, until the
/// rest fits one page. Returns false when nothing is left to do for the subscriber.
async fn catch_up_from_store(context: &FeedContext, thread: &ThreadId, subscriber: &mut Subscriber) -> bool {
    let Some(cursor) = subscriber.cursor.take() else { return true };
    let mut native = Native::new(thread.clone(), cursor);
    let mut backoff = runtime::Backoff::default();
    while subscriber.send_queue.is_open() {
        match store_reads::page(context.backend.store(), thread, native.cursor().base(), Position::MAX, true)
            .await
        {
            Ok(page) if page.ends.len() < NEAR => {
                subscriber.cursor = Some(native.cursor().clone());
                return true;
            }
            Ok(page) => match catch_up(&mut native, &page, &subscriber.subscription) {
                CatchUp::Events(events) => {
                    metrics::events(events.len() as u64);
                    subscriber.send_queue.push_first(events);
                    // The response must begin first: nothing is taken from the queue before it
                    // begins.
                    subscriber.accept();
                    subscriber.send_queue.drained().await;
                }
                CatchUp::Restart(event) => {
                    subscriber.send_queue.push_first(vec![event]);
                    subscriber.accept();
                }
                CatchUp::Last(events) => {
                    subscriber.send_queue.push_first(events);
                    subscriber.accept();
                    subscriber.send_queue.finish();
                    return false;
                }
                // The feed rejects the cursor, or sends `restart` on a stream that has begun.
                CatchUp::Ahead => {
                    subscriber.cursor = Some(native.cursor().clone());
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
