//! Restores, starts, adopts and ends turns.

use std::collections::BTreeSet;
use std::sync::Arc;

use batches::memory::RecalledFacts;
use model::{
    Chunk, Frame, IncomingChunk, MessageFailure, MessageKey, RejectedEntry, Role, Seq, Timestamp, TurnError,
    TurnId, TurnOptions, TurnOrigin,
};
use scheduling::{AgentQueue, HeadState, Readiness};

use super::Partition;
use super::command_queue::Pending;
use crate::action::{Action, MachineReport, RefusedAnswer};
use crate::commit::Takeover;
use crate::committing::EndedInput;
use crate::messages::Slot;
use crate::open::{OpenMessage, Phase, TurnRef};
use crate::turn_state::{
    AnswerProgress, EndedTurn, Postponed, SUPERSEDED_BY_MESSAGE, SavedInput, TrackedTurn, TurnEnd,
    TurnSource, TurnState,
};
use crate::types::{NotNow, Start, Started, TurnCause};

/// First attempt of a request that a previous owner may have made as well. It is high enough that
/// deliveries of the two requests never have the same attempt if both are in the queue.
const SECOND_REQUEST: u32 = 16;

impl Partition {
    /// Restores queues and inputs left by the previous owner. No turn starts before everything has
    /// been read.
    pub(super) fn restore_work(&mut self, takeover: &mut Takeover) {
        let now = self.effects.now;
        for saved in takeover.agents.drain(..) {
            let until = saved.wait_ms.map(|ms| now.plus_ms(ms.max(0)));
            if let Some(until) = until {
                self.table.delays.backoffs.insert((until, saved.agent.clone()));
            }
            let (agent, tasks) = (saved.agent, saved.tasks);
            if !tasks.is_empty() {
                self.table.agents.restored.insert(agent.clone());
            }
            let queue = AgentQueue::restore(
                saved.head,
                saved.run,
                saved.failures,
                saved.paused,
                until,
                tasks,
                saved.more,
            );
            self.table.make_ready(&agent.thread());
            self.table.queue(&agent, |fresh| *fresh = queue);
        }
        let mut written_to = BTreeSet::new();
        for saved in takeover.open_turns.drain(..) {
            if !saved.opened.origin.is_synthetic() {
                written_to.insert(saved.opened.thread.clone());
            }
            let opened = saved.opened;
            let token = self.table.token_keys.token(&opened.thread, &opened.turn, opened.run);
            let (id, thread) = (opened.turn.clone(), opened.thread.clone());
            let is_behind =
                matches!(opened.origin, TurnOrigin::Continuation(_)) && saved.seq > takeover.checkpoint;
            let mut turn = TrackedTurn::of_input(Box::new(opened), token);
            turn.input.saved = SavedInput::Yes;
            turn.request.may_be_repeated = true;
            turn.times.known_at = now;
            turn.times.came_at = now.plus_ms(-saved.age_ms.max(0));
            self.table.insert(turn);
            if is_behind {
                self.commands.restored.push_back((saved.seq, id));
                continue;
            }
            self.table.thread_queues.entry(thread.clone()).or_default().admit(id, model::BusyPolicy::Enqueue);
            self.table.make_ready(&thread);
        }
        // The previous owner may have saved a follow-up and withdrawn it afterwards.
        for thread in written_to {
            self.withdraw_follow_ups(&thread);
        }
    }

    /// Attaches an answer saved by the previous owner to its turn; false if there is no such turn.
    pub(super) fn restore_answer(&mut self, slot: Slot) -> bool {
        let Some(key) = self.messages.get(slot).map(|open| open.key.clone()) else { return false };
        let Some((id, run)) = TurnId::of_answer(&key.message) else { return true };
        if !self.adopt(&key.thread, &id, run) {
            return false;
        }
        self.attach(&id, slot);
        true
    }

    fn attach(&mut self, id: &TurnId, slot: Slot) {
        let now = self.effects.now;
        let time = self.reading.clock.now(now);
        let idle_ms = self.messages.get(slot).map_or(0, |open| open.idle_ms(time));
        let heard_at = self.reading.last_stored_at.min(now.plus_ms(-idle_ms));
        let Some(turn) = self.table.turns.get_mut(id) else { return };
        if !turn.answer.has_progress() {
            self.effects.turn_times.heard(turn, now);
        }
        turn.answer = AnswerProgress { slot: Some(slot), progress_at: time, heard_at: Some(heard_at) };
        if let Some(open) = self.messages.get_mut(slot) {
            open.phase = Phase::Live;
            let batch_type = turn.batch_type();
            let is_held_back = turn.is_follow_up();
            open.turn = Some(TurnRef { id: id.clone(), token: turn.token.clone(), batch_type, is_held_back });
        }
    }

    /// True once everything present at the takeover has been read and checked. It is false again if
    /// the reader was set back to commands for which there was no room: answers to them may follow
    /// them in the stream.
    pub(super) fn may_begin(&self) -> bool {
        self.reading.has_caught_up
            && self.reading.last_seq >= self.reading.begins_after
            && self.commands.first().is_none_or(|seq| seq > self.reading.begins_after)
    }

    /// Starts the turns that can start. If the answer of a turn has already come, this turn
    /// continues before any other turn starts in its thread.
    pub(super) fn start_ready(&mut self) {
        let now = self.effects.now;
        if !self.may_begin() {
            return;
        }
        self.queue_restored(None);
        while let Some(agent) = self.table.delays.take_backoff(now) {
            self.table.make_ready(&agent.thread());
        }
        while let Some(thread) = self.table.delays.take_postponed(now) {
            self.table.make_ready(&thread);
        }
        self.look_at_timers();
        while self.table.active < self.limits.active_turns && !self.outbox.is_full() {
            let Some(thread) = self.table.next_ready() else { break };
            self.begin_next(&thread);
            self.table.forget_idle(&thread);
        }
    }

    fn begin_next(&mut self, thread: &model::ThreadId) {
        let now = self.effects.now;
        // The blocked chunks may answer the turn that would start. The thread is checked again when
        // these chunks are placed.
        if self.commands.blocks_thread(thread) {
            return;
        }
        let thread_queue = self.table.thread_queues.entry(thread.clone()).or_default();
        if thread_queue.active().is_some() {
            return;
        }
        let turns = &self.table.turns;
        let waiting = |id: &TurnId| turns.get(id).map_or(Readiness::Ready, |turn| turn.waiting(now));
        if let Some(id) = thread_queue.start_next(waiting) {
            return self.begin(&id);
        }
        let agent = thread.agent();
        let Some(queue) = self.table.agents.queues.get_mut(&agent) else { return };
        match queue.head_state(now) {
            HeadState::Ready => {
                if let Some(id) = self.take_head(thread) {
                    self.begin(&id);
                }
            }
            HeadState::Waits(until) => {
                self.table.delays.backoffs.insert((until, agent));
            }
            HeadState::NotLoaded => {
                if let Some(after) = queue.load_after() {
                    let limit = self.limits.queue_window.max(1);
                    self.effects.push(Action::LoadTasks { agent, after, limit });
                }
            }
            HeadState::None | HeadState::Running | HeadState::Paused | HeadState::Unsettled => {}
        }
    }

    /// Makes a turn of the first task of the thread's agent. This turn gets the thread, or is the
    /// next to get it.
    fn take_head(&mut self, thread: &model::ThreadId) -> Option<TurnId> {
        let agent = thread.agent();
        let queue = self.table.agents.queues.get_mut(&agent)?;
        let queued = queue.first()?.clone();
        let (id, run) = (TurnId::of_task(&agent, queued.position), queue.run);
        let thread_queue = self.table.thread_queues.entry(thread.clone()).or_default();
        if !thread_queue.start(id.clone()) {
            thread_queue.wait_first(id.clone());
        }
        queue.begin();
        self.table.delays.postponed_queues.remove(&agent);
        let token = self.table.token_keys.token(thread, &id, run);
        let mut turn = TrackedTurn::of_task(id.clone(), queued, run, token);
        turn.request.may_be_repeated = self.table.agents.restored.remove(&agent);
        self.table.insert(turn);
        Some(id)
    }

    /// Starts the request of a turn that has its thread. If its answer has already come, only the
    /// rules are requested.
    fn begin(&mut self, id: &TurnId) {
        let now = self.effects.now;
        let time = self.reading.clock.now(now);
        let Some(turn) = self.table.turns.get_mut(id) else { return };
        turn.begin(now, time);
        self.table.active += 1;
        self.effects.counters.turns_started += 1;
        self.effects.push(Action::Start(Box::new(start(turn))));
        if let Some(slot) = turn.answer.slot {
            self.settle(slot);
        }
    }

    /// Adopts a turn because a chunk shows that a previous owner started it. True if the turn is
    /// active now, or will be when its thread is free. Dropping the chunk would lose an answer that
    /// is not sent again.
    fn adopt(&mut self, thread: &model::ThreadId, id: &TurnId, run: u32) -> bool {
        let now = self.effects.now;
        if !self.table.turns.contains_key(id) {
            let agent = thread.agent();
            let queue = self.table.agents.queues.get(&agent);
            let is_head = queue.is_some_and(|queue| {
                queue.run == run
                    && !queue.is_busy()
                    && queue.first().is_some_and(|first| TurnId::of_task(&agent, first.position) == *id)
            });
            if !is_head || self.take_head(thread).is_none() {
                return false;
            }
        }
        let Some(turn) = self.table.turns.get_mut(id).filter(|turn| turn.run == run) else { return false };
        match turn.state {
            TurnState::Ended(_) => return false,
            TurnState::Starting | TurnState::Running => return true,
            TurnState::Waiting { .. } => {}
        }
        let thread_queue = self.table.thread_queues.entry(thread.clone()).or_default();
        if thread_queue.active() != Some(id) && !thread_queue.start(id.clone()) {
            thread_queue.wait_first(id.clone());
            return true;
        }
        turn.adopt();
        turn.answer.progress_at = self.reading.clock.now(now);
        self.table.active += 1;
        self.effects.counters.turns_started += 1;
        true
    }

    /// The open answer that a chunk of a turn belongs to; `None` if the chunk is not accepted.
    pub(super) fn answer_slot(
        &mut self,
        frame: &Frame,
        arrival: &IncomingChunk,
        (id, run): (&TurnId, u32),
        seq: Seq,
    ) -> Option<Slot> {
        let now = self.effects.now;
        let accepts = |received| self.table.token_keys.accepts(&frame.thread, id, run, received);
        if !frame.token.as_ref().is_some_and(accepts) {
            self.unproven_chunk(id, run);
            self.reject_unauthorized(&frame.thread, arrival);
            return None;
        }
        let was_adopted = self.table.turns.get(id).is_some_and(TrackedTurn::is_adopted);
        if !self.adopt(&frame.thread, id, run) {
            if self.table.turns.get(id).is_some_and(|turn| turn.run == run) {
                self.too_late(id, seq);
            } else {
                self.effects.counters.fenced += 1;
                self.answer_late_run(frame, arrival, (id, run));
            }
            return None;
        }
        let turn = self.table.turns.get(id)?;
        if turn.is_adopted() && !was_adopted && self.reading.has_caught_up {
            self.effects.push(Action::Start(Box::new(start(turn))));
        }
        let key = MessageKey { thread: frame.thread.clone(), message: arrival.message.clone() };
        let time = self.reading.clock.now(now);
        let slot = self.messages.insert(OpenMessage::new(key, arrival, seq, &self.limits, time));
        self.attach(id, slot);
        Some(slot)
    }

    /// Handles the first chunk of a run that is over. Until the end of the run is committed,
    /// another owner may have to continue it.
    fn too_late(&mut self, id: &TurnId, seq: Seq) {
        let Some(turn) = self.table.turns.get(id) else { return };
        self.effects.counters.late += 1;
        let held = turn.input.hold.map_or(seq, |hold| hold.seq);
        if turn.input.hold.is_none() {
            self.table.hold(id, self.hold_at(seq));
        }
        // If the chunk was read twice while it waited behind a command, its hold was released with
        // its entry.
        self.reading.hold_entry(held);
    }

    pub(super) fn reject_unauthorized(&mut self, thread: &model::ThreadId, arrival: &IncomingChunk) {
        self.effects.counters.unauthorized += 1;
        let key = MessageKey { thread: thread.clone(), message: arrival.message.clone() };
        self.effects.push(Action::Report(MachineReport::Unauthorized(key)));
    }

    /// Notes an accepted chunk of a turn's answer.
    pub(super) fn on_turn_chunk(&mut self, slot: Slot, time: Timestamp) {
        let Some(turn) = self.messages.get(slot).and_then(|open| open.turn.as_ref()) else { return };
        if let Some(turn) = self.table.turns.get_mut(&turn.id) {
            (turn.answer.progress_at, turn.answer.heard_at) = (time, Some(self.reading.last_stored_at));
            turn.request.state.on_chunk();
        }
    }

    pub(super) fn started(&mut self, id: &TurnId, run: u32, started: Started) {
        let now = self.effects.now;
        let time = self.reading.clock.now(now);
        let Some(turn) = self.table.turns.get_mut(id).filter(|turn| turn.run == run) else {
            self.effects.push(Action::Abandon { turn: id.clone(), run });
            return;
        };
        if let Some(ended) = turn.ended_mut() {
            ended.is_abandoned = true;
            return;
        }
        let (rules, refused) = match started {
            Started::NotNow(why) => return self.postpone(id, why),
            Started::Superseded(by) if turn.is_follow_up() => {
                if by == SUPERSEDED_BY_MESSAGE || turn.answer.slot.is_none() || !turn.is_starting() {
                    return self.end_turn(id, TurnEnd::Withdrawn(by));
                }
                // A previous owner had started the turn in time, and its answer has come meanwhile.
                turn.adopt();
                return self.effects.push(Action::Start(Box::new(start(turn))));
            }
            Started::Superseded(_) => {
                let detail = "it is no follow-up, and is not taken back".to_owned();
                return self.end_turn(id, TurnEnd::Failed(MessageFailure::Unrequestable { detail }));
            }
            Started::Requested(rules) => (rules, None),
            Started::Refused { rules, text } => (rules, Some(MessageFailure::Unrequestable { detail: text })),
            Started::Unreadable { rules, detail } => (rules, Some(MessageFailure::Unstorable { detail })),
        };
        let pending_end = turn.request.set_rules(rules);
        if turn.is_starting() {
            turn.state = TurnState::Running;
            turn.request.was_behind = !self.reading.clock.is_caught_up();
            turn.request.published_at = Some(now);
            turn.answer.progress_at = turn.answer.progress_at.max(time);
        }
        if let Some(end) = pending_end.or(refused.map(TurnEnd::Failed)) {
            self.end_turn(id, end);
        }
    }

    /// Stores the facts given to a run.
    pub(super) fn recalled(&mut self, id: &TurnId, run: u32, facts: RecalledFacts) {
        if let Some(turn) = self.table.turns.get_mut(id).filter(|turn| turn.run == run) {
            turn.request.recalled = facts;
        }
    }

    /// Postpones a turn that its agent cannot start now; nothing was requested. The turn waits as
    /// before its start, and the driver tries again later. The agent may live in another partition,
    /// and an operator may end a pause or a backoff at any time.
    fn postpone(&mut self, id: &TurnId, why: NotNow) {
        let now = self.effects.now;
        let Some(turn) = self.table.turns.get_mut(id).filter(|turn| turn.is_starting()) else {
            return;
        };
        if turn.answer.slot.is_some() {
            // A previous owner had started the turn, and its answer has come meanwhile.
            turn.adopt();
            return self.effects.push(Action::Start(Box::new(start(turn))));
        }
        if !turn.is_task() && self.table.delays.postponed.len() >= self.limits.postponed_turns {
            let detail = "its agent backs off, is paused, has spent a budget or meets a limit, and too many turns wait for that already"
                .to_owned();
            return self.end_turn(id, TurnEnd::Failed(MessageFailure::Unrequestable { detail }));
        }
        let postponed = Postponed::new(why, now);
        turn.state = TurnState::Waiting { postponed: Some(postponed) };
        let (thread, agent, is_task) = (turn.thread.clone(), turn.agent().clone(), turn.is_task());
        self.table.active -= 1;
        self.effects.counters.postponed += 1;
        let thread_queue = self.table.thread_queues.entry(thread.clone()).or_default();
        thread_queue.leave(id);
        if is_task {
            if self.table.remove(id).is_some_and(|turn| turn.request.may_be_repeated) {
                self.table.agents.restored.insert(agent.clone());
            }
            if let Some(queue) = self.table.agents.queues.get_mut(&agent) {
                queue.rest();
                queue.wait_until(postponed.until);
            }
            self.table.delays.backoffs.insert((postponed.until, agent.clone()));
            self.table.delays.postponed_queues.insert(agent, postponed);
        } else {
            thread_queue.wait_first(id.clone());
            self.table.delays.postponed.insert((postponed.until, thread.clone()));
        }
        self.table.make_ready(&thread);
    }

    /// Handles the answer of a workflow in this process.
    pub(super) fn answered(&mut self, id: &TurnId, run: u32, chunks: &[Arc<Chunk>]) {
        let now = self.effects.now;
        let turn = self.table.turns.get(id).filter(|turn| turn.run == run && turn.answer.slot.is_none());
        let Some(turn) = turn.filter(|turn| !turn.has_ended()) else { return };
        let key = MessageKey { thread: turn.thread.clone(), message: id.answer(run) };
        let (limits, time, mut slot) = (self.limits, self.reading.clock.now(now), None);
        for chunk in chunks {
            let arrival = IncomingChunk {
                message: key.message.clone(),
                attempt: 0,
                step: 0,
                role: Role::Assistant,
                chunk: Arc::clone(chunk),
            };
            let slot = *slot.get_or_insert_with(|| {
                self.messages.insert(OpenMessage::new(key.clone(), &arrival, Seq(0), &limits, time))
            });
            self.messages.account(slot, |open| open.take(&arrival, None, &limits, time, now));
        }
        let Some(slot) = slot else { return };
        self.attach(id, slot);
        self.messages.touched.push(slot);
        self.settle(slot);
    }

    /// Handles an answer that is complete or has failed.
    pub(super) fn answer_ended(&mut self, slot: Slot) {
        let Some(open) = self.messages.get(slot) else { return };
        let Some(id) = open.turn.as_ref().map(|turn| turn.id.clone()) else { return };
        match open.failure.clone() {
            // The driver still has to report what the settings say, which facts the turn was given,
            // and whether a follow-up started by a previous owner is wanted.
            None if self.table.turns.get(&id).is_some_and(|turn| {
                !turn.request.has_rules() && matches!(turn.source, TurnSource::Input(_))
            }) =>
            {
                if let Some(turn) = self.table.turns.get_mut(&id) {
                    turn.request.end_later(TurnEnd::Complete);
                }
            }
            None => self.end_turn(&id, TurnEnd::Complete),
            Some(failure) => self.fail_turn(&id, failure),
        }
    }

    /// Handles a refused payload that carries a turn's token. Without this payload the answer can
    /// never be complete, so the turn fails. It fails at once, or after the commands before the
    /// payload: one of them may open the turn when the stream is read again.
    pub(super) fn refuse_answer(&mut self, answer: RefusedAnswer, refusal: RejectedEntry) {
        if self.commands.pending.is_empty() {
            self.fail_refused(&answer, refusal);
        } else {
            self.commands.pending.push_back(Pending::Refused { answer, refusal });
        }
    }

    pub(super) fn fail_refused(&mut self, answer: &RefusedAnswer, refusal: RejectedEntry) {
        let RefusedAnswer { thread, token, dead_letter } = answer;
        let keys = &self.table.token_keys;
        let is_meant = |turn: &&TrackedTurn| {
            !turn.has_ended()
                && (turn.token.matches(token) || keys.accepts(thread, &turn.id, turn.run, token))
        };
        let found = self.table.thread_queues.get(thread).and_then(|queue| {
            let turns = queue.active().into_iter().chain(queue.waiting());
            turns.filter_map(|id| self.table.turns.get(id)).find(is_meant).map(|turn| turn.id.clone())
        });
        let Some(id) = found else { return };
        let (code, detail) = (refusal.code.to_owned(), refusal.detail);
        self.fail_turn(&id, MessageFailure::Refused { code, detail, dead_letter: dead_letter.clone() });
    }

    /// Fails a turn. The effect of a task's failure depends on its agent's rules, so the failure
    /// waits until they are known.
    pub(super) fn fail_turn(&mut self, id: &TurnId, failure: MessageFailure) {
        let Some(turn) = self.table.turns.get_mut(id) else { return };
        if turn.is_task() && !turn.request.has_rules() {
            turn.request.end_later(TurnEnd::Failed(failure));
            return;
        }
        self.end_turn(id, TurnEnd::Failed(failure));
    }

    /// Ends a turn in any phase and hands it to the next commit.
    pub(super) fn end_turn(&mut self, id: &TurnId, end: TurnEnd) {
        let may_begin = self.may_begin();
        let Some(turn) = self.table.turns.get_mut(id) else { return };
        let was_under_way = match turn.state {
            TurnState::Ended(_) => return,
            TurnState::Starting | TurnState::Running => true,
            TurnState::Waiting { .. } => false,
        };
        // A previous owner may have requested a waiting turn, except one that has just been
        // rejected as busy.
        let is_refused = end == TurnEnd::Failed(MessageFailure::Turn(TurnError::Busy));
        let is_abandoned = is_ours(&end) && !(is_refused && may_begin);
        turn.state = TurnState::Ended(EndedTurn { end, is_abandoned, stopped_by: None });
        if !was_under_way {
            // Nothing waits for the turn, but the turn counts as active until its end is committed.
            self.table.active += 1;
            let thread_queue = self.table.thread_queues.entry(turn.thread.clone()).or_default();
            thread_queue.leave(id);
        }
        if let Some(open) = turn.answer.slot.and_then(|slot| self.messages.get_mut(slot)) {
            open.phase = Phase::Ended;
        }
        self.push_ended(EndedInput::Turn(id.clone()));
    }

    /// Continues turns that the previous owner started and did not end, after everything has been
    /// read.
    pub(super) fn resume_work(&mut self) {
        for turn in self.table.turns.values() {
            if turn.is_adopted() && !turn.request.has_rules() {
                self.effects.push(Action::Start(Box::new(start(turn))));
            }
        }
    }
}

/// True if the workflow must be notified of this end, because it was not the cause.
fn is_ours(end: &TurnEnd) -> bool {
    match end {
        TurnEnd::Complete => false,
        TurnEnd::Stopped | TurnEnd::Withdrawn(_) => true,
        TurnEnd::Failed(failure) => !matches!(failure, MessageFailure::ProducerError { .. }),
    }
}

fn start(turn: &TrackedTurn) -> Start {
    let (cause, content, metadata, options) = match &turn.source {
        TurnSource::Input(opened) => {
            let cause = TurnCause::Input(opened.origin.clone());
            (cause, opened.content.clone(), opened.input_metadata().into_owned(), opened.options.clone())
        }
        TurnSource::Task(queued) => {
            let task = &queued.task;
            let cause = TurnCause::Task { id: task.id.clone(), kind: task.kind, origin: task.origin.clone() };
            (cause, task.content.clone(), task.task_metadata().into_owned(), TurnOptions::default())
        }
    };
    Start {
        turn: turn.id.clone(),
        run: turn.run,
        attempt: if turn.request.may_be_repeated { SECOND_REQUEST } else { 0 },
        thread: turn.thread.clone(),
        agent: turn.agent().clone(),
        cause,
        content,
        metadata,
        is_adopted: turn.is_adopted(),
        waited_ms: turn.times.began_at.map(|at| at.since_ms(turn.accepted_at())),
        token: turn.token.clone(),
        options,
    }
}
