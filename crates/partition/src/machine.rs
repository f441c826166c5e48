//! The state machine of one partition.

use model::{MessageFailure, MessageKey, Position, Seq, ThreadId, Timestamp, TurnId};

use crate::action::{Action, Input, MachineReport, ReadyChunks};
use crate::commit::{Lookup, Takeover};
use crate::committing::{Committing, EndedInput};
use crate::effects::Effects;
use crate::followers::Followers;
use crate::frames::Frames;
use crate::limits::PartitionLimits;
use crate::messages::{Messages, Slot};
use crate::open::{OpenMessage, Phase, chunks_within};
use crate::outbox::Outbox;
use crate::publishing::Publishing;
use crate::reading::StreamReading;
use crate::stats::{Counters, Stats, TurnTimes};
use crate::stream_clock::StreamClock;
use crate::timer_window::TimerWindow;
use crate::timers::TimerPage;
use crate::turn_table::TurnTable;
use crate::types::StatusReply;

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
mod new_work;
mod read;
mod requests;
mod saving;
mod status;
mod timers;
mod turns;
mod usage;

use command_queue::CommandQueue;

/// One partition under one epoch: the components that own its state, and the coordinator that
/// passes inputs to them. See the crate's documentation.
#[derive(Debug)]
pub struct Partition {
    limits: PartitionLimits,
    effects: Effects,
    reading: StreamReading,
    messages: Messages,
    publishing: Publishing,
    commands: CommandQueue,
    table: TurnTable,
    timers: TimerWindow,
    committing: Committing,
    outbox: Outbox,
}

/// Failure text of a message that the store refuses to look up.
const LOOKUP_REFUSED: &str =
    "the database refuses for good to look the message up; the worker's log says why";

impl Partition {
    /// `hash_seed` makes the tables of this process unpredictable to publishers; a simulation
    /// passes a fixed one.
    pub fn new(mut takeover: Takeover, limits: PartitionLimits, hash_seed: u64, now: Timestamp) -> Self {
        let (checkpoint, timer_page) =
            (takeover.checkpoint, std::mem::replace(&mut takeover.timers, TimerPage::NONE));
        let mut partition = Self {
            limits,
            effects: Effects::new(now),
            reading: StreamReading::new(checkpoint, limits.stream_step_ms, now),
            messages: Messages::new(hash_seed, now),
            publishing: Publishing {
                frames: Frames::new(takeover.epoch, limits.numbered_threads, hash_seed),
                followers: Followers::new(hash_seed),
            },
            commands: CommandQueue::new(checkpoint, hash_seed),
            table: TurnTable::new(takeover.token_keys.clone(), hash_seed),
            timers: TimerWindow::new(timer_page, limits.timer_window, now),
            committing: Committing::new(&takeover, now),
            outbox: Outbox {
                to_send: Vec::new(),
                unsent: takeover.outbox.len() + takeover.outbox_beyond,
                sent: Vec::new(),
            },
        };
        let time = partition.reading.clock.now(now);
        partition.restore_work(&mut takeover);
        for saved in &takeover.spilled_messages {
            let slot = partition.messages.insert(OpenMessage::restore(saved, &limits, time, now));
            if partition.restore_answer(slot) {
                partition.messages.touched.push(slot);
            } else {
                partition.messages.remove(slot);
                partition.committing.orphans.push(saved.key.clone());
            }
        }
        partition.outbox.to_send = takeover.outbox;
        partition
    }

    /// Handles one input. `now` is the caller's clock; it may be wrong, but should not jump.
    pub fn handle(&mut self, input: Input, now: Timestamp) -> Vec<Action> {
        self.effects.now = now;
        self.effects.extend(self.outbox.to_send.drain(..).map(Action::Send));
        match input {
            Input::Entries { entries, room } => self.read(entries, room),
            Input::CaughtUp(caught_up) => {
                if caught_up && !self.reading.has_caught_up {
                    self.catch_up();
                }
                self.reading.clock.set_caught_up(caught_up, now);
                if caught_up {
                    // If the stream lost its last entries, there is nothing more to wait for.
                    self.reading.begins_after = self.reading.begins_after.min(self.reading.last_seq);
                    self.requests_are_read();
                }
            }
            Input::Found(found) => self.found(found),
            Input::Committed(refused) => self.committed(refused),
            Input::Checked(verdicts) => self.checked(verdicts),
            Input::Started { turn, run, started } => self.started(&turn, run, started),
            Input::Recalled { turn, run, facts } => self.recalled(&turn, run, facts),
            Input::Requests(news) => self.request_news(news),
            Input::Answered { turn, run, chunks } => self.answered(&turn, run, &chunks),
            Input::Tasks { agent, after, tasks, more } => {
                self.table.queue(&agent, |queue| queue.loaded(after, tasks, more));
                self.table.make_ready(&agent.thread());
            }
            Input::TimersDecided(decisions) => self.timers_decided(decisions),
            Input::Timers(page) => self.timers.loaded(page, now),
            Input::TimersChanged => self.timers.reread(),
            Input::TokenKeys(keys) => self.set_token_keys(keys),
            Input::TaskDelayed { seq, outcome } => self.task_delayed(seq, outcome),
            Input::Sent(batch) => self.outbox.sent(batch),
            Input::Status(query) => {
                let status = self.status(&query.target);
                self.effects.push(Action::Status(Box::new(StatusReply { token: query.token, status })));
            }
            Input::Snapshot(request) => self.show(&request),
            Input::ChangedThreads(query) => {
                let changed = self.changed_threads(&query);
                self.effects.push(changed);
            }
            Input::Tick => self.tick(),
            Input::Saved(refused) => self.saved(refused),
            Input::Room => self.reread(),
            Input::Shed(bytes) => self.shed(bytes),
        }
        self.publish();
        if let Some(keys) = self.messages.look_ups.take() {
            self.effects.push(Action::Lookup(keys));
        }
        if let Some(keys) = self.commands.take_checks() {
            self.effects.push(Action::Check(keys));
        }
        self.start_ready();
        self.save_if_due();
        self.commit_if_ready();
        self.reading.clock.set_paused(self.is_ahead(), now);
        self.effects.take_actions()
    }

    /// Time at which the next [`Input::Tick`] is needed; `None` while nothing waits for time.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        let idle = self.messages.len() == 0
            && self.table.turns.is_empty()
            && self.outbox.sent.is_empty()
            && self.reading.low() <= self.committing.checkpoint;
        let tick = (!idle).then(|| self.messages.ticked_at.plus_ms(self.limits.tick_ms));
        let backoff = self.table.delays.backoffs.first().map(|(until, _)| *until);
        let postponed = self.table.delays.postponed.first().map(|(until, _)| *until);
        let due = self.timers.first().filter(|_| !self.outbox.is_full());
        let timer = backoff.into_iter().chain(postponed).chain(due).min().filter(|_| self.may_begin());
        tick.into_iter().chain(timer).min()
    }

    /// True if the action to start the turn has been returned and its end is not committed. Until
    /// then the turn counts toward limits, because only the commit shows how many tokens it used.
    pub fn is_active(&self, turn: &TurnId) -> bool {
        self.table.turns.get(turn).is_some_and(|turn| !turn.is_waiting())
    }

    pub fn stats(&mut self, now: Timestamp) -> Stats {
        let time = self.reading.clock.now(now);
        let (runnable_agents, oldest_runnable_ms) = self.table.runnable(now);
        Stats {
            open: self.messages.len(),
            chunks: self.messages.chunks,
            bytes: self.messages.bytes,
            oldest_ms: self.messages.iter().map(|open| open.age_ms(time)).max().unwrap_or(0),
            replay_permille: self.replay_permille(),
            uncommitted: self.messages.look_ups.under_way
                + self.committing.ended.queue.len()
                + self.commands.len()
                + self
                    .committing
                    .in_flight
                    .as_ref()
                    .map_or(0, |commit| commit.ended.len() + commit.tasks.len()),
            last_seq: self.reading.last_seq.0,
            checkpoint: self.committing.checkpoint.0,
            deferring: self.reading.deferring.is_some(),
            active_turns: self.table.active,
            waiting_turns: self.table.waiting_turns(now),
            waiting_agents: self.table.waiting_agents(now),
            backing_off: self.table.backing_off(now),
            timers: self.timers.len(),
            queued_tasks: self.table.agents.queues.values().map(scheduling::AgentQueue::len).sum(),
            runnable_agents,
            oldest_runnable_ms,
            unsent: self.outbox.unsent,
            remembered_bytes: self.messages.look_ups.ended.bytes() + self.commands.remembered_bytes(),
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
        std::mem::take(&mut self.effects.counters)
    }

    /// Durations of turns since the last call.
    pub fn take_turn_times(&mut self) -> TurnTimes {
        std::mem::take(&mut self.effects.turn_times)
    }

    /// Sets the bytes of chunks in one frame.
    pub fn limit_frames(&mut self, bytes: usize) {
        self.limits.frame_bytes = bytes;
    }

    /// Last entry read, after which a reader that lost its place resumes.
    pub fn last_seq(&self) -> Seq {
        self.reading.last_seq
    }

    fn found(&mut self, found: Vec<(MessageKey, Lookup)>) {
        self.messages.look_ups.under_way = self.messages.look_ups.under_way.saturating_sub(found.len());
        for (key, known) in found {
            if self.messages.look_ups.is_forgotten(&key) && known != Lookup::Ended {
                continue;
            }
            let Some(slot) = self.messages.find(&key.thread, &key.message) else { continue };
            let Some(open) = self.messages.get_mut(slot).filter(|open| open.phase == Phase::Unknown) else {
                continue;
            };
            match known {
                Lookup::Absent => {
                    open.phase = Phase::Live;
                    self.messages.touched.push(slot);
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
                    self.effects.counters.late += open.received() as u64;
                    open.phase = Phase::Ended;
                    self.forget(slot);
                    self.messages.look_ups.remember(key, self.limits.remembered_bytes);
                    continue;
                }
            }
            self.settle(slot);
        }
    }

    /// Called when the reader has caught up. The ages of restored messages include the time since
    /// they were saved, and reading their entries again has counted that time twice.
    fn catch_up(&mut self) {
        let now = self.effects.now;
        self.reading.has_caught_up = true;
        self.reading.begins_after = self.reading.last_seq;
        self.resume_work();
        let time = self.reading.clock.now(now);
        let counted_ms = time.since_ms(StreamClock::START);
        for slot in self.messages.slots() {
            let Some(open) = self.messages.get_mut(slot).filter(|open| open.is_restored) else { continue };
            open.postpone(StreamClock::START, counted_ms);
            if let Some(turn) = open.turn.as_ref().and_then(|turn| self.table.turns.get_mut(&turn.id)) {
                turn.answer.progress_at = time.plus_ms(-open.idle_ms(time));
            }
        }
    }

    /// Ends a live message that is complete or has failed.
    fn settle(&mut self, slot: Slot) {
        let now = self.effects.now;
        let time = self.reading.clock.now(now);
        let Some(open) = self.messages.get_mut(slot) else { return };
        if open.phase != Phase::Live || !(open.is_complete() || open.failure.is_some()) {
            return;
        }
        // The answer came before its turn had the thread.
        let turn = open.turn.as_ref().and_then(|turn| self.table.turns.get(&turn.id));
        if turn.is_some_and(|turn| turn.is_waiting()) {
            return;
        }
        open.phase = Phase::Ended;
        if let Some(failure) = &open.failure {
            let gap_timeout = matches!(failure, MessageFailure::GapTimeout { .. });
            self.effects.counters.gap_timeouts += u64::from(gap_timeout);
            self.effects.counters.failed += 1;
            // The failure of a turn's answer is reported with the end of its run.
            if open.turn.is_none() {
                let (key, failure, buffer) = (open.key.clone(), failure.clone(), open.buffer_state(time));
                let correlation_id = open.correlation_id();
                self.effects.push(Action::Report(MachineReport::GivenUp {
                    key,
                    failure,
                    buffer,
                    correlation_id,
                }));
            }
        }
        match self.messages.get(slot).is_some_and(|open| open.turn.is_some()) {
            true => self.answer_ended(slot),
            false => self.push_ended(EndedInput::Message(slot)),
        }
    }

    /// Drops a message from memory; nothing is written to the store.
    fn forget(&mut self, slot: Slot) {
        let Some(OpenMessage { key, phase, hold, .. }) = self.messages.remove(slot) else { return };
        if let Some(hold) = hold {
            self.reading.holds.remove(&(hold.seq, slot));
        }
        if phase == Phase::Unknown {
            *self.messages.look_ups.forgotten.entry(key).or_default() += 1;
        }
    }

    fn tick(&mut self) {
        let now = self.effects.now;
        self.messages.ticked_at = now;
        self.committing.saving.is_resting = false;
        self.publishing.followers.expire(now);
        let time = self.reading.clock.now(now);
        let sweep = now.since_ms(self.messages.swept_at) >= self.limits.sweep_ms;
        if sweep {
            self.messages.swept_at = now;
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
            if open.is_restored && !self.reading.has_caught_up {
                continue;
            }
            if open.gap_ms(time).is_some_and(|age| age >= self.limits.gap_timeout_ms) {
                open.failure = Some(open.gap_failure());
            } else if sweep && open.turn.is_none() && open.idle_ms(time) >= self.limits.stall_timeout_ms {
                open.failure = Some(MessageFailure::Stalled);
            }
            self.settle(slot);
        }
        if self.reading.clock.is_caught_up() {
            self.check_deadlines(time, &blocked_turns);
        }
    }

    /// Publishes ready chunks, each message's chunks as one run.
    fn publish(&mut self) {
        for slot in std::mem::take(&mut self.messages.touched) {
            if !self.messages.get(slot).is_some_and(OpenMessage::is_held_back) {
                self.publish_message(slot);
            }
        }
    }

    fn publish_message(&mut self, slot: Slot) {
        let Some(open) = self.messages.get_mut(slot) else { return };
        let Some(mut chunks) = open.unpublished() else { return };
        loop {
            let rest = chunks.split_off(chunks_within(&chunks, self.limits.frame_bytes));
            let (key, attempt, role) = (open.key.clone(), open.attempt, open.role);
            let (frame, batch_type) = (self.publishing.frames.next(&key.thread), open.batch_type());
            self.effects.push(Action::Publish(ReadyChunks {
                input: None,
                key,
                attempt,
                role,
                batch_type,
                chunks,
                frame,
            }));
            if rest.is_empty() {
                break;
            }
            chunks = rest;
        }
    }

    fn reread(&mut self) {
        let reread = self.reading.go_back(self.effects.now).map(Action::Reread);
        self.effects.extend(reread);
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
            if let Some(first) = first.filter(|first| *first <= self.reading.last_seq) {
                self.reading.deferring =
                    Some(self.reading.deferring.map_or((first, 0), |from| from.min((first, 0))));
            }
            // The message's chunks must be taken again, wherever in their frames they are.
            self.reading.resumes_at.1 = 0;
            self.forget(slot);
            self.effects.counters.shed += 1;
        }
    }
}

#[cfg(test)]
mod tests;
