//! The state machine of one partition.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use model::{
    AgentId, AnswerReport, MessageFailure, MessageKey, PartitionId, Position, PositionMark, Positions,
    QueuedTask, RejectedEntry, Seq, ThreadId, TimerId, Timestamp, TurnId,
};

use crate::action::{Action, Input, MachineReport, ReadyChunks};
use crate::commit::{Lookup, Takeover};
use crate::followers::Followers;
use crate::frames::Frames;
use crate::late_runs::LateRuns;
use crate::limits::{MOST_UNSENT, PartitionLimits};
use crate::messages::{Messages, Slot};
use crate::open::{OpenMessage, Phase, chunks_within};
use crate::recent::Recent;
use crate::saves::Saving;
use crate::stats::{Counters, Stats, TurnTimes};
use crate::stream_clock::StreamClock;
use crate::timer_window::TimerWindow;
use crate::timers::TimerPage;
use crate::turn_state::{TurnPhase, TurnTable};
use crate::types::{OutboxBatch, StatusReply};

mod after_turn;
mod command_queue;
mod commands;
mod commit;
mod control;
mod finish;
mod follow_up;
mod gateways;
mod input_message;
mod late;
mod message_times;
mod read;
mod requests;
mod saving;
mod status;
mod timers;
mod turns;
mod usage;

use command_queue::CommandQueue;

/// Slot in [`Partition::holds`] of an entry without a message: a command, or an entry that becomes
/// a dead letter.
const NO_SLOT: Slot = Slot::MAX;

/// An entry, and the index of a chunk in its frame; 0 in an entry without chunks.
type EntryPlace = (Seq, usize);

/// One partition under one epoch. See the crate's documentation.
#[derive(Debug)]
pub struct Partition {
    id: PartitionId,
    epoch: u64,
    limits: PartitionLimits,
    messages: Messages,
    /// Messages that ended recently.
    recent: Recent<MessageKey, ()>,
    positions: Positions,
    /// Every position up to this mark is committed, or never will be.
    committed: PositionMark,
    frames: Frames,
    followers: Followers,
    clock: StreamClock,
    /// Entries that the checkpoint must not pass, with the message that needs them.
    holds: BTreeSet<(Seq, Slot)>,
    saving: Saving,
    /// Bytes of entries read, each counted once.
    read_bytes: u64,
    /// Highest entry ever read.
    highest_seq: Seq,
    /// Ended inputs that wait for a commit, in the order in which they ended.
    ended: VecDeque<EndedInput>,
    /// Bytes of the chunks in `ended`.
    ended_bytes: usize,
    /// Bytes of the refused entries in `ended`.
    refused_bytes: usize,
    in_flight: Option<InFlightCommit>,
    commands: CommandQueue,
    table: TurnTable,
    timers: TimerWindow,
    late: LateRuns,
    /// Outbox batches left by the previous owner, until they are returned.
    to_send: Vec<OutboxBatch>,
    /// Number of unpublished outbox batches, and the published ones that still have rows.
    unsent: usize,
    sent: Vec<Position>,
    /// Saved answers without a turn; their rows are deleted.
    orphans: Vec<MessageKey>,
    /// Last entry read, and when it was stored.
    last_seq: Seq,
    last_stored_at: Timestamp,
    /// True once the reader has seen everything under this epoch.
    has_caught_up: bool,
    /// Last entry read when the reader caught up. Commands up to it are decided before turns start.
    begins_after: Seq,
    /// First item that has to wait in the stream.
    deferring: Option<EntryPlace>,
    /// Chunks before this place in its frame have been taken. The entry is read again for a chunk
    /// that had to wait, and messages that ended meanwhile must not use up its room each time.
    resumes_at: EntryPlace,
    /// Checkpoint of the last commit returned.
    checkpoint: Seq,
    committed_at: Timestamp,
    ticked_at: Timestamp,
    swept_at: Timestamp,
    /// Messages with chunks to publish.
    touched: Vec<Slot>,
    to_look_up: Vec<MessageKey>,
    /// Number of messages being looked up.
    looking_up: usize,
    /// Pending look-ups of messages that were forgotten meanwhile. An answer may be older than the
    /// message's end, so it is ignored for a message that was opened again.
    forgotten_look_ups: BTreeMap<MessageKey, u32>,
    counters: Counters,
    turn_times: TurnTimes,
}

#[derive(Debug)]
enum EndedInput {
    Message(Slot),
    Turn(TurnId),
    Entry { seq: Seq, subject: String, payload: Bytes, refusal: RejectedEntry },
}

#[derive(Debug)]
enum InFlight {
    Message { slot: Slot, position: Position, outcome: model::MessageOutcome, report: AnswerReport },
    Turn(TurnInFlight),
}

/// A turn whose commit is under way.
#[derive(Debug)]
struct TurnInFlight {
    id: TurnId,
    position: Position,
    /// `None`: the turn leaves nothing, and nothing of it is shown.
    outcome: Option<model::MessageOutcome>,
    report: AnswerReport,
    /// Backoff of the agent from the commit on, ms.
    wait_ms: Option<i64>,
}

/// What follows from the commit in flight once it is applied.
#[derive(Debug, Default)]
struct InFlightCommit {
    ended: Vec<InFlight>,
    tasks: Vec<QueuedTask>,
    /// Agents whose pending tasks are changed, one item per change.
    more: Vec<AgentId>,
    outbox: Option<OutboxBatch>,
    /// Timers written, with the time in ms until they are due if they stay pending.
    timers: Vec<(TimerId, Option<i64>)>,
    /// Threads with a follow-up that the commit arms.
    armed: Vec<ThreadId>,
    /// Mark of the positions assigned when the commit was built.
    given: Option<PositionMark>,
    /// Bytes of the chunks of the ended inputs.
    bytes: usize,
}

/// Approximate bytes of a refused entry in memory.
fn refused_size(payload: &Bytes) -> usize {
    payload.len() + 256
}

/// Failure text of a message that the store refuses to look up.
const LOOKUP_REFUSED: &str =
    "the database refuses for good to look the message up; the worker's log says why";

impl Partition {
    /// `hash_seed` makes the tables of this process unpredictable to publishers; a simulation
    /// passes a fixed one.
    pub fn new(mut takeover: Takeover, limits: PartitionLimits, hash_seed: u64, now: Timestamp) -> Self {
        let mut partition = Self {
            id: takeover.partition,
            epoch: takeover.epoch,
            limits,
            messages: Messages::new(hash_seed),
            recent: Recent::new(hash_seed),
            positions: Positions::above(takeover.position_high_water).by_clock(takeover.granted_at, now),
            committed: Positions::above(takeover.position_high_water).given(),
            frames: Frames::new(takeover.epoch, limits.numbered_threads, hash_seed),
            followers: Followers::new(hash_seed),
            clock: StreamClock::new(limits.stream_step_ms),
            holds: BTreeSet::new(),
            saving: Saving::default(),
            read_bytes: 0,
            highest_seq: takeover.checkpoint,
            ended: VecDeque::new(),
            ended_bytes: 0,
            refused_bytes: 0,
            in_flight: None,
            commands: CommandQueue::new(takeover.checkpoint, hash_seed),
            table: TurnTable::new(takeover.token_keys.clone(), hash_seed),
            timers: TimerWindow::new(
                std::mem::replace(&mut takeover.timers, TimerPage::NONE),
                limits.timer_window,
                now,
            ),
            late: LateRuns::default(),
            to_send: Vec::new(),
            unsent: takeover.outbox.len() + takeover.outbox_beyond,
            sent: Vec::new(),
            orphans: Vec::new(),
            last_seq: takeover.checkpoint,
            last_stored_at: now,
            has_caught_up: false,
            begins_after: Seq(0),
            deferring: None,
            resumes_at: (Seq(0), 0),
            checkpoint: takeover.checkpoint,
            committed_at: now,
            ticked_at: now,
            swept_at: now,
            touched: Vec::new(),
            to_look_up: Vec::new(),
            looking_up: 0,
            forgotten_look_ups: BTreeMap::new(),
            counters: Counters::default(),
            turn_times: TurnTimes::default(),
        };
        let time = partition.clock.now(now);
        partition.restore_work(&mut takeover, now);
        for saved in &takeover.spilled_messages {
            let slot = partition.messages.insert(OpenMessage::restore(saved, &limits, time, now));
            if partition.restore_answer(slot, now) {
                partition.touched.push(slot);
            } else {
                partition.messages.remove(slot);
                partition.orphans.push(saved.key.clone());
            }
        }
        partition.to_send = takeover.outbox;
        partition
    }

    /// Handles one input. `now` is the caller's clock; it may be wrong, but should not jump.
    pub fn handle(&mut self, input: Input, now: Timestamp) -> Vec<Action> {
        let mut actions: Vec<Action> = self.to_send.drain(..).map(Action::Send).collect();
        match input {
            Input::Entries { entries, room } => self.read(entries, room, now, &mut actions),
            Input::CaughtUp(caught_up) => {
                if caught_up && !self.has_caught_up {
                    self.catch_up(now, &mut actions);
                }
                self.clock.set_caught_up(caught_up, now);
                if caught_up {
                    // If the stream lost its end, there is nothing more to wait for.
                    self.begins_after = self.begins_after.min(self.last_seq);
                    self.requests_are_read(now);
                }
            }
            Input::Found(found) => self.found(found, now, &mut actions),
            Input::Committed(refused) => self.committed(refused, now, &mut actions),
            Input::Checked(verdicts) => self.checked(verdicts, now, &mut actions),
            Input::Started { turn, run, started } => self.started(&turn, run, started, now, &mut actions),
            Input::Recalled { turn, run, facts } => self.recalled(&turn, run, facts),
            Input::Requests(news) => self.request_news(news, now),
            Input::Answered { turn, run, chunks } => self.answered(&turn, run, &chunks, now, &mut actions),
            Input::Tasks { agent, after, tasks, more } => {
                self.table.queue(&agent, |queue| queue.loaded(after, tasks, more));
                self.table.make_ready(&agent.thread());
            }
            Input::TimersDecided(decisions) => self.timers_decided(decisions, now, &mut actions),
            Input::Timers(page) => self.timers.loaded(page, now),
            Input::TimersChanged => self.timers.reread(),
            Input::TokenKeys(keys) => self.set_token_keys(keys),
            Input::TaskDelayed { seq, outcome } => self.task_delayed(seq, outcome, now),
            Input::Sent(batch) => {
                self.unsent -= 1;
                self.sent.push(batch);
            }
            Input::Status(query) => {
                let status = self.status(&query.target, now);
                actions.push(Action::Status(Box::new(StatusReply { token: query.token, status })));
            }
            Input::Snapshot(request) => self.show(&request, now, &mut actions),
            Input::ChangedThreads(query) => actions.push(self.changed_threads(&query, now)),
            Input::Tick => self.tick(now, &mut actions),
            Input::Saved(refused) => self.saved(refused, now, &mut actions),
            Input::Room => self.reread(now, &mut actions),
            Input::Shed(bytes) => self.shed(bytes),
        }
        self.publish(&mut actions);
        if !self.to_look_up.is_empty() {
            self.looking_up += self.to_look_up.len();
            actions.push(Action::Lookup(std::mem::take(&mut self.to_look_up)));
        }
        if let Some(keys) = self.commands.take_checks() {
            actions.push(Action::Check(keys));
        }
        self.start_ready(now, &mut actions);
        self.save_if_due(now, &mut actions);
        self.commit_if_ready(now, &mut actions);
        self.clock.set_paused(self.is_ahead(), now);
        actions
    }

    /// When [`Input::Tick`] is wanted next; `None` while nothing waits for time.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        let idle = self.messages.len() == 0
            && self.table.turns.is_empty()
            && self.sent.is_empty()
            && self.low() <= self.checkpoint;
        let tick = (!idle).then(|| self.ticked_at.plus_ms(self.limits.tick_ms));
        let backoff = self.table.backoffs.first().map(|(until, _)| *until);
        let postponed = self.table.postponed.first().map(|(until, _)| *until);
        let due = self.timers.first().filter(|_| self.unsent < MOST_UNSENT);
        let timer = backoff.into_iter().chain(postponed).chain(due).min().filter(|_| self.may_begin());
        tick.into_iter().chain(timer).min()
    }

    /// True if the action to start the turn has been returned and its end is not committed. Until
    /// then it keeps its place under limits: the commit says how many tokens it used.
    pub fn is_active(&self, turn: &TurnId) -> bool {
        self.table.turns.get(turn).is_some_and(|turn| turn.phase != TurnPhase::Waiting)
    }

    pub fn stats(&mut self, now: Timestamp) -> Stats {
        let time = self.clock.now(now);
        let (runnable_agents, oldest_runnable_ms) = self.table.runnable(now);
        Stats {
            open: self.messages.len(),
            chunks: self.messages.chunks,
            bytes: self.messages.bytes,
            oldest_ms: self.messages.iter().map(|open| open.age_ms(time)).max().unwrap_or(0),
            replay_permille: self.replay_permille(),
            uncommitted: self.looking_up
                + self.ended.len()
                + self.commands.len()
                + self.in_flight.as_ref().map_or(0, |commit| commit.ended.len() + commit.tasks.len()),
            last_seq: self.last_seq.0,
            checkpoint: self.checkpoint.0,
            deferring: self.deferring.is_some(),
            active_turns: self.table.active,
            waiting_turns: self.table.waiting_turns(now),
            waiting_agents: self.table.waiting_agents(now),
            backing_off: self.table.backing_off(now),
            timers: self.timers.len(),
            queued_tasks: self.table.queues.values().map(scheduling::AgentQueue::len).sum(),
            runnable_agents,
            oldest_runnable_ms,
            unsent: self.unsent,
            remembered_bytes: self.recent.bytes() + self.commands.remembered_bytes(),
        }
    }

    /// Open messages, commands and inputs, and their bytes. Cheap; used for memory budgets.
    pub fn load(&self) -> (usize, usize) {
        let count = self.messages.len() + self.commands.len() + self.table.turns.len();
        (count, self.messages.bytes + self.table.bytes + self.commands.remembered_bytes())
    }

    /// Batches that active or waiting turns continue.
    pub fn continued(&self) -> impl Iterator<Item = (&ThreadId, Position)> {
        self.table.turns.values().filter_map(|turn| Some((&turn.thread, turn.continues()?)))
    }

    /// Counts since the last call.
    pub fn take_counters(&mut self) -> Counters {
        std::mem::take(&mut self.counters)
    }

    /// Durations of turns since the last call.
    pub fn take_turn_times(&mut self) -> TurnTimes {
        std::mem::take(&mut self.turn_times)
    }

    /// Sets the bytes of chunks in one frame.
    pub fn limit_frames(&mut self, bytes: usize) {
        self.limits.frame_bytes = bytes;
    }

    /// Last entry read, after which a reader that lost its place resumes.
    pub fn last_seq(&self) -> Seq {
        self.last_seq
    }

    fn found(&mut self, found: Vec<(MessageKey, Lookup)>, now: Timestamp, actions: &mut Vec<Action>) {
        self.looking_up = self.looking_up.saturating_sub(found.len());
        for (key, known) in found {
            if self.is_forgotten_look_up(&key) && known != Lookup::Ended {
                continue;
            }
            let Some(slot) = self.messages.find(&key.thread, &key.message) else { continue };
            let Some(open) = self.messages.get_mut(slot).filter(|open| open.phase == Phase::Unknown) else {
                continue;
            };
            match known {
                Lookup::Absent => {
                    open.phase = Phase::Live;
                    self.touched.push(slot);
                }
                // Nothing of the message is ever shown.
                Lookup::NoThread => {
                    open.phase = Phase::Live;
                    open.failure = Some(MessageFailure::UnknownThread);
                }
                Lookup::Refused => {
                    open.phase = Phase::Live;
                    open.failure = Some(MessageFailure::Unstorable { detail: LOOKUP_REFUSED.to_owned() });
                }
                Lookup::Ended => {
                    self.counters.late += open.received() as u64;
                    open.phase = Phase::Ended;
                    self.forget(slot);
                    self.remember(key);
                    continue;
                }
            }
            self.settle(slot, now, actions);
        }
    }

    /// Called when the reader has caught up. The ages of restored messages include the time since
    /// they were saved, and reading their entries again has counted that time twice.
    fn catch_up(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        self.has_caught_up = true;
        self.begins_after = self.last_seq;
        self.resume_work(actions);
        let time = self.clock.now(now);
        let counted_ms = time.since_ms(StreamClock::START);
        for slot in self.messages.slots() {
            let Some(open) = self.messages.get_mut(slot).filter(|open| open.is_restored) else { continue };
            open.postpone(StreamClock::START, counted_ms);
            if let Some(turn) = open.turn.as_ref().and_then(|turn| self.table.turns.get_mut(&turn.id)) {
                turn.progress_at = time.plus_ms(-open.idle_ms(time));
            }
        }
    }

    /// Ends a live message that is complete or has failed.
    fn settle(&mut self, slot: Slot, now: Timestamp, actions: &mut Vec<Action>) {
        let time = self.clock.now(now);
        let Some(open) = self.messages.get_mut(slot) else { return };
        if open.phase != Phase::Live || !(open.is_complete() || open.failure.is_some()) {
            return;
        }
        // The answer came before its turn had the thread.
        let turn = open.turn.as_ref().and_then(|turn| self.table.turns.get(&turn.id));
        if turn.is_some_and(|turn| turn.phase == TurnPhase::Waiting) {
            return;
        }
        open.phase = Phase::Ended;
        if let Some(failure) = &open.failure {
            let gap_timeout = matches!(failure, MessageFailure::GapTimeout { .. });
            self.counters.gap_timeouts += u64::from(gap_timeout);
            self.counters.failed += 1;
            // The failure of a turn's answer is reported with the end of its run.
            if open.turn.is_none() {
                let (key, failure, buffer) = (open.key.clone(), failure.clone(), open.buffer_state(time));
                let correlation_id = open.correlation_id();
                actions.push(Action::Report(MachineReport::GivenUp { key, failure, buffer, correlation_id }));
            }
        }
        match self.messages.get(slot).is_some_and(|open| open.turn.is_some()) {
            true => self.answer_ended(slot),
            false => self.push_ended(EndedInput::Message(slot)),
        }
    }

    /// Remembers that the message has ended: duplicates of its chunks that follow soon are dropped
    /// without a look-up.
    fn remember(&mut self, key: MessageKey) {
        self.recent.insert(key, ());
        self.recent.keep_within(self.limits.remembered_bytes);
    }

    /// Drops a message from memory; nothing is written to the store.
    fn forget(&mut self, slot: Slot) {
        let Some(OpenMessage { key, phase, hold, .. }) = self.messages.remove(slot) else { return };
        if let Some(hold) = hold {
            self.holds.remove(&(hold.seq, slot));
        }
        if phase == Phase::Unknown {
            *self.forgotten_look_ups.entry(key).or_default() += 1;
        }
    }

    /// Subtracts one from the pending look-ups of a forgotten message; false if there is none.
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
        self.saving.is_resting = false;
        self.followers.expire(now);
        let time = self.clock.now(now);
        let sweep = now.since_ms(self.swept_at) >= self.limits.sweep_ms;
        if sweep {
            self.swept_at = now;
        }
        let blocked_turns = self.commands.blocked_turns();
        for slot in self.messages.slots() {
            let Some(open) = self.messages.get_mut(slot).filter(|open| open.phase == Phase::Live) else {
                continue;
            };
            // The missing chunk may have been read already and wait behind a command.
            if open.turn.as_ref().is_some_and(|turn| blocked_turns.contains(&turn.id)) {
                continue;
            }
            // The missing chunk may be unread in the stream: it came while nothing was read.
            if open.is_restored && !self.has_caught_up {
                continue;
            }
            if open.gap_ms(time).is_some_and(|age| age >= self.limits.gap_timeout_ms) {
                open.failure = Some(open.gap_failure());
            } else if sweep && open.turn.is_none() && open.idle_ms(time) >= self.limits.stall_timeout_ms {
                open.failure = Some(MessageFailure::Stalled);
            }
            self.settle(slot, now, actions);
        }
        if self.clock.is_caught_up() {
            self.check_deadlines(time, now, &blocked_turns);
        }
    }

    /// Publishes ready chunks, each message's chunks as one run.
    fn publish(&mut self, actions: &mut Vec<Action>) {
        for slot in std::mem::take(&mut self.touched) {
            if !self.messages.get(slot).is_some_and(OpenMessage::is_held_back) {
                self.publish_message(slot, actions);
            }
        }
    }

    fn publish_message(&mut self, slot: Slot, actions: &mut Vec<Action>) {
        let Some(open) = self.messages.get_mut(slot) else { return };
        let Some(mut chunks) = open.unpublished() else { return };
        loop {
            let rest = chunks.split_off(chunks_within(&chunks, self.limits.frame_bytes));
            let (key, attempt, role) = (open.key.clone(), open.attempt, open.role);
            let (frame, batch_type) = (self.frames.next(&key.thread), open.batch_type());
            actions.push(Action::Publish(ReadyChunks { key, attempt, role, batch_type, chunks, frame }));
            if rest.is_empty() {
                break;
            }
            chunks = rest;
        }
    }

    fn reread(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        let Some(place) = self.deferring.take() else { return };
        let (from, _) = place;
        self.resumes_at = place;
        self.last_seq = from.before();
        self.clock.set_caught_up(false, now);
        actions.push(Action::Reread(from));
    }

    /// Forgets the largest open messages that the stream still has completely. Answers of turns
    /// stay: a command that ends an answer would not find it if it were forgotten.
    fn shed(&mut self, bytes: usize) {
        let largest = |messages: &Messages| {
            let sheddable = messages.slots().filter(|slot| {
                messages
                    .get(*slot)
                    .is_some_and(|open| open.phase != Phase::Ended && !open.is_saved && open.turn.is_none())
            });
            sheddable.max_by_key(|slot| messages.get(*slot).map_or(0, OpenMessage::bytes))
        };
        let target = self.messages.bytes.saturating_sub(bytes);
        while self.messages.bytes > target {
            let Some(slot) = largest(&self.messages) else { break };
            let first = self.messages.get(slot).and_then(|open| open.hold).map(|hold| hold.seq);
            // A reader that was set back reaches the entry anyway; waiting for it would skip the
            // entries before it.
            if let Some(first) = first.filter(|first| *first <= self.last_seq) {
                self.deferring = Some(self.deferring.map_or((first, 0), |from| from.min((first, 0))));
            }
            // The message's chunks must be taken again, wherever in their frames they are.
            self.resumes_at.1 = 0;
            self.forget(slot);
            self.counters.shed += 1;
        }
    }

    /// Highest sequence up to which nothing is needed again.
    fn low(&self) -> Seq {
        let held = self.holds.first().map_or(self.last_seq, |(seq, _)| seq.before());
        let deferred = self.deferring.map_or(self.last_seq, |(seq, _)| seq.before());
        held.min(deferred).min(self.last_seq)
    }
}

#[cfg(test)]
mod tests;
