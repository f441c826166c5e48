//! Drives one feed: takes the frames of its thread, asks its owner, reads the store, and hands its events to the subscribers.

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

/// After a subscriber has gone; those that go in the meantime are forgotten with it.
const FORGET_DELAY: Duration = Duration::from_millis(100);
/// For so long at most a thread of which nothing came is followed after its last viewer left: it may be none at all.
const SILENT_LINGER_MS: i64 = 100;
/// Commands, of which most are frames, that are taken in before subscribers are shown what is in them.
const COMMANDS: usize = 64;
/// Of what a subscriber may lag, one in so many is handed to it at once.
const LAG_PARTS: usize = 8;
/// Subscribers that are handed an event before the first of them write it: so few that what was touched for it is still in the
/// processor's cache.
const GROUP: usize = 32;
/// A worker that does not own the partition answers so at once; an owner may be busy, or far away.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(5);

/// What is fetched, while it is.
type Fetch<T> = Option<BoxFuture<'static, Option<T>>>;

struct FeedTask {
    context: FeedContext,
    thread: ThreadId,
    feed: Feed,
    /// What it learns of owners is for all feeds of its partition.
    of_partition: watch::Sender<PartitionSignal>,
    subscribers: Vec<Subscriber>,
    waiting: WaitingSubscribers<Subscriber>,
    ask: Fetch<SnapshotReply>,
    /// What the feed lacks.
    read: Fetch<Fetched>,
    /// What those lack who wait.
    missed: Fetch<Fetched>,
    /// Answers since which facts are remembered that native clients are still to be shown.
    remembered: VecDeque<MessageId>,
    /// The facts of the first of them.
    facts: Fetch<Bytes>,
    /// Notified when a subscriber has gone.
    departures: Arc<Notify>,
    forget_at: Option<Instant>,
    idle_since: Option<Timestamp>,
    /// Something of the thread has come while it was followed.
    has_shown: bool,
    /// Subscribers know that not all of what is open is shown.
    has_left_out: bool,
    /// While the gateway drains: when each subscriber gets its notice, the next one last.
    drain_notices: Option<Vec<(Instant, SendQueue)>>,
}

/// Events that are handed on together.
#[derive(Default)]
struct Burst {
    /// For native clients.
    encoded: Vec<StreamPart>,
    /// The same for encoders of other protocols; empty while there are none.
    values: Vec<StreamPart>,
}

/// Runs until the thread has had no subscriber for some seconds, or the gateway drains.
pub(crate) async fn run(
    context: FeedContext,
    thread: ThreadId,
    mut commands: mpsc::Receiver<FeedCommand>,
    (of_partition, signal): (watch::Sender<PartitionSignal>, watch::Receiver<PartitionSignal>),
) {
    metrics::feeds(1.0);
    let begun = tokio::select! {
        () = context.listening() => true,
        // Subscribers of a feed that has not begun yet get their notice all the same.
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

    /// A block on the heap, and no `async fn`: that would hold its arguments twice, and every function that a future goes through on its way
    /// into a task keeps room for it.
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
                    // What has come with it is shown with it.
                    for _ in 1..COMMANDS {
                        let Ok(command) = commands.try_recv() else { break };
                        self.on_command(command);
                    }
                }
                reply = or_never(&mut self.ask) => self.on_reply(reply),
                fetched = or_never(&mut self.read) => self.on_read(fetched),
                fetched = or_never(&mut self.missed) => self.on_missed(fetched),
                facts = or_never(&mut self.facts) => self.show_facts(facts),
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
            self.let_in();
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

    /// When something is due that nothing but the time brings.
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
            // It took its place before the drain.
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

    /// Says to those who wait for an answer why it does not come. Nothing of it is kept: owners repeat what is still so.
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

    /// Says once to those who follow the thread that not all of what is open is shown.
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

    /// Shows native clients what is remembered since an answer. The streams of other protocols have ended with it.
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

    /// Sends waiting subscribers the ends of a page that they have missed.
    fn catch_up(&mut self, page: &StorePage) {
        let send = |subscriber: &Subscriber, events: Vec<StreamPart>| {
            metrics::events(events.len() as u64);
            subscriber.send_queue.push_first(events);
        };
        for (subscriber, fate) in self.waiting.on_page(page, &self.feed, send) {
            self.settle(subscriber, fate);
        }
    }

    /// Lets those in who stand where the feed stands.
    fn let_in(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        for (subscriber, fate) in self.waiting.let_in(&mut self.feed, self.context.backend.now()) {
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

    /// Its request is refused, if it has not been answered yet; else its stream gets `restart`.
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

    /// True when the feed has ended: it has had no subscriber for long enough, and none is on its way.
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

    /// Else one client that opens streams of ever new names and leaves them would take all feeds.
    fn linger_ms(&self) -> i64 {
        let most = self.context.backend.limits.linger_ms;
        if self.has_shown { most } else { most.min(SILENT_LINGER_MS) }
    }

    /// Hands every event on. A burst of more than a part of what a subscriber may lag is handed on in such parts, with time between them to
    /// take one: else it would disconnect every subscriber, however fast.
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
                self.let_go(&message);
            }
        }
        self.show(&mut burst).await;
    }

    /// A burst is handed to each subscriber at once, and is one write there.
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

    /// Lets those go who wanted this message only.
    fn let_go(&mut self, message: &MessageId) {
        self.subscribers.retain(|subscriber| {
            let is_last = subscriber.subscription.until() == Some(message);
            if is_last {
                subscriber.send_queue.finish();
            }
            !is_last
        });
    }

    /// Starts the question and the reads that are wanted.
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

    /// A drain does not send all away at once: they would all come back at once. Until its notice a subscriber is shown what
    /// comes.
    fn begin_drain(&mut self) {
        let all = self.subscribers.iter().chain(self.waiting.viewers());
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
        // One more may be on its way here that took its place before the drain.
        drain_notices.is_empty() && now >= self.context.last_notice_at()
    }
}

async fn or_never<T>(fetch: &mut Fetch<T>) -> Option<T> {
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

/// The event of what is remembered since an answer; `None`: nothing that counts.
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
