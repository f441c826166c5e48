//! One thread as its viewers see it: a machine without sockets that merges what the owner sends, what it answers and
//! what the store knows into one sequence of events.
//!
//! Entry type: [`Feed`]. Frames may be lost, repeated or reordered, owners may change and send what was already
//! shown; for every message the events are its chunks, each once and in order, and then one end. Inputs are values,
//! time is an argument. [`Feed::want_ask`] and [`Feed::want_store`] say what is to be fetched; whoever drives the feed
//! fetches it and hands it in. Nothing is ever shown past a hole.
//!
//! All viewers of a feed stand at the same place after they have joined, so each event is encoded once, with one id.

mod open;
mod view;

use std::collections::{BTreeMap, HashSet, VecDeque};

use adapters::{Cursor, FailureNote, Native, cursor};
use bytes::Bytes;
use model::{MessageId, OpenText, Outcome, Position, Role, ThreadId, Timestamp};
use wire::ask::{Ask, AskReply};
use wire::out::OutFrame;

use open::Open;
pub use view::{Committed, Join, Known, StoreRead, View, catch_up};

/// An open message of which nothing was heard for this long is asked for.
const AUDIT_MS: i64 = 3_000;
/// A hole that one answer did not close is asked for again after this time.
const HOLE_MS: i64 = 500;
/// A committed message may take this long to arrive by itself before it is shown from the store.
const GRACE_MS: i64 = 1_000;
/// Pause after an unanswered question: first, and at most.
const ASK_PAUSE_MS: (i64, i64) = (250, 2_000);
/// Pause after the store could not be read.
const STORE_PAUSE_MS: i64 = 500;
/// When this many messages have ended since the store was last compared, it is compared.
const VERIFY_EVERY: usize = 8;
/// And at least this often: a short message may have been lost whole, with nothing after it to show the hole.
const ROUTINE_MS: i64 = 30_000;
/// Ended messages that are remembered, so that nobody sees them again.
const REMEMBERED: usize = 1_024;

/// What a feed counted since it was last asked.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Holes that the owner or the store closed.
    pub holes_repaired: u64,
    /// Chunks that were already shown, or of a lower attempt, or of an ended message.
    pub filtered: u64,
    /// Open messages that were asked for because nothing was heard of them.
    pub audits: u64,
}

/// Something for every viewer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A part of a message.
    Part(Bytes),
    /// A message ended; the last of it.
    End(MessageId, Bytes),
    /// A message that was expected ended before the feed began: nothing is shown of it here.
    Missed(MessageId),
}

/// See the module.
#[derive(Debug)]
pub struct Feed {
    thread: ThreadId,
    native: Native,
    open: BTreeMap<MessageId, Open>,
    ended: Remembered,
    /// Everything committed at or below this was shown, or is older than the feed.
    verified: Position,
    /// Messages completed since then.
    unverified: usize,
    /// The highest position that is known to be committed.
    tip: Position,
    events: VecDeque<Event>,
    asks: Asks,
    reads: Reads,
    /// A message had to be left out because too many are open.
    left_out: bool,
    log_budget: usize,
    log_bytes: usize,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Asks {
    under_way: bool,
    /// The messages that the first question of a round named; those that no page names are not open there.
    missing: HashSet<MessageId>,
    in_round: bool,
    everything: bool,
    not_before: Timestamp,
    pause_ms: i64,
    epoch: Option<u64>,
}

#[derive(Debug, Default)]
struct Reads {
    under_way: bool,
    not_before: Timestamp,
    /// Compare the store; `true`: whatever it has and we have not is shown.
    verify: Option<bool>,
    force_at: Option<Timestamp>,
    routine_at: Timestamp,
}

impl Feed {
    /// A feed of a thread whose messages up to `tip` are committed. `log_budget`: bytes of open text that are kept for
    /// viewers who join late.
    pub fn new(thread: ThreadId, tip: Position, log_budget: usize, now: Timestamp) -> Self {
        let reads = Reads { routine_at: now.plus_ms(ROUTINE_MS), ..Reads::default() };
        let asks = Asks { everything: true, ..Asks::default() };
        Self {
            native: Native::new(thread.clone(), Cursor::at(tip)),
            thread,
            open: BTreeMap::new(),
            ended: Remembered::default(),
            verified: tip,
            unverified: 0,
            tip,
            events: VecDeque::new(),
            asks,
            reads,
            left_out: false,
            log_budget,
            log_bytes: 0,
            counts: Counts::default(),
        }
    }

    /// The next event for every viewer.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// What happened since the last call, for metrics.
    pub fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }

    /// Where a viewer stands who got every event.
    pub fn cursor(&self) -> &Cursor {
        self.native.cursor()
    }

    /// Everything up to here has been compared with the store.
    pub fn verified(&self) -> Position {
        self.verified
    }

    /// Nothing is open, and nothing is to be fetched but what is compared as a routine: until something comes there is no hurry to
    /// ask again what is wanted.
    pub fn is_calm(&self) -> bool {
        let Self { asks, reads, .. } = self;
        let asks = asks.everything || asks.in_round || asks.under_way || self.left_out;
        let reads = reads.verify.is_some() || reads.force_at.is_some() || reads.under_way;
        self.open.is_empty() && !asks && !reads
    }

    /// A frame of the owner.
    pub fn on_frame(&mut self, frame: OutFrame, now: Timestamp) {
        if frame.thread != self.thread {
            return;
        }
        let end_is_old = |position: &Position| *position <= self.verified;
        if let Some(Outcome::Complete(position)) = frame.terminal.as_ref().map(|end| &end.outcome)
            && !self.open.contains_key(&frame.message)
            && end_is_old(position)
        {
            return;
        }
        let OutFrame { message, attempt, role, chunks, terminal, .. } = frame;
        self.merge(OpenText { message: message.clone(), attempt, role, next: 0, chunks }, now);
        let Some(end) = terminal else { return };
        let Some(open) = self.open.get_mut(&message).filter(|open| open.attempt == attempt) else { return };
        open.end = Some(end);
        self.end_if_whole(&message);
    }

    /// A page of the owner's answer.
    pub fn on_reply(&mut self, reply: AskReply, now: Timestamp) {
        self.asks.under_way = false;
        self.asks.pause_ms = 0;
        if self.asks.epoch.replace(reply.epoch).is_some_and(|epoch| epoch != reply.epoch) {
            self.verify(true);
        }
        for text in reply.open {
            self.asks.missing.remove(&text.message);
            let message = text.message.clone();
            let had_hole = self.open.get(&message).is_some_and(Open::has_hole);
            self.merge(text, now);
            let has_hole = self.open.get(&message).is_some_and(Open::has_hole);
            self.counts.holes_repaired += u64::from(had_hole && !has_hole);
        }
        if reply.more {
            return;
        }
        self.asks.in_round = false;
        for message in std::mem::take(&mut self.asks.missing) {
            if let Some(open) = self.open.get_mut(&message) {
                open.look_up = true;
            }
        }
    }

    /// Nobody answered: no owner, a timeout, no connection. The store may know more than the owner that is away.
    pub fn on_ask_failed(&mut self, now: Timestamp) {
        let asks = &mut self.asks;
        (asks.under_way, asks.in_round, asks.everything) = (false, false, true);
        asks.pause_ms = (asks.pause_ms * 2).clamp(ASK_PAUSE_MS.0, ASK_PAUSE_MS.1);
        asks.not_before = now.plus_ms(asks.pause_ms);
        for open in self.open.values_mut().filter(|open| open.was_asked) {
            open.look_up = true;
        }
    }

    /// Something may have been missed: the connection was lost, the owner changed, a queue overflowed.
    pub fn on_doubt(&mut self) {
        self.asks.everything = true;
        self.verify(true);
    }

    /// The question to send now, if any; answer with [`Feed::on_reply`] or [`Feed::on_ask_failed`].
    pub fn want_ask(&mut self, now: Timestamp) -> Option<Ask> {
        if self.asks.under_way || now < self.asks.not_before {
            return None;
        }
        let room = self.open.len() < cursor::MAX_OPEN;
        let due = self.asks.everything
            || (self.left_out && room)
            || self.open.values().any(|open| open.is_due(now));
        if !due && !self.asks.in_round {
            return None;
        }
        if !self.asks.in_round {
            self.begin_round(now);
        }
        self.asks.under_way = true;
        let have = self.open.iter().map(|(message, open)| (message.clone(), open.attempt, open.seen().next));
        Some(Ask { thread: self.thread.clone(), have: have.collect() })
    }

    fn begin_round(&mut self, now: Timestamp) {
        (self.asks.everything, self.asks.in_round, self.left_out) = (false, true, false);
        self.asks.missing = self.open.keys().cloned().collect();
        for open in self.open.values_mut() {
            self.counts.audits += u64::from(now >= open.audit_at && !open.has_hole());
            open.asked(now.plus_ms(AUDIT_MS), now.plus_ms(HOLE_MS));
        }
    }

    /// A viewer waits for a message of which nothing may have been heard yet: its end is looked for, too. Until it
    /// begins it counts as open.
    pub fn expect(&mut self, message: &MessageId, now: Timestamp) {
        let is_known = self.open.contains_key(message) || self.ended.contains(message);
        if is_known || self.open.len() >= cursor::MAX_OPEN {
            return;
        }
        let mut open = Open::new(0, Role::Assistant, now.plus_ms(AUDIT_MS));
        open.is_expected = true;
        self.open.insert(message.clone(), open);
        self.native.begin(message, 0);
    }

    /// Forgets the expected messages that nobody waits for any more.
    pub fn expect_only(&mut self, is_awaited: impl Fn(&MessageId) -> bool) {
        let forgotten = |(message, open): (&MessageId, &Open)| {
            (open.is_expected && !is_awaited(message)).then(|| message.clone())
        };
        for message in self.open.iter().filter_map(forgotten).collect::<Vec<_>>() {
            self.open.remove(&message);
            self.native.forget(&message);
            self.asks.missing.remove(&message);
        }
    }

    /// Merges chunks of a message, whoever sent them.
    fn merge(&mut self, text: OpenText, now: Timestamp) {
        let OpenText { message, attempt, role, chunks, next } = text;
        if self.ended.contains(&message) {
            self.counts.filtered += chunks.len() as u64;
            return;
        }
        if !self.open.contains_key(&message) {
            if self.open.len() >= cursor::MAX_OPEN {
                self.left_out = true;
                return;
            }
            self.open.insert(message.clone(), Open::new(attempt, role, now.plus_ms(AUDIT_MS)));
            self.native.begin(&message, attempt);
        }
        let Some(open) = self.open.get_mut(&message) else { return };
        if attempt < open.attempt {
            self.counts.filtered += chunks.len() as u64;
            return;
        }
        if attempt > open.attempt {
            self.log_bytes -= open.log_bytes();
            match open.seen().next {
                0 => self.native.begin(&message, attempt),
                _ => self.events.push_back(Event::Part(self.native.reset(&message, attempt))),
            }
            *open = Open::new(attempt, role, now);
        }
        let before = open.log_bytes();
        open.heard(now.plus_ms(AUDIT_MS));
        open.know(next);
        for chunk in chunks {
            self.counts.filtered += u64::from(chunk.id < open.seen().next);
            open.insert(chunk);
        }
        while let Some(chunk) = open.next_chunk() {
            if let Some(event) = open.show(&mut self.native, &message, &chunk) {
                self.events.push_back(Event::Part(event));
            }
        }
        open.watch_hole(now);
        self.log_bytes = self.log_bytes + open.log_bytes() - before;
        if self.log_bytes > self.log_budget {
            self.log_bytes -= open.drop_log();
        }
        self.end_if_whole(&message);
    }

    fn end_if_whole(&mut self, message: &MessageId) {
        let Some(open) = self.open.get_mut(message) else { return };
        let Some(end) = &open.end else { return };
        match end.outcome.clone() {
            Outcome::Failed(failure) => {
                self.fail(message, &FailureNote::from(&failure));
            }
            Outcome::Complete(position) if open.seen().next >= end.chunks => self.complete(message, position),
            // The owner has let go of it with the commit; only the store has the rest.
            Outcome::Complete(_) => open.look_up = true,
        }
    }

    fn complete(&mut self, message: &MessageId, position: Position) {
        self.tip = self.tip.max(position);
        let event = self.native.complete(message, position).bytes();
        self.finish(message, event);
        self.unverified += 1;
        if self.unverified >= VERIFY_EVERY {
            self.verify(false);
        }
    }

    fn fail(&mut self, message: &MessageId, failure: &FailureNote) {
        let event = self.native.failed(message, failure).bytes();
        self.finish(message, event);
    }

    fn finish(&mut self, message: &MessageId, event: Bytes) {
        self.let_go(message);
        self.events.push_back(Event::End(message.clone(), event));
    }

    fn let_go(&mut self, message: &MessageId) {
        if let Some(open) = self.open.remove(message) {
            self.log_bytes -= open.log_bytes();
        }
        self.native.forget(message);
        self.asks.missing.remove(message);
        self.ended.insert(message.clone());
    }

    fn verify(&mut self, force: bool) {
        self.reads.verify = Some(force || self.reads.verify == Some(true));
    }
}

/// The last [`REMEMBERED`] messages that ended.
#[derive(Debug, Default)]
struct Remembered {
    order: VecDeque<MessageId>,
    set: HashSet<MessageId>,
}

impl Remembered {
    fn contains(&self, message: &MessageId) -> bool {
        self.set.contains(message)
    }

    fn insert(&mut self, message: MessageId) {
        if self.set.insert(message.clone()) {
            self.order.push_back(message);
        }
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.set.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests;
