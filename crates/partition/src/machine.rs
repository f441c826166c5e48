//! The state machine of one partition.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use model::{Failure, MessageKey, PartitionId, Positions, Refusal, Seq, Timestamp};

use crate::action::{Action, Input, Release, Report};
use crate::answer::answer;
use crate::commit::{Known, Takeover};
use crate::limits::Limits;
use crate::messages::{Messages, Slot};
use crate::open::{Open, Phase};
use crate::recent::Recent;
use crate::stats::{Counters, Stats};
use crate::stream_clock::StreamClock;

mod committing;
mod reading;

/// In [`Partition::holds`] an entry that becomes a dead letter has no message.
const NO_SLOT: Slot = Slot::MAX;

/// One partition under one epoch. See the crate's documentation.
#[derive(Debug)]
pub struct Partition {
    id: PartitionId,
    epoch: u64,
    limits: Limits,
    messages: Messages,
    recent: Recent,
    positions: Positions,
    clock: StreamClock,
    /// Entries that the checkpoint must not pass, with the message that needs them.
    holds: BTreeSet<(Seq, Slot)>,
    /// What has ended, in the order in which it did, and waits for a commit.
    ended: VecDeque<Ended>,
    in_flight: Option<Vec<InFlight>>,
    /// The last entry read.
    last_seq: Seq,
    /// The reader has seen everything at least once under this epoch.
    has_caught_up: bool,
    /// The lowest entry of a message that has to wait in the stream.
    deferring: Option<Seq>,
    /// The checkpoint of the last commit handed out.
    checkpoint: Seq,
    committed_at: Timestamp,
    ticked_at: Timestamp,
    swept_at: Timestamp,
    /// Messages with something new to publish.
    touched: Vec<Slot>,
    to_look_up: Vec<MessageKey>,
    /// Look-ups under way for messages that were forgotten meanwhile. Their answers may be older than the message's end
    /// by the time they come, so they do not count for a message that was opened again.
    forgotten_look_ups: BTreeMap<MessageKey, u32>,
    counters: Counters,
}

#[derive(Debug)]
enum Ended {
    Message(Slot),
    Entry { seq: Seq, subject: String, payload: Bytes, refusal: Refusal },
}

#[derive(Debug)]
struct InFlight {
    slot: Slot,
    outcome: model::Outcome,
}

impl Partition {
    /// Starts from what the store has. `hash_seed` makes the tables of this process unpredictable to publishers;
    /// a simulation passes a fixed one.
    pub fn new(takeover: Takeover, limits: Limits, hash_seed: u64, now: Timestamp) -> Self {
        let mut partition = Self {
            id: takeover.partition,
            epoch: takeover.epoch,
            limits,
            messages: Messages::new(hash_seed),
            recent: Recent::new(limits.remembered, hash_seed),
            positions: Positions::above(takeover.position_high_water),
            clock: StreamClock::new(limits.stream_step_ms),
            holds: BTreeSet::new(),
            ended: VecDeque::new(),
            in_flight: None,
            last_seq: takeover.checkpoint,
            has_caught_up: false,
            deferring: None,
            checkpoint: takeover.checkpoint,
            committed_at: now,
            ticked_at: now,
            swept_at: now,
            touched: Vec::new(),
            to_look_up: Vec::new(),
            forgotten_look_ups: BTreeMap::new(),
            counters: Counters::default(),
        };
        let time = partition.clock.now(now);
        for saved in &takeover.stragglers {
            let slot = partition.messages.insert(Open::restore(saved, &limits, time));
            partition.touched.push(slot);
        }
        partition
    }

    /// Takes one input and decides. `now` is the caller's clock; it may be wrong, but should not jump.
    pub fn handle(&mut self, input: Input, now: Timestamp) -> Vec<Action> {
        let mut actions = Vec::new();
        match input {
            Input::Entries { entries, room } => self.read(entries, room, now, &mut actions),
            Input::CaughtUp(caught_up) => {
                if caught_up && !self.has_caught_up {
                    self.catch_up(now);
                }
                self.clock.set_caught_up(caught_up, now);
            }
            Input::Found(found) => self.found(found, now, &mut actions),
            Input::Committed(refused) => self.committed(&refused, &mut actions),
            Input::Checked(_)
            | Input::Started { .. }
            | Input::Answered { .. }
            | Input::Tasks { .. }
            | Input::Sent(_)
            | Input::Question(_) => {}
            Input::Ask(ask) => {
                let messages = self.messages.of_thread(&ask.thread);
                actions.push(Action::Answer(answer(&ask, self.epoch, messages)));
            }
            Input::Tick => self.tick(now, &mut actions),
            Input::Room => self.reread(now, &mut actions),
            Input::Shed(bytes) => self.shed(bytes),
        }
        self.publish(&mut actions);
        if !self.to_look_up.is_empty() {
            actions.push(Action::LookUp(std::mem::take(&mut self.to_look_up)));
        }
        self.commit_if_ready(now, &mut actions);
        actions
    }

    /// When [`Input::Tick`] is wanted next; `None` while nothing waits for time.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        let idle = self.messages.len() == 0 && self.low() <= self.checkpoint;
        (!idle).then(|| self.ticked_at.plus_ms(self.limits.tick_ms))
    }

    /// False while reading on would help nobody: new messages have to wait and none is open that could get on.
    pub fn wants_entries(&self) -> bool {
        self.deferring.is_none() || self.messages.iter().any(|open| open.phase != Phase::Ended)
    }

    /// True while new messages wait in the stream: tell it of room.
    pub fn is_deferring(&self) -> bool {
        self.deferring.is_some()
    }

    /// How it stands.
    pub fn stats(&mut self, now: Timestamp) -> Stats {
        let time = self.clock.now(now);
        Stats {
            open: self.messages.len(),
            chunks: self.messages.chunks,
            bytes: self.messages.bytes,
            oldest_ms: self.messages.iter().map(|open| open.age_ms(time)).max().unwrap_or(0),
            uncommitted: self.ended.len() + self.in_flight.as_ref().map_or(0, Vec::len),
            last_seq: self.last_seq.0,
            checkpoint: self.checkpoint.0,
            deferring: self.deferring.is_some(),
        }
    }

    /// Open messages and their bytes: cheap, for budgets.
    pub fn load(&self) -> (usize, usize) {
        (self.messages.len(), self.messages.bytes)
    }

    /// What happened since the last call.
    pub fn take_counters(&mut self) -> Counters {
        std::mem::take(&mut self.counters)
    }

    /// The last entry read: where a reader that lost its place goes on.
    pub fn last_seq(&self) -> Seq {
        self.last_seq
    }

    fn found(&mut self, found: Vec<(MessageKey, Known)>, now: Timestamp, actions: &mut Vec<Action>) {
        for (key, known) in found {
            if self.is_forgotten_look_up(&key) && known != Known::Ended {
                continue;
            }
            let Some(slot) = self.messages.find(&key.thread, &key.message) else { continue };
            let Some(open) = self.messages.get_mut(slot).filter(|open| open.phase == Phase::Unknown) else {
                continue;
            };
            match known {
                Known::Absent => {
                    open.phase = Phase::Live;
                    self.touched.push(slot);
                }
                // Nothing of it is ever shown.
                Known::NoThread => {
                    open.phase = Phase::Live;
                    open.failure = Some(Failure::UnknownThread);
                }
                Known::Ended => {
                    self.counters.late += open.received() as u64;
                    open.phase = Phase::Ended;
                    self.forget(slot);
                    self.recent.insert(key);
                    continue;
                }
            }
            self.settle(slot, now, actions);
        }
    }

    /// The ages of restored messages held the time since they were saved; reading its entries counted it again.
    fn catch_up(&mut self, now: Timestamp) {
        self.has_caught_up = true;
        let counted_ms = self.clock.now(now).since_ms(StreamClock::START);
        for slot in self.messages.slots() {
            if let Some(open) = self.messages.get_mut(slot).filter(|open| open.is_restored) {
                open.postpone(StreamClock::START, counted_ms);
            }
        }
    }

    /// Ends a live message that has become complete or has failed.
    fn settle(&mut self, slot: Slot, now: Timestamp, actions: &mut Vec<Action>) {
        let time = self.clock.now(now);
        let Some(open) = self.messages.get_mut(slot) else { return };
        if open.phase != Phase::Live || !(open.is_complete() || open.failure.is_some()) {
            return;
        }
        open.phase = Phase::Ended;
        if let Some(failure) = &open.failure {
            let gap_timeout = matches!(failure, Failure::GapTimeout { .. });
            self.counters.gap_timeouts += u64::from(gap_timeout);
            self.counters.failed += 1;
            actions.push(Action::Report(Report::GivenUp {
                key: open.key.clone(),
                failure: failure.clone(),
                expected: open.next(),
                received: open.received() as u32,
                released: open.released.len() as u32,
                idle_ms: open.idle_ms(time),
            }));
        }
        self.ended.push_back(Ended::Message(slot));
    }

    /// Drops a message without a trace in the store.
    fn forget(&mut self, slot: Slot) {
        let Some(Open { key, phase, hold, .. }) = self.messages.remove(slot) else { return };
        if let Some((seq, _)) = hold {
            self.holds.remove(&(seq, slot));
        }
        if phase == Phase::Unknown {
            *self.forgotten_look_ups.entry(key).or_default() += 1;
        }
    }

    /// Takes one off the look-ups under way for a forgotten message, if there is one.
    fn is_forgotten_look_up(&mut self, key: &MessageKey) -> bool {
        let Some(count) = self.forgotten_look_ups.get_mut(key) else { return false };
        *count -= 1;
        if *count == 0 {
            self.forgotten_look_ups.remove(key);
        }
        true
    }

    fn tick(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        self.ticked_at = now;
        let time = self.clock.now(now);
        let sweep = now.since_ms(self.swept_at) >= self.limits.sweep_ms;
        if sweep {
            self.swept_at = now;
        }
        for slot in self.messages.slots() {
            let Some(open) = self.messages.get_mut(slot).filter(|open| open.phase == Phase::Live) else {
                continue;
            };
            // What it lacks may stand unread in the stream since the time when nobody read.
            if open.is_restored && !self.has_caught_up {
                continue;
            }
            if open.gap_ms(time).is_some_and(|age| age >= self.limits.gap_timeout_ms) {
                open.failure = Some(open.gap_failure());
            } else if sweep && open.idle_ms(time) >= self.limits.stall_timeout_ms {
                open.failure = Some(Failure::Stalled);
            }
            self.settle(slot, now, actions);
        }
    }

    /// Sends what became ready, each message's chunks as one run.
    fn publish(&mut self, actions: &mut Vec<Action>) {
        for slot in std::mem::take(&mut self.touched) {
            let Some(open) = self.messages.get_mut(slot) else { continue };
            if let Some(chunks) = open.unpublished() {
                let (key, attempt, role) = (open.key.clone(), open.attempt, open.role);
                actions.push(Action::Publish(Release { key, attempt, role, chunks }));
            }
        }
    }

    fn reread(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        let Some(from) = self.deferring.take() else { return };
        self.last_seq = from.before();
        self.clock.set_caught_up(false, now);
        actions.push(Action::Reread(from));
    }

    /// Forgets the largest open messages that the stream still has whole; they are read again when there is room.
    fn shed(&mut self, bytes: usize) {
        let largest = |messages: &Messages| {
            let sheddable = messages.slots().filter(|slot| {
                messages.get(*slot).is_some_and(|open| open.phase != Phase::Ended && !open.is_saved)
            });
            sheddable.max_by_key(|slot| messages.get(*slot).map_or(0, Open::bytes))
        };
        let target = self.messages.bytes.saturating_sub(bytes);
        while self.messages.bytes > target {
            let Some(slot) = largest(&self.messages) else { break };
            let first = self.messages.get(slot).and_then(|open| open.hold).map(|(seq, _)| seq);
            // A reader that was set back comes to it anyway; to wait for it would skip what lies before.
            if let Some(first) = first.filter(|first| *first <= self.last_seq) {
                self.deferring = Some(self.deferring.map_or(first, |from| from.min(first)));
            }
            self.forget(slot);
            self.counters.shed += 1;
        }
    }

    /// The highest sequence up to which nothing is needed again.
    fn low(&self) -> Seq {
        let held = self.holds.first().map_or(self.last_seq, |(seq, _)| seq.before());
        let deferred = self.deferring.map_or(self.last_seq, Seq::before);
        held.min(deferred).min(self.last_seq)
    }
}

#[cfg(test)]
mod tests;
