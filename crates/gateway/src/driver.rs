//! Drives one feed: listens to its thread, asks its owner, reads the store, and hands its events to the viewers.
//! Live events never wait for a question or a read.

use std::pin::pin;
use std::time::Duration;

use adapters::{Cursor, native};
use bus::{AskError, OutSubscription};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use model::{MessageId, Position, ThreadId, Timestamp};
use runtime::Backoff;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep};
use wire::ask::AskReply;

use crate::feed::{Event, Feed, Join, StoreRead, View};
use crate::hub::Context;
use crate::lane::Lane;
use crate::metrics::{self, Asked, Cut};
use crate::reads;

const TICK: Duration = Duration::from_millis(100);
/// Of a feed that is calm: most of them, at most times, and ten ticks a second of ten thousand feeds would take a core.
const CALM_TICK: Duration = Duration::from_secs(2);
/// Frames that are taken in before viewers are shown what is in them.
const FRAMES: usize = 64;
/// Of what a viewer may lag, one in so many is handed to it at once.
const LAG_PARTS: usize = 8;
/// Viewers that are handed an event before the first of them write it: so few that what was touched for it is still in the
/// processor's cache.
const GROUP: usize = 32;
const ASK_TIMEOUT: Duration = Duration::from_millis(500);
/// A viewer whose cursor is ahead of everything is tried again after this pause, and cut after this patience.
const AHEAD_PAUSE_MS: i64 = 300;
const AHEAD_PATIENCE_MS: i64 = 20_000;

/// What the hub tells a driver.
#[derive(Debug)]
pub(crate) enum Command {
    /// Let a viewer in. Boxed, for every feed's channel has room for some dozens from the beginning.
    Join(Box<Viewer>),
}

/// Who wants events.
#[derive(Debug)]
pub(crate) struct Viewer {
    /// The way to it.
    pub(crate) lane: Lane,
    /// It gets what comes strictly after; without one, what is open and what comes.
    pub(crate) cursor: Option<Cursor>,
    /// It wants this message, and nothing after its end. Its cursor must name it, so that it is looked up.
    pub(crate) until: Option<MessageId>,
    /// Told when it has been let in: from then on it misses nothing.
    pub(crate) joined: Option<oneshot::Sender<()>>,
}

struct Waiting {
    viewer: Viewer,
    since: Timestamp,
    try_at: Timestamp,
}

type Reply = Result<AskReply, ()>;

struct Driver {
    context: Context,
    feed: Feed,
    viewers: Vec<Viewer>,
    waiting: Vec<Waiting>,
    ask: Option<BoxFuture<'static, Reply>>,
    /// True when the feed wanted it: else it is for viewers who wait alone.
    read: Option<(bool, BoxFuture<'static, Option<View>>)>,
    idle_since: Option<Timestamp>,
    /// While the gateway drains: when each viewer gets its notice, the next one last.
    leaving: Option<Vec<(Instant, Lane)>>,
}

/// Runs until the thread has had no viewer for some seconds, or the gateway drains.
pub(crate) async fn run(
    context: Context,
    thread: ThreadId,
    mut commands: mpsc::Receiver<Command>,
    doubts: watch::Receiver<u64>,
) {
    metrics::feeds(1.0);
    let beginning = async {
        // Never closed, so there is a place. When ten thousand threads are wanted at once, they wait small.
        let _place = context.beginning.acquire().await;
        // On the heap, and gone afterwards: what reads the store is large, and would stay part of each feed for its life.
        Box::pin(begin(&context, &thread)).await
    };
    let begun = tokio::select! {
        begun = beginning => Some(begun),
        // Viewers of a feed that has not begun yet get their notice all the same.
        () = context.drain.cancelled() => None,
    };
    if let Some((frames, tip, doubt)) = begun {
        let now = context.now();
        let mut feed = Feed::new(thread.clone(), tip, context.limits.feed_bytes, now);
        if doubt {
            feed.on_doubt();
        }
        // On the heap once: every hand that a future goes through on its way into a task keeps room for it.
        Box::pin(Driver::new(context.clone(), feed).drive(&thread, frames, &mut commands, doubts)).await;
    }
    commands.close();
    while let Some(Command::Join(viewer)) = commands.recv().await {
        say_goodbye(&context, &viewer.lane);
    }
    metrics::feeds(-1.0);
}

fn say_goodbye(context: &Context, lane: &Lane) {
    match context.drain.is_cancelled() {
        true => lane.end_with(native::drain(context.retry_ms())),
        false => lane.cut(Cut::Internal),
    }
}

/// Listens, and says from which position on the viewers have to be told of everything: where the thread stood when the
/// first one came. Listening may take long while NATS is away; if something was committed meanwhile, nobody heard of it,
/// and the feed is in doubt from the beginning.
async fn begin(context: &Context, thread: &ThreadId) -> (OutSubscription, Position, bool) {
    let (frames, before) = tokio::join!(listen(context, thread), reads::tip(&context.store, thread));
    let mut backoff = Backoff::default();
    let after = loop {
        match reads::tip(&context.store, thread).await {
            Ok(tip) => break tip,
            Err(error) => tracing::debug!(%thread, %error, "cannot read the thread's last position yet"),
        }
        backoff.wait().await;
    };
    let tip = before.unwrap_or(after);
    (frames, tip, tip != after)
}

async fn listen(context: &Context, thread: &ThreadId) -> OutSubscription {
    let mut backoff = Backoff::default();
    loop {
        match context.bus.subscribe_out(thread).await {
            Ok(frames) => return frames,
            Err(error) => tracing::debug!(%thread, %error, "cannot listen to the thread yet"),
        }
        backoff.wait().await;
    }
}

impl Driver {
    fn new(context: Context, feed: Feed) -> Self {
        let (viewers, waiting) = (Vec::new(), Vec::new());
        Self { context, feed, viewers, waiting, ask: None, read: None, idle_since: None, leaving: None }
    }

    async fn drive(
        mut self,
        thread: &ThreadId,
        mut frames: OutSubscription,
        commands: &mut mpsc::Receiver<Command>,
        mut doubts: watch::Receiver<u64>,
    ) {
        let drain = self.context.drain.clone();
        let mut tick = pin!(sleep(TICK));
        loop {
            let mut has_ticked = false;
            tokio::select! {
                biased;
                () = drain.cancelled(), if self.leaving.is_none() => self.begin_leaving(),
                Some(command) = commands.recv() => self.on_command(command).await,
                reply = or_never(&mut self.ask) => self.on_reply(reply),
                (wanted, view) = read_or_never(&mut self.read) => self.on_view(wanted, view).await,
                Ok(()) = doubts.changed() => self.feed.on_doubt(),
                frame = frames.next() => match frame {
                    Some(frame) => {
                        self.on_frame(&frame);
                        // What has come with it is shown with it.
                        for _ in 1..FRAMES {
                            let Some(Some(frame)) = frames.next().now_or_never() else { break };
                            self.on_frame(&frame);
                        }
                    }
                    None => return self.fail(),
                },
                () = tick.as_mut() => {
                    if self.on_tick(thread) {
                        return;
                    }
                    has_ticked = true;
                }
            }
            self.pump().await;
            self.fetch(thread);
            if self.say_goodbyes() {
                return;
            }
            let next = Instant::now() + self.until_tick();
            if has_ticked || next < tick.deadline() {
                tick.as_mut().reset(next);
            }
        }
    }

    /// How long nothing that only a tick brings can be due.
    fn until_tick(&self) -> Duration {
        let is_calm = self.feed.is_calm()
            && self.waiting.is_empty()
            && !self.viewers.is_empty()
            && self.leaving.is_none();
        if is_calm { CALM_TICK } else { TICK }
    }

    async fn on_command(&mut self, command: Command) {
        let Command::Join(viewer) = command;
        if self.leaving.is_some() {
            return say_goodbye(&self.context, &viewer.lane);
        }
        let now = self.context.now();
        self.idle_since = None;
        self.pump().await;
        if viewer.cursor.is_some() {
            return self.waiting.push(Waiting { viewer: *viewer, since: now, try_at: now });
        }
        match self.feed.join(None, None) {
            Join::Joined(first) => self.admit(*viewer, first, false, now),
            _ => viewer.lane.cut(Cut::OverBudget),
        }
    }

    fn on_frame(&mut self, frame: &bytes::Bytes) {
        match wire::out::decode(frame) {
            Ok(frame) => self.feed.on_frame(frame, self.context.now()),
            Err(error) => {
                metrics::undecodable();
                tracing::warn!(%error, "a frame of an owner cannot be read");
            }
        }
    }

    fn on_reply(&mut self, reply: Reply) {
        self.ask = None;
        let now = self.context.now();
        match reply {
            Ok(reply) => self.feed.on_reply(reply, now),
            Err(()) => self.feed.on_ask_failed(now),
        }
    }

    async fn on_view(&mut self, wanted: bool, view: Option<View>) {
        self.read = None;
        let now = self.context.now();
        match &view {
            Some(view) if wanted => self.feed.on_view(view, now),
            None if wanted => self.feed.on_store_failed(now),
            _ => {}
        }
        if let Some(view) = view.filter(|_| !self.waiting.is_empty()) {
            self.feed.settle(&view, true, now);
            self.pump().await;
            self.let_in(&view, now);
        }
    }

    fn let_in(&mut self, view: &View, now: Timestamp) {
        for waiting in std::mem::take(&mut self.waiting) {
            match self.feed.join(waiting.viewer.cursor.as_ref(), Some(view)) {
                Join::Joined(first) => {
                    let has_ended = |message| view.known.contains_key(message);
                    let is_last = waiting.viewer.until.as_ref().is_some_and(has_ended);
                    self.admit(waiting.viewer, first, is_last, now);
                }
                Join::OverBudget => waiting.viewer.lane.cut(Cut::OverBudget),
                _ if now.since_ms(waiting.since) > AHEAD_PATIENCE_MS => waiting.viewer.lane.cut(Cut::Ahead),
                Join::ReadAgain => self.waiting.push(Waiting { try_at: now, ..waiting }),
                Join::Ahead => self.waiting.push(Waiting { try_at: now.plus_ms(AHEAD_PAUSE_MS), ..waiting }),
            }
        }
    }

    fn admit(&mut self, mut viewer: Viewer, first: Vec<bytes::Bytes>, is_last: bool, now: Timestamp) {
        metrics::events(first.len() as u64);
        viewer.lane.push_first(first);
        // Whoever asked to be told may be gone.
        viewer.joined.take().map(|joined| joined.send(()));
        if is_last {
            return viewer.lane.finish();
        }
        if let Some(message) = &viewer.until {
            self.feed.expect(message, now);
        }
        self.viewers.push(viewer);
    }

    /// True when the feed has ended.
    fn on_tick(&mut self, thread: &ThreadId) -> bool {
        let now = self.context.now();
        metrics::feed(self.feed.take_counts());
        self.viewers.retain(|viewer| viewer.lane.is_open());
        self.waiting.retain(|waiting| waiting.viewer.lane.is_open());
        let viewers = &self.viewers;
        self.feed.expect_only(|message| viewers.iter().any(|viewer| viewer.until.as_ref() == Some(message)));
        if !self.viewers.is_empty() || !self.waiting.is_empty() {
            self.idle_since = None;
            return false;
        }
        let idle_since = *self.idle_since.get_or_insert(now);
        now.since_ms(idle_since) > self.context.limits.linger_ms && self.context.retire(thread)
    }

    /// Hands every event on. A burst of more than a part of what a viewer may lag is handed on in such parts, with time between them to
    /// take one: else it would cut everybody, however fast.
    async fn pump(&mut self) {
        let most = self.context.limits.lag_bytes / LAG_PARTS;
        let (mut events, mut size) = (Vec::new(), 0);
        while let Some(event) = self.feed.next_event() {
            match event {
                Event::Part(bytes) => {
                    if size + bytes.len() > most && size > 0 {
                        self.show(&mut events).await;
                        tokio::task::yield_now().await;
                        size = 0;
                    }
                    size += bytes.len();
                    events.push(bytes);
                }
                Event::End(message, bytes) => {
                    events.push(bytes);
                    self.show(&mut events).await;
                    self.let_go(&message, Lane::finish);
                }
                Event::Missed(message) => {
                    self.show(&mut events).await;
                    self.let_go(&message, |lane| lane.cut(Cut::Internal));
                }
            }
        }
        self.show(&mut events).await;
    }

    /// A burst is handed to each viewer at once, and is one write there.
    async fn show(&mut self, events: &mut Vec<bytes::Bytes>) {
        if events.is_empty() {
            return;
        }
        metrics::events((events.len() * self.viewers.len()) as u64);
        let mut are_all_open = true;
        let mut groups = self.viewers.chunks(GROUP).peekable();
        while let Some(group) = groups.next() {
            for viewer in group {
                are_all_open &= viewer.lane.push(events);
            }
            if groups.peek().is_some() {
                tokio::task::yield_now().await;
            }
        }
        if !are_all_open {
            self.viewers.retain(|viewer| viewer.lane.is_open());
        }
        events.clear();
    }

    /// Lets those go who wanted this message only.
    fn let_go(&mut self, message: &MessageId, goodbye: impl Fn(&Lane)) {
        self.viewers.retain(|viewer| {
            let is_last = viewer.until.as_ref() == Some(message);
            if is_last {
                goodbye(&viewer.lane);
            }
            !is_last
        });
    }

    /// Starts the question and the read that are wanted.
    fn fetch(&mut self, thread: &ThreadId) {
        let now = self.context.now();
        if self.ask.is_none()
            && let Some(ask) = self.feed.want_ask(now)
        {
            let context = self.context.clone();
            self.ask = Some(async move { put_question(&context, ask).await }.boxed());
        }
        if self.read.is_none()
            && let Some((wanted, read)) = self.next_read(now)
        {
            let (context, thread) = (self.context.clone(), thread.clone());
            self.read = Some((wanted, async move { read_store(&context, &thread, &read).await }.boxed()));
        }
    }

    /// What the feed wants, and what viewers need who wait to join: one read for all of them.
    fn next_read(&mut self, now: Timestamp) -> Option<(bool, StoreRead)> {
        let due: Vec<_> = self.waiting.iter().filter(|waiting| now >= waiting.try_at).collect();
        let cursors: Vec<_> = due.iter().filter_map(|waiting| waiting.viewer.cursor.clone()).collect();
        let wanted = self.feed.want_store(now);
        let is_wanted = wanted.is_some();
        if !is_wanted && cursors.is_empty() {
            return None;
        }
        let mut read = wanted.unwrap_or(StoreRead { after: self.feed.verified(), keys: Vec::new() });
        for cursor in &cursors {
            read.after = read.after.min(cursor.base());
            read.keys.extend(cursor.open().map(|(message, _)| message).chain(cursor.ended()).cloned());
        }
        read.keys.sort();
        read.keys.dedup();
        Some((is_wanted, read))
    }

    /// A drain does not send all away at once: they would all come back at once. Until its notice a viewer is shown what
    /// comes.
    fn begin_leaving(&mut self) {
        let now = Instant::now();
        let leaving = self.all_lanes().map(|lane| (now + self.context.leaves_in(), lane.clone()));
        let mut leaving: Vec<_> = leaving.collect();
        leaving.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        self.leaving = Some(leaving);
    }

    /// True when nobody is left.
    fn say_goodbyes(&mut self) -> bool {
        let Some(leaving) = &mut self.leaving else { return false };
        let now = Instant::now();
        while let Some((_, lane)) = leaving.pop_if(|(at, _)| *at <= now) {
            say_goodbye(&self.context, &lane);
        }
        leaving.is_empty()
    }

    fn fail(self) {
        self.all_lanes().for_each(|lane| lane.cut(Cut::Internal));
    }

    fn all_lanes(&self) -> impl Iterator<Item = &Lane> {
        let waiting = self.waiting.iter().map(|waiting| &waiting.viewer.lane);
        self.viewers.iter().map(|viewer| &viewer.lane).chain(waiting)
    }
}

async fn or_never(ask: &mut Option<BoxFuture<'static, Reply>>) -> Reply {
    match ask {
        Some(ask) => ask.await,
        None => std::future::pending().await,
    }
}

async fn read_or_never(read: &mut Option<(bool, BoxFuture<'static, Option<View>>)>) -> (bool, Option<View>) {
    match read {
        Some((wanted, read)) => (*wanted, read.await),
        None => std::future::pending().await,
    }
}

async fn put_question(context: &Context, ask: wire::ask::Ask) -> Reply {
    let partition = context.partition_of(&ask.thread);
    let reply = context.bus.ask(partition, wire::ask::encode_ask(&ask), ASK_TIMEOUT).await;
    read_reply(reply)
}

/// Counts and decodes an owner's answer.
pub(crate) fn read_reply(reply: Result<bytes::Bytes, AskError>) -> Reply {
    let reply = match reply {
        Ok(reply) => reply,
        Err(error) => {
            metrics::ask(error.into());
            return Err(());
        }
    };
    match wire::ask::decode_reply(&reply) {
        Ok(reply) => {
            metrics::ask(Asked::Answered);
            Ok(reply)
        }
        Err(error) => {
            metrics::ask(Asked::Undecodable);
            metrics::undecodable();
            tracing::warn!(%error, "an answer of an owner cannot be read");
            Err(())
        }
    }
}

async fn read_store(context: &Context, thread: &ThreadId, read: &StoreRead) -> Option<View> {
    match reads::view(&context.store, thread, read).await {
        Ok(view) => Some(view),
        Err(error) => {
            tracing::debug!(%thread, %error, "the store cannot be read");
            None
        }
    }
}
