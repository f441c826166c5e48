//! Drives one feed: takes the frames of its thread, asks the owner, reads the store, and sends its
//! events to the subscribers.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use feed::{
    BadCursor, Feed, FeedEvent, JoinResult, StorePage, StoreRead, StreamPart, WaitOutcome, WaitingSubscribers,
};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use model::{MessageId, ThreadId, Timestamp, WaitNotice};
use protocols::native::{self, NativeEvent};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep};
use wire::live::FromOwner;
use wire::query::SnapshotReply;

use crate::metrics::{self, AbortReason};

use crate::streaming::feed_context::FeedContext;
use crate::streaming::remembered;
use crate::streaming::send_queue::SendQueue;
use crate::streaming::store_reads::{self, Fetched};
use crate::streaming::subscriber::{FeedCommand, PartitionSignal, Subscriber};

/// Delay between the departure of a subscriber and the cleanup, which covers all subscribers that
/// left in the meantime.
const FORGET_DELAY: Duration = Duration::from_millis(100);
/// Maximum time that a feed which has received nothing is kept after its last subscriber has left:
/// the thread may not exist.
const SILENT_LINGER_MS: i64 = 100;
/// Maximum number of commands (mostly frames) taken in before their events are sent to the
/// subscribers.
const COMMANDS: usize = 64;
/// A burst is sent in parts of at most this fraction (1/8) of a subscriber's allowed lag.
const LAG_PARTS: usize = 8;
/// Subscribers that get an event before the task yields, so that the first of them can write it.
/// The group is small so that the touched data is still in the processor's cache.
const GROUP: usize = 32;
/// A worker that does not own the partition answers at once; an owner may be busy or far away.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(5);

/// A read or query in progress.
type Fetch<T> = Option<BoxFuture<'static, Option<T>>>;

struct FeedTask {
    context: FeedContext,
    thread: ThreadId,
    feed: Feed,
    /// Announces to all feeds of the partition each owner of which this feed learns.
    of_partition: watch::Sender<PartitionSignal>,
    subscribers: Vec<Subscriber>,
    waiting: WaitingSubscribers<Subscriber>,
    ask: Fetch<SnapshotReply>,
    /// The read that the feed wants.
    read: Fetch<Fetched>,
    /// The read that the waiting subscribers want.
    missed: Fetch<Fetched>,
    /// Answers with remembered facts that native clients have not been shown yet.
    remembered: VecDeque<MessageId>,
    /// The encoded facts of the answer taken last from `remembered`.
    facts: Fetch<Bytes>,
    /// Notified when a subscriber has gone.
    departures: Arc<Notify>,
    forget_at: Option<Instant>,
    idle_since: Option<Timestamp>,
    /// True once something of the thread has arrived at this feed.
    has_shown: bool,
    /// Subscribers have been notified that some open messages are not shown.
    has_left_out: bool,
    /// During a drain: the time of each subscriber's notice, in descending order (the next one is
    /// last).
    drain_notices: Option<Vec<(Instant, SendQueue)>>,
}

/// Events that are sent together.
#[derive(Default)]
struct Burst {
    /// For native clients.
    encoded: Vec<StreamPart>,
    /// The same events for encoders of other protocols; empty while no subscriber needs them.
    values: Vec<StreamPart>,
}

/// Runs until the thread has had no subscriber for the linger time, or the gateway drains.
pub(crate) async fn run(
    context: FeedContext,
    thread: ThreadId,
    mut commands: mpsc::Receiver<FeedCommand>,
    (of_partition, signal): (watch::Sender<PartitionSignal>, watch::Receiver<PartitionSignal>),
) {
    metrics::feeds(1.0);
    let begun = tokio::select! {
        () = context.listening() => true,
        // Subscribers of a feed that has not begun get their drain notice, too.
        () = context.leaves(true) => false,
    };
    if begun {
        FeedTask::new(context.clone(), thread, of_partition).drive(&mut commands, signal).await;
    }
    commands.close();
    while let Some(command) = commands.recv().await {
        if let FeedCommand::Join(subscriber) = command {
            send_drain_notice(&context, &subscriber.send_queue);
        }
    }
    metrics::feeds(-1.0);
}

fn send_drain_notice(context: &FeedContext, send_queue: &SendQueue) {
    match context.backend.drain.is_cancelled() {
        true => send_queue.end_with(StreamPart::Encoded(native::drain(context.retry_ms()))),
        false => send_queue.abort(AbortReason::Internal),
    }
}

impl FeedTask {
    fn new(context: FeedContext, thread: ThreadId, of_partition: watch::Sender<PartitionSignal>) -> Self {
        let feed = Feed::new(thread.clone(), context.backend.limits.feed_bytes);
        Self {
            context,
            waiting: WaitingSubscribers::new(thread.clone()),
            thread,
            feed,
            of_partition,
            subscribers: Vec::new(),
            ask: None,
            read: None,
            missed: None,
            remembered: VecDeque::new(),
            facts: None,
            departures: Arc::default(),
            forget_at: None,
            idle_since: None,
            has_shown: false,
            has_left_out: false,
            drain_notices: None,
        }
    }

    /// Boxed instead of an `async fn`, whose future would hold its arguments twice. Every function
    /// that passes the future on its way into a task would reserve room for it.
    fn drive<'a>(
        self,
        commands: &'a mut mpsc::Receiver<FeedCommand>,
        signal: watch::Receiver<PartitionSignal>,
    ) -> BoxFuture<'a, ()> {
        let (mut this, mut signal) = (self, signal);
        Box::pin(async move { this.run(commands, &mut signal).await })
    }

    async fn run(
        &mut self,
        commands: &mut mpsc::Receiver<FeedCommand>,
        signal: &mut watch::Receiver<PartitionSignal>,
    ) {
        let drain = self.context.backend.drain.clone();
        let mut known = *signal.borrow_and_update();
        self.feed.on_owner(known.epoch);
        let (mut timer, mut timer_at) = (pin!(sleep(Duration::ZERO)), None);
        loop {
            tokio::select! {
                biased;
                () = drain.cancelled(), if self.drain_notices.is_none() => self.begin_drain(),
                Some(command) = commands.recv() => {
                    self.on_command(command);
                    // Commands that arrived together are shown together.
                    for _ in 1..COMMANDS {
                        let Ok(command) = commands.try_recv() else { break };
                        self.on_command(command);
                    }
                }
                reply = pending_or_never(&mut self.ask) => self.on_reply(reply),
                fetched = pending_or_never(&mut self.read) => self.on_read(fetched),
                fetched = pending_or_never(&mut self.missed) => self.on_missed(fetched),
                facts = pending_or_never(&mut self.facts) => self.show_facts(facts),
                Ok(()) = signal.changed() => {
                    let before = std::mem::replace(&mut known, *signal.borrow_and_update());
                    self.feed.on_owner(known.epoch);
                    if known.resyncs != before.resyncs {
                        self.feed.on_resync();
                    }
                }
                () = self.departures.notified() => {
                    self.forget_at.get_or_insert(Instant::now() + FORGET_DELAY);
                }
                () = timer.as_mut(), if timer_at.is_some() => timer_at = None,
            }
            self.pump().await;
            self.report_left_out();
            self.admit_waiting();
            self.fetch();
            self.forget_departed();
            if self.send_drain_notices() || self.retire() {
                return;
            }
            if let Some(at) = self.poll_timeout()
                && timer_at.is_none_or(|timer_at| at < timer_at)
            {
                timer.as_mut().reset(at);
                timer_at = Some(at);
            }
        }
    }

    /// The next time at which work is due that no event triggers.
    fn poll_timeout(&self) -> Option<Instant> {
        let retire_at = self.idle_since.map(|at| at.plus_ms(self.linger_ms()));
        let due = [self.feed.poll_timeout(), self.waiting.poll_timeout(&self.feed), retire_at];
        let due = due.into_iter().flatten().min().map(|at| {
            let delay_ms = at.since_ms(self.context.backend.now());
            Instant::now() + Duration::from_millis(delay_ms.try_into().unwrap_or_default())
        });
        let notices = self.drain_notices.as_ref();
        let notice_at =
            notices.map(|all| all.last().map_or_else(|| self.context.last_notice_at(), |(at, _)| *at));
        due.into_iter().chain(notice_at).chain(self.forget_at).min()
    }

    fn on_command(&mut self, command: FeedCommand) {
        let mut subscriber = match command {
            FeedCommand::Join(subscriber) => *subscriber,
            FeedCommand::Frame(frame) => return self.on_frame(&frame),
            FeedCommand::Sent(epoch, number) => return self.feed.on_sent(epoch, number),
            FeedCommand::Remembered(answer) => {
                if self.remembered.len() < COMMANDS {
                    self.remembered.push_back(answer);
                }
                return;
            }
        };
        if let Some(drain_notices) = &mut self.drain_notices {
            // This subscriber joined before the drain.
            drain_notices
                .push((self.context.drain_notice_at(subscriber.has_end()), subscriber.send_queue.clone()));
            drain_notices.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        }
        subscriber.send_queue.on_departure(&self.departures);
        let (cursor, subscription) = (subscriber.cursor.take(), subscriber.subscription.clone());
        self.waiting.push(subscriber, cursor, subscription, &self.feed);
    }

    fn on_frame(&mut self, frame: &Bytes) {
        match wire::live::decode(frame) {
            Ok(FromOwner::Frame(frame)) => self.feed.on_frame(frame, self.context.backend.now()),
            Ok(FromOwner::Notice(notice)) => self.report(&notice),
            Err(error) => {
                metrics::frame_decode_error();
                tracing::warn!(%error, "a frame of an owner cannot be read");
            }
        }
    }

    /// Informs the subscribers why an answer has not come yet. The notice is not stored: owners
    /// repeat it while it applies.
    fn report(&mut self, notice: &WaitNotice) {
        let (message, reason) = (notice.message.clone(), notice.reason);
        let encoded = native::waiting(&self.thread, &message, reason);
        let event = NativeEvent::Waiting { message, reason };
        let value = StreamPart::Value(Arc::new(FeedEvent { bytes: encoded.clone(), event }));
        let encoded = StreamPart::Encoded(encoded);
        metrics::events(self.subscribers.len() as u64);
        for subscriber in &self.subscribers {
            let part = if subscriber.subscription.takes_values() { &value } else { &encoded };
            subscriber.send_queue.push(std::slice::from_ref(part));
        }
    }

    /// Informs the subscribers once that some open messages are not shown.
    fn report_left_out(&mut self) {
        let leaves_out = self.feed.leaves_out();
        if leaves_out && !std::mem::replace(&mut self.has_left_out, leaves_out) {
            let part = StreamPart::Encoded(native::left_out(&self.thread));
            for subscriber in self.subscribers.iter().filter(|one| !one.subscription.takes_values()) {
                subscriber.send_queue.push(std::slice::from_ref(&part));
            }
        }
        self.has_left_out = leaves_out;
    }

    /// Shows native clients the facts remembered since an answer. Streams of other protocols ended
    /// with the answer.
    fn show_facts(&mut self, event: Option<Bytes>) {
        self.facts = None;
        let Some(event) = event else { return };
        let part = StreamPart::Encoded(event);
        for subscriber in self.subscribers.iter().filter(|one| !one.subscription.takes_values()) {
            metrics::events(1);
            subscriber.send_queue.push(std::slice::from_ref(&part));
        }
    }

    fn on_reply(&mut self, reply: Option<SnapshotReply>) {
        self.ask = None;
        let now = self.context.backend.now();
        match reply {
            Some(reply) => self.feed.on_reply(reply, now),
            None => self.feed.on_snapshot_failed(now),
        }
        PartitionSignal::owned(&self.of_partition, self.feed.epoch().unwrap_or_default());
    }

    fn on_read(&mut self, fetched: Option<Fetched>) {
        self.read = None;
        let now = self.context.backend.now();
        match fetched {
            Some(Fetched::Last(position)) => self.feed.on_last(position, now),
            Some(Fetched::Page(page)) => self.feed.on_page(&page, now),
            None => self.feed.on_read_failed(now),
        }
    }

    fn on_missed(&mut self, fetched: Option<Fetched>) {
        self.missed = None;
        let now = self.context.backend.now();
        match fetched {
            Some(Fetched::Last(last)) => self.waiting.on_last(last, &self.feed, now, Subscriber::begin),
            Some(Fetched::Page(page)) => self.catch_up(&page),
            None => self.waiting.on_read_failed(now),
        }
    }

    /// Sends waiting subscribers the messages of a page that ended after their cursors.
    fn catch_up(&mut self, page: &StorePage) {
        let send = |subscriber: &Subscriber, events: Vec<StreamPart>| {
            metrics::events(events.len() as u64);
            subscriber.send_queue.push_first(events);
        };
        for (subscriber, fate) in self.waiting.on_page(page, &self.feed, send) {
            self.settle(subscriber, fate);
        }
    }

    /// Admits the waiting subscribers that have caught up with the feed.
    fn admit_waiting(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        for (subscriber, fate) in self.waiting.admit_waiting(&mut self.feed, self.context.backend.now()) {
            self.settle(subscriber, fate);
        }
    }

    fn settle(&mut self, mut subscriber: Subscriber, fate: WaitOutcome) {
        match fate {
            WaitOutcome::Joined(first) => self.admit(subscriber, first),
            WaitOutcome::Finished => {
                subscriber.accept();
                subscriber.send_queue.finish();
            }
            WaitOutcome::Refused(why) => self.refuse(subscriber, why),
            WaitOutcome::OverBudget => subscriber.send_queue.abort(AbortReason::OverBudget),
        }
    }

    fn admit(&mut self, mut subscriber: Subscriber, first: Vec<StreamPart>) {
        metrics::events(first.len() as u64);
        subscriber.send_queue.push_first(first);
        subscriber.accept();
        if self.has_left_out && !subscriber.subscription.takes_values() {
            subscriber.send_queue.push(&[StreamPart::Encoded(native::left_out(&self.thread))]);
        }
        self.subscribers.push(subscriber);
    }

    /// Refuses the request if it has not been answered yet; otherwise its stream gets `restart`.
    fn refuse(&mut self, mut subscriber: Subscriber, why: BadCursor) {
        if subscriber.verdict.take().is_some_and(|verdict| verdict.send(Err(why)).is_ok()) {
            return;
        }
        match self.feed.restart(&subscriber.subscription) {
            JoinResult::Joined(first) => self.admit(subscriber, first),
            _ => subscriber.send_queue.abort(AbortReason::OverBudget),
        }
    }

    fn forget_departed(&mut self) {
        if self.forget_at.is_some_and(|at| at <= Instant::now()) {
            self.forget_at = None;
            self.subscribers.retain(|subscriber| subscriber.send_queue.is_open());
            self.waiting.retain(|subscriber| subscriber.send_queue.is_open());
        }
    }

    /// True when the feed has ended: it has had no subscriber for the linger time, and none is
    /// about to join.
    fn retire(&mut self) -> bool {
        if !self.subscribers.is_empty() || !self.waiting.is_empty() {
            self.idle_since = None;
            return false;
        }
        let now = self.context.backend.now();
        if now.since_ms(*self.idle_since.get_or_insert(now)) < self.linger_ms() {
            return false;
        }
        self.idle_since = Some(now);
        self.context.retire(&self.thread)
    }

    /// A silent feed lingers only briefly: otherwise a client that keeps opening and leaving
    /// streams of new names would take up all feeds.
    fn linger_ms(&self) -> i64 {
        let most = self.context.backend.limits.linger_ms;
        if self.has_shown { most } else { most.min(SILENT_LINGER_MS) }
    }

    /// Sends every event to the subscribers. A burst larger than a fraction of the allowed lag is
    /// sent in parts, with time between them: sent at once, it would cut every subscriber, however
    /// fast.
    async fn pump(&mut self) {
        let counts = self.feed.take_counts();
        if counts != feed::FeedCounts::default() {
            metrics::feed(counts.left_out, counts.gaps_filled, counts.filtered);
        }
        let most = self.context.backend.limits.lag_bytes / LAG_PARTS;
        let (mut burst, mut size, mut has_encoders) = (Burst::default(), 0, None);
        while let Some(event) = self.feed.next_event() {
            if size + event.bytes.len() > most && size > 0 {
                self.show(&mut burst).await;
                tokio::task::yield_now().await;
                size = 0;
            }
            size += event.bytes.len();
            let ended = event.event.ended().filter(|ended| self.is_awaited(ended)).cloned();
            burst.encoded.push(StreamPart::Encoded(event.bytes.clone()));
            if *has_encoders.get_or_insert_with(|| self.has_encoders()) {
                burst.values.push(StreamPart::Value(Arc::new(event)));
            }
            if let Some(message) = ended {
                self.show(&mut burst).await;
                self.release(&message);
            }
        }
        self.show(&mut burst).await;
    }

    /// Pushes the burst to each subscriber at once, so that it becomes one write there.
    async fn show(&mut self, burst: &mut Burst) {
        if burst.encoded.is_empty() {
            return;
        }
        self.has_shown = true;
        metrics::events((burst.encoded.len() * self.subscribers.len()) as u64);
        let mut are_all_open = true;
        let mut groups = self.subscribers.chunks(GROUP).peekable();
        while let Some(group) = groups.next() {
            for subscriber in group {
                let takes_values = subscriber.subscription.takes_values();
                let events = if takes_values { &burst.values } else { &burst.encoded };
                are_all_open &= subscriber.send_queue.push(events);
            }
            if groups.peek().is_some() {
                tokio::task::yield_now().await;
            }
        }
        if !are_all_open {
            self.subscribers.retain(|subscriber| subscriber.send_queue.is_open());
        }
        burst.encoded.clear();
        burst.values.clear();
    }

    fn has_encoders(&self) -> bool {
        self.subscribers.iter().any(|subscriber| subscriber.subscription.takes_values())
    }

    fn is_awaited(&self, message: &MessageId) -> bool {
        self.subscribers.iter().any(|subscriber| subscriber.subscription.until() == Some(message))
    }

    /// Ends the streams of subscribers that wanted only this message.
    fn release(&mut self, message: &MessageId) {
        self.subscribers.retain(|subscriber| {
            let is_last = subscriber.subscription.until() == Some(message);
            if is_last {
                subscriber.send_queue.finish();
            }
            !is_last
        });
    }

    /// Starts the snapshot request and the reads that are wanted.
    fn fetch(&mut self) {
        let now = self.context.backend.now();
        if self.facts.is_none()
            && let Some(answer) = self.remembered.pop_front()
        {
            self.facts = Some(read_facts(self.context.clone(), self.thread.clone(), answer).boxed());
        }
        if let Some(ask) = self.feed.poll_snapshot_request(now) {
            self.ask = Some(request_snapshot(self.context.clone(), ask).boxed());
        }
        if let Some(read) = self.feed.poll_store_read(now) {
            self.read = Some(read_store(self.context.clone(), self.thread.clone(), read).boxed());
        }
        if let Some(read) = self.waiting.poll_store_read(&self.feed, now) {
            self.missed = Some(read_store(self.context.clone(), self.thread.clone(), read).boxed());
        }
    }

    /// Spreads the drain notices over time, because clients that are sent away together return
    /// together. A subscriber is shown new events until its notice.
    fn begin_drain(&mut self) {
        let all = self.subscribers.iter().chain(self.waiting.subscribers());
        let drain_notices = all.map(|subscriber| {
            (self.context.drain_notice_at(subscriber.has_end()), subscriber.send_queue.clone())
        });
        let mut drain_notices: Vec<_> = drain_notices.collect();
        drain_notices.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        self.drain_notices = Some(drain_notices);
    }

    /// True when no subscriber is left.
    fn send_drain_notices(&mut self) -> bool {
        let Some(drain_notices) = &mut self.drain_notices else { return false };
        let now = Instant::now();
        while let Some((_, send_queue)) = drain_notices.pop_if(|(at, _)| *at <= now) {
            send_drain_notice(&self.context, &send_queue);
        }
        // A subscriber that joined before the drain may still be on its way here.
        drain_notices.is_empty() && now >= self.context.last_notice_at()
    }
}

async fn pending_or_never<T>(fetch: &mut Fetch<T>) -> Option<T> {
    match fetch {
        Some(fetch) => fetch.await,
        None => std::future::pending().await,
    }
}

async fn request_snapshot(context: FeedContext, ask: wire::query::SnapshotRequest) -> Option<SnapshotReply> {
    let partition = context.backend.partition_of(&ask.thread);
    let query = wire::query::encode_snapshot_request(&context.backend.id, &ask);
    context.backend.query_owner(partition, query, SNAPSHOT_TIMEOUT, wire::query::decode_snapshot).await
}

/// The event for the facts remembered since an answer; `None` when there are none.
async fn read_facts(context: FeedContext, thread: ThreadId, answer: MessageId) -> Option<Bytes> {
    match remembered::of_answer(context.backend.store(), &thread, &answer).await {
        Ok(facts) => (!facts.is_empty()).then(|| native::remembered(&thread, &answer, &facts)),
        Err(error) => {
            tracing::debug!(%thread, %error, "the store cannot be read");
            None
        }
    }
}

async fn read_store(context: FeedContext, thread: ThreadId, read: StoreRead) -> Option<Fetched> {
    match store_reads::fetch(context.backend.store(), &thread, read).await {
        Ok(fetched) => Some(fetched),
        Err(error) => {
            tracing::debug!(%thread, %error, "the store cannot be read");
            None
        }
    }
}
