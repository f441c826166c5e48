//! A small world around feeds: an owner that changes, frames that are lost, repeated and reordered, a store, two
//! gateways, and viewers that are cut and resume at either of them.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::feed::view::catch_up;

/// One event as a client reads it.
#[derive(Debug, Clone)]
pub(super) struct Read {
    pub(super) id: Option<String>,
    is_reset: bool,
    data: Value,
}

impl Read {
    fn message(&self) -> &str {
        self.data["message_id"].as_str().unwrap()
    }

    pub(super) fn short(&self) -> String {
        let message = self.message();
        match self.data["chunk_type"].as_str() {
            _ if self.is_reset => format!("{message}^{}", self.data["attempt"]),
            Some("system") => format!("{message}!"),
            Some("error") => format!("{message}?{}", self.data["metadata"]["code"].as_str().unwrap()),
            _ => format!("{message}:{}", self.data["chunk"].as_str().unwrap()),
        }
    }
}

pub(super) fn read(event: &[u8]) -> Read {
    let text = std::str::from_utf8(event).unwrap().strip_suffix("\n\n").unwrap();
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
    Read {
        id: field("id: "),
        is_reset: field("event: ").as_deref() == Some("reset"),
        data: serde_json::from_str(&field("data: ").unwrap()).unwrap(),
    }
}

pub(super) fn read_all(joined: Join) -> Vec<Read> {
    let Join::Joined(parts) = joined else { panic!("{joined:?}") };
    let bytes = parts.concat();
    let text = String::from_utf8(bytes).unwrap();
    text.split_inclusive("\n\n").map(|event| read(event.as_bytes())).collect()
}

const GATEWAYS: usize = 2;
const PAGE: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    Committed,
    Failed,
}

#[derive(Debug)]
struct Source {
    attempt: u32,
    released: u32,
    total: u32,
    phase: Phase,
}

fn letter(message: usize, attempt: u32, chunk: u32) -> String {
    let glyph = ['α', 'b', '€', 'd'][message % 4];
    format!("{glyph}{attempt}{chunk} ")
}

fn name(message: usize) -> MessageId {
    id(&format!("m{message}"))
}

/// What a viewer has of a message.
#[derive(Debug, Default, Clone)]
struct Seen {
    text: String,
    next: u64,
    ends: Vec<&'static str>,
}

#[derive(Debug)]
struct Viewer {
    gateway: usize,
    /// In the feed's audience; else it waits to join with its cursor.
    is_joined: bool,
    last_id: Option<String>,
    seen: BTreeMap<String, Seen>,
}

impl Viewer {
    fn take(&mut self, event: &Read) {
        let seen = self.seen.entry(event.message().to_owned()).or_default();
        assert!(seen.ends.is_empty(), "{} after its end", event.short());
        if event.is_reset {
            (seen.text, seen.next) = (String::new(), 0);
        } else {
            match event.data["chunk_type"].as_str() {
                Some("system") => seen.ends.push("complete"),
                Some("error") => seen.ends.push("failed"),
                _ => {
                    let chunk = event.data["chunk_id"].as_u64().unwrap();
                    assert_eq!(chunk, seen.next, "a hole or a repeat: {}", event.short());
                    seen.next += 1;
                    seen.text.push_str(event.data["chunk"].as_str().unwrap());
                }
            }
        }
        if event.id.is_some() {
            self.last_id.clone_from(&event.id);
        }
    }
}

struct World {
    now: Timestamp,
    epoch: u64,
    sources: Vec<Source>,
    store: Vec<Committed>,
    feeds: Vec<Feed>,
    inboxes: Vec<Vec<OutFrame>>,
    viewers: Vec<Viewer>,
}

impl World {
    fn new(sizes: &[u32]) -> Self {
        let thread = ThreadId::parse("t").unwrap();
        let old = Position::from_stored(100);
        let source = |total: &u32| Source { attempt: 0, released: 0, total: *total, phase: Phase::Open };
        Self {
            now: NOW,
            epoch: 1,
            sources: sizes.iter().map(source).collect(),
            store: vec![stored("old", 100, "history")],
            feeds: (0..GATEWAYS).map(|_| Feed::new(thread.clone(), old, 1 << 20, NOW)).collect(),
            inboxes: vec![Vec::new(); GATEWAYS],
            viewers: (0..GATEWAYS).map(Self::viewer).collect(),
        }
    }

    fn viewer(gateway: usize) -> Viewer {
        Viewer { gateway, is_joined: true, last_id: None, seen: BTreeMap::new() }
    }

    fn out(&self, message: usize, chunks: Vec<Arc<Chunk>>, terminal: Option<End>) -> OutFrame {
        let attempt = self.sources[message].attempt;
        OutFrame { message: name(message), attempt, chunks, terminal, ..frame("x", 0, 0, "") }
    }

    fn chunk(&self, message: usize, chunk: u32) -> Arc<Chunk> {
        let source = &self.sources[message];
        let text = letter(message, source.attempt, chunk);
        Arc::new(Chunk::content(chunk, &text, chunk + 1 == source.total))
    }

    fn send(&mut self, frame: &OutFrame) {
        self.inboxes.iter_mut().for_each(|inbox| inbox.push(frame.clone()));
    }

    fn release(&mut self, message: usize) {
        let source = &self.sources[message];
        if source.phase != Phase::Open || source.released == source.total {
            return;
        }
        let frame = self.out(message, vec![self.chunk(message, source.released)], None);
        self.sources[message].released += 1;
        self.send(&frame);
    }

    fn retry(&mut self, message: usize) {
        let source = &mut self.sources[message];
        if source.phase == Phase::Open && source.attempt < 2 {
            (source.attempt, source.released) = (source.attempt + 1, 0);
        }
    }

    fn end(&mut self, message: usize, fails: bool) {
        let source = &self.sources[message];
        if source.phase != Phase::Open || (!fails && source.released < source.total) {
            return;
        }
        let (attempt, chunks) = (source.attempt, source.released);
        let outcome = if fails {
            self.sources[message].phase = Phase::Failed;
            Outcome::Failed(Failure::Stalled)
        } else {
            self.sources[message].phase = Phase::Committed;
            let position = Position::from_stored(100 + self.store.len() as i64);
            let content = (0..chunks).map(|chunk| letter(message, attempt, chunk)).collect();
            let message = name(message);
            self.store.push(Committed { message, position, attempt, content, ..stored("x", 0, "") });
            Outcome::Complete(position)
        };
        let frame = self.out(message, Vec::new(), Some(End { chunks, outcome }));
        self.send(&frame);
    }

    /// Another owner, which has yet to read everything again.
    fn fail_over(&mut self) {
        self.epoch += 1;
        self.sources.iter_mut().filter(|it| it.phase == Phase::Open).for_each(|it| it.released = 0);
    }

    fn deliver(&mut self, gateway: usize, pick: usize, keep: bool) {
        let inbox = &mut self.inboxes[gateway];
        if inbox.is_empty() {
            return;
        }
        let at = pick % inbox.len();
        let frame = if keep { inbox[at].clone() } else { inbox.remove(at) };
        self.feeds[gateway].on_frame(frame, self.now);
        self.pump(gateway);
    }

    fn lose(&mut self, gateway: usize, pick: usize) {
        let inbox = &mut self.inboxes[gateway];
        if !inbox.is_empty() {
            let at = pick % inbox.len();
            inbox.remove(at);
        }
    }

    fn ask(&mut self, gateway: usize, answered: bool) {
        let now = self.now;
        let Some(ask) = self.feeds[gateway].want_ask(now) else { return };
        if !answered {
            return self.feeds[gateway].on_ask_failed(now);
        }
        let is_open =
            |(_, it): &(usize, &Source)| it.phase == Phase::Open && (it.released > 0 || it.attempt > 0);
        let text = |(n, source): (usize, &Source)| {
            let have = ask
                .have
                .iter()
                .find(|(message, attempt, _)| *message == name(n) && *attempt == source.attempt);
            let from = have.map_or(0, |(_, _, next)| *next);
            let chunks = (from..source.released).map(|chunk| self.chunk(n, chunk)).collect();
            let (message, attempt, next) = (name(n), source.attempt, source.released);
            OpenText { message, attempt, role: Role::Assistant, chunks, next }
        };
        let open = self.sources.iter().enumerate().filter(is_open).map(text).collect();
        let reply = AskReply { epoch: self.epoch, open, more: false };
        self.feeds[gateway].on_reply(reply, now);
        self.pump(gateway);
    }

    fn view(&self, read: &StoreRead) -> View {
        let newer = self.store.iter().filter(|committed| committed.position > read.after);
        let committed: Vec<_> = newer.clone().take(PAGE).cloned().collect();
        let is_whole = newer.count() < PAGE;
        let known = |key: &MessageId| {
            let failed = |(n, source): (usize, &Source)| name(n) == *key && source.phase == Phase::Failed;
            let complete = self.store.iter().find(|committed| committed.message == *key);
            match complete {
                Some(committed) => Some(Known::Complete(committed.clone())),
                None if self.sources.iter().enumerate().any(failed) => {
                    Some(Known::Failed(FailureNote::from(&Failure::Stalled)))
                }
                None => None,
            }
        };
        let known = read.keys.iter().filter_map(|key| Some((key.clone(), known(key)?))).collect();
        View { after: read.after, committed, is_whole, known, keys: read.keys.clone() }
    }

    fn read(&mut self, gateway: usize, answered: bool) {
        let now = self.now;
        let Some(read) = self.feeds[gateway].want_store(now) else { return };
        match answered {
            true => {
                let view = self.view(&read);
                self.feeds[gateway].on_view(&view, now);
            }
            false => self.feeds[gateway].on_store_failed(now),
        }
        self.pump(gateway);
    }

    fn pump(&mut self, gateway: usize) {
        while let Some(event) = self.feeds[gateway].next_event() {
            let (Event::Part(bytes) | Event::End(_, bytes)) = event else { continue };
            let event = read(&bytes);
            let audience = self.viewers.iter_mut().filter(|it| it.is_joined && it.gateway == gateway);
            audience.for_each(|viewer| viewer.take(&event));
        }
    }

    fn join_late(&mut self, gateway: usize) {
        self.pump(gateway);
        let mut viewer = Self::viewer(gateway);
        read_all(self.feeds[gateway].join(None, None)).iter().for_each(|event| viewer.take(event));
        self.viewers.push(viewer);
    }

    /// Cuts a viewer and lets it come back, perhaps at the other gateway.
    fn cut(&mut self, viewer: usize, gateway: usize) {
        let count = self.viewers.len();
        let viewer = &mut self.viewers[viewer % count];
        // One without an id has nothing to resume from: a client would begin anew.
        if viewer.last_id.is_some() {
            (viewer.gateway, viewer.is_joined) = (gateway, false);
        }
    }

    /// As the driver does it: pages of the store first, then one view for the feed and the viewer. `stop` cuts it
    /// again after so many events.
    fn resume(&mut self, index: usize, stop: usize) {
        let count = self.viewers.len();
        let viewer = &self.viewers[index % count];
        if viewer.is_joined {
            return;
        }
        let gateway = viewer.gateway;
        let mut native = Native::new(
            ThreadId::parse("t").unwrap(),
            Cursor::parse(viewer.last_id.as_deref().unwrap()).unwrap(),
        );
        let mut events = Vec::new();
        loop {
            let keys = native.cursor().open().map(|(message, _)| message.clone()).collect();
            let view = self.view(&StoreRead { after: native.cursor().base(), keys });
            if view.is_whole {
                break;
            }
            events.extend(catch_up(&mut native, &view).iter().map(|event| read(event)));
        }
        let cursor = native.cursor().clone();
        for _ in 0..8 {
            let keys = cursor.open().map(|(message, _)| message).chain(cursor.ended()).cloned().collect();
            let after = cursor.base().min(self.feeds[gateway].verified());
            let view = self.view(&StoreRead { after, keys });
            self.feeds[gateway].settle(&view, true, self.now);
            self.pump(gateway);
            match self.feeds[gateway].join(Some(&cursor), Some(&view)) {
                Join::ReadAgain => {}
                Join::Ahead => break,
                joined => {
                    events.extend(read_all(joined));
                    let viewer = &mut self.viewers[index % count];
                    let is_cut = stop < events.len();
                    events
                        .iter()
                        .take(if is_cut { stop } else { events.len() })
                        .for_each(|event| viewer.take(event));
                    viewer.is_joined = !is_cut;
                    return;
                }
            }
        }
        // It was shown the pages, and is still not in.
        let viewer = &mut self.viewers[index % count];
        events.iter().for_each(|event| viewer.take(event));
    }

    fn settle(&mut self) {
        for message in 0..self.sources.len() {
            (0..8).for_each(|_| self.release(message));
            self.end(message, false);
        }
        for _ in 0..40 {
            self.now = self.now.plus_ms(1_100);
            for gateway in 0..GATEWAYS {
                self.deliver(gateway, 0, false);
                self.ask(gateway, true);
                self.read(gateway, true);
            }
            (0..self.viewers.len()).for_each(|viewer| self.resume(viewer, usize::MAX));
        }
    }

    fn check(&self, from_the_start: usize) {
        for (index, viewer) in self.viewers.iter().enumerate() {
            assert!(viewer.is_joined, "viewer {index} never came back: {viewer:?}");
            for (message, seen) in &viewer.seen {
                let stored = self.store.iter().find(|committed| committed.message.as_str() == message);
                match stored {
                    Some(stored) => {
                        assert_eq!(seen.text, stored.content, "viewer {index}, {message}");
                        assert_eq!(seen.ends, ["complete"], "viewer {index}, {message}");
                    }
                    None => assert_eq!(seen.ends, ["failed"], "viewer {index}, {message}"),
                }
            }
            if index < from_the_start {
                let missed = self.store[1..].iter().find(|it| !viewer.seen.contains_key(it.message.as_str()));
                assert!(missed.is_none(), "viewer {index} never saw {missed:?}");
            }
        }
        assert!(self.feeds.iter().all(|feed| feed.open.is_empty()));
    }

    fn step(&mut self, (op, a, b): (u8, usize, usize)) {
        let (message, gateway) = (a % self.sources.len(), b % GATEWAYS);
        match op {
            0..=5 => self.release(message),
            6 if b % 4 == 0 => self.retry(message),
            7 | 8 => self.end(message, b % 7 == 0),
            9 if b % 4 == 0 => self.fail_over(),
            10..=14 => self.deliver(gateway, a, false),
            15 => self.deliver(gateway, a, true),
            16 => self.lose(gateway, a),
            17..=19 => self.ask(gateway, a % 5 != 0),
            20..=22 => self.read(gateway, a % 5 != 0),
            23 => self.now = self.now.plus_ms([10, 300, 1_000, 3_000, 31_000][a % 5]),
            24 if a % 3 == 0 => self.feeds[gateway].on_doubt(),
            25 if self.viewers.len() < 6 => self.join_late(gateway),
            26 | 27 => self.cut(a, gateway),
            28..=30 => self.resume(a, b % 9),
            31 => self.feeds[gateway].expect(&name(message), self.now),
            32 => self.feeds[gateway].expect_only(|_| false),
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_viewer_sees_each_chunk_once_in_order_and_one_end(
        sizes in prop::collection::vec(1..5_u32, 1..6),
        steps in prop::collection::vec((0..33_u8, 0..1_000_usize, 0..1_000_usize), 0..160),
    ) {
        let mut world = World::new(&sizes);
        steps.into_iter().for_each(|step| world.step(step));
        world.settle();
        world.check(GATEWAYS);
    }
}
