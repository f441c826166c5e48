//! Turns ended turns, new tasks and control commands into the writes of a commit.

use model::{
    AnswerReport, Bucket, ChunkKind, ErrorClass, FailedMessage, FrameNumber, Message, MessageFailure,
    MessageKey, MessageOutcome, Placement, Position, QueuedTask, RetryHint, Role, TurnError, TurnId,
};

use super::Partition;
use super::after_turn::{self, Continuation};
use super::follow_up::armed;
use super::input_message::{input_message, with_correlation_id};
use super::message_times::{of_answer, of_input};
use crate::action::{Action, BufferState, MachineReport, MessageEnded};
use crate::commit::Commit;
use crate::committing::{InFlight, TurnInFlight};
use crate::late_runs::EndedRun;
use crate::open::OpenMessage;
use crate::turn_state::{EndedTurn, SavedInput, TrackedTurn, TurnEnd, TurnSource, TurnState};
use crate::turn_table::TurnTable;
use crate::types::{
    AgentWrite, BackoffChange, CommandKey, FailedTask, FailedTurn, Fallback, OutboxBatch, Outgoing,
    TaskWrite, TurnEnded, TurnStatus, TurnWrite,
};

/// Guard that is always met: only the stored head decides.
const ANY: Position = Position::MAX;

/// Consequences of a failure for a task.
struct Judgement {
    class: ErrorClass,
    floor_ms: i64,
    /// True if the failure counts against the agent.
    counts: bool,
}

impl Partition {
    pub(super) fn add_turn(
        &mut self,
        id: &TurnId,
        commit: &mut Commit,
        outgoing: &mut Vec<Outgoing>,
    ) -> Option<InFlight> {
        let now = self.effects.now;
        if let Some(seq) = self.table.release(id) {
            self.reading.release_entry(seq);
        }
        let turn = self.table.turns.get_mut(id)?;
        if let Some((seq, audited)) = turn.ended_mut().and_then(|ended| ended.stopped_by.take()) {
            self.reading.release_entry(seq);
            commit.audit.push(audited);
        }
        if turn.input.saved != SavedInput::No {
            commit.ended_turns.push((turn.thread.clone(), id.clone()));
        }
        if let Some(slot) = turn.answer.slot {
            let open = self.messages.get_mut(slot)?;
            if let Some(hold) = open.hold.take() {
                self.reading.holds.remove(&(hold.seq, slot));
            }
            if open.is_saved {
                commit.ended_spills.push(open.key.clone());
            }
        }
        let used = super::usage::usage(turn, turn.answer.slot.and_then(|slot| self.messages.get(slot)));
        commit.usage.extend(used);
        if let Some(timer) = turn.timer().cloned() {
            return self.add_follow_up(id, timer, commit, outgoing);
        }
        let end = turn.end().cloned()?;
        let (position, (outcome, report), wait_ms) = match self.messages_of(id, &end) {
            Ok(messages) => {
                let position = messages.last().map_or(ANY, |message| message.placement.position);
                (position, self.complete(id, messages, &end, commit, outgoing), None)
            }
            Err(failure) => {
                let (slot, time) =
                    (self.table.turns.get(id).and_then(|turn| turn.answer.slot), self.reading.clock.now(now));
                let buffer =
                    slot.and_then(|slot| self.messages.get(slot)).map(|open| open.buffer_state(time));
                let position = self.add_failed_message(id, &failure, commit)?;
                let (outcome, wait_ms) = self.failed(id, failure, buffer, commit, outgoing);
                (position, (outcome, AnswerReport::default()), wait_ms)
            }
        };
        let (id, outcome) = (id.clone(), Some(outcome));
        Some(InFlight::Turn(TurnInFlight { id, position, outcome, report, wait_ms }))
    }

    /// Adds the failed message shown to clients that connect later. Returns its position among the
    /// ends of the thread.
    fn add_failed_message(
        &mut self,
        id: &TurnId,
        failure: &MessageFailure,
        commit: &mut Commit,
    ) -> Option<Position> {
        let now = self.effects.now;
        let turn = self.table.turns.get(id)?;
        let position = self.committing.positions.next(turn.thread.bucket(), now);
        let open = turn.answer.slot.and_then(|slot| self.messages.get(slot));
        commit.failed_messages.push(FailedMessage {
            key: MessageKey { thread: turn.thread.clone(), message: id.answer(turn.run) },
            position,
            attempt: open.map_or(0, |open| open.attempt),
            role: Role::Assistant,
            batch_type: turn.batch_type(),
            failure: failure.clone(),
        });
        Some(position)
    }

    /// Input, steps and answer with their positions, or the failure.
    pub(super) fn messages_of(&mut self, id: &TurnId, end: &TurnEnd) -> Result<Vec<Message>, MessageFailure> {
        let now = self.effects.now;
        let ending = match end {
            TurnEnd::Complete => batches::Ending::Final,
            TurnEnd::Stopped => batches::Ending::Stopped,
            TurnEnd::Failed(failure) => return Err(failure.clone()),
            TurnEnd::Withdrawn(_) => return Ok(Vec::new()),
        };
        let Some(turn) = self.table.turns.get(id) else { return Ok(Vec::new()) };
        let open = turn.answer.slot.and_then(|slot| self.messages.get(slot));
        let released = open.map(|open| open.released.as_slice()).unwrap_or_default();
        let folded = batches::fold_turn(released, ending)
            .map_err(|error| MessageFailure::Unstorable { detail: error.to_string() })?;
        let (bucket, attempt) = (turn.thread.bucket(), open.map_or(0, |open| open.attempt));
        let mut messages = Vec::with_capacity(folded.len() + 1);
        let input = input_message(turn, self.committing.positions.next(bucket, now));
        messages.push(Message { times: of_input(turn, open), ..input });
        let (batch_id, last) = (messages[0].placement.batch_id, folded.len());
        let mut results = (0, 0);
        for (number, folded) in (1_usize..).zip(folded) {
            results = if results.0 == folded.step { (results.0, results.1 + 1) } else { (folded.step, 0) };
            let message = match folded.role {
                _ if number == last => id.answer(turn.run),
                Role::Tool => id.result(turn.run, folded.step, results.1),
                Role::Assistant | Role::User | Role::System => {
                    results.1 = 0;
                    id.step(turn.run, folded.step)
                }
            };
            let placement = Placement {
                position: self.committing.positions.next(bucket, now),
                batch_id,
                sequence_num: number as i32,
                batch_type: messages[0].placement.batch_type,
            };
            self.effects.counters.ambiguous_calls +=
                batches::ambiguous_calls(folded.tool_calls.as_ref()) as u64;
            let metadata = match number == last {
                true => with_correlation_id(folded.metadata, turn),
                false => folded.metadata,
            };
            // A stopped turn ends at the time of the stop, not of its last chunk.
            let mut times = of_answer(turn, open, folded.chunks, Some(now));
            if number == last && *end == TurnEnd::Stopped {
                times.created_at = Some(now);
            }
            messages.push(Message {
                key: MessageKey { thread: turn.thread.clone(), message },
                placement,
                role: folded.role,
                content: folded.content,
                tool_calls: folded.tool_calls,
                tool_call_id: folded.tool_call_id,
                metadata,
                token_count: folded.token_count,
                attempt,
                times,
            });
        }
        Ok(messages)
    }

    pub(super) fn complete(
        &mut self,
        id: &TurnId,
        mut messages: Vec<Message>,
        end: &TurnEnd,
        commit: &mut Commit,
        outgoing: &mut Vec<Outgoing>,
    ) -> (MessageOutcome, AnswerReport) {
        let report = super::usage::report(id, &mut messages, &commit.usage);
        let batch = messages.first().map(|message| message.placement.batch_id);
        let is_stopped = *end == TurnEnd::Stopped;
        let outcome = if is_stopped { MessageOutcome::Stopped } else { MessageOutcome::Complete };
        let Some(turn) = self.table.turns.get(id) else { return (outcome, report) };
        // A stopped answer requests no continuation: its producer's metadata is not kept.
        let continuation = after_turn::continuation(turn, &messages);
        self.effects.counters.continuations += u64::from(matches!(continuation, Continuation::Next(_)));
        self.effects.counters.continuations_rejected += u64::from(continuation == Continuation::Rejected);
        let status = if is_stopped { TurnStatus::Stopped } else { TurnStatus::Completed };
        let answer = id.answer(turn.run);
        let ended = TurnEnded { message: Some(answer.clone()), batch, ..turn_ended(turn, status, None) };
        let answered_by = matches!(turn.source, TurnSource::Input(_)).then(|| turn.agent().clone());
        let (agent, ends_failed, on_refusal) = match &turn.source {
            TurnSource::Task(queued) => {
                let queued = queued.clone();
                let failed = failed_task(&queued, "stopped", "stopped by an operator");
                if is_stopped {
                    commit.fail_task(failed.clone());
                }
                let index = self.advance(&queued, commit);
                (index, None, Fallback::Task(failed))
            }
            TurnSource::Input(opened) => {
                // The tasks that follow a batch are sent when its last continuation has ended.
                if !is_stopped && !matches!(continuation, Continuation::Next(_)) {
                    outgoing.extend(
                        after_turn::tasks(opened, &turn.request, &messages, batch)
                            .into_iter()
                            .map(Outgoing::Task),
                    );
                }
                if !is_stopped {
                    let goes_on = matches!(continuation, Continuation::Next(_));
                    commit.timers.extend(armed(turn, &messages, goes_on, &mut self.effects));
                }
                let ends_failed = (turn.run > 0).then(|| turn.thread.clone());
                let failed = FailedTurn {
                    opened: turn.failed_input(opened),
                    code: "rejected_by_database".to_owned(),
                    text: String::new(),
                    is_retryable: false,
                    partial: String::new(),
                };
                let on_refusal = match turn.timer().cloned() {
                    Some(timer) => Fallback::FollowUp(timer),
                    None => Fallback::Turn(Box::new(failed)),
                };
                (None, ends_failed, on_refusal)
            }
        };
        if let Continuation::Next(next) = continuation {
            self.add_new_work(next, commit);
        }
        outgoing.push(Outgoing::TurnEnded(ended));
        let write = TurnWrite { turn: id.clone(), messages, agent, answered_by, ends_failed, on_refusal };
        let counted = write.counted_facts();
        self.effects.counters.facts += counted.remembered;
        self.effects.counters.repeated_facts += counted.repeated;
        if let Some(invalid) = counted.invalid {
            self.effects.counters.invalid_facts += invalid.count;
            self.effects.push(Action::Report(MachineReport::InvalidFacts { turn: id.clone(), invalid }));
        }
        commit.add_turn(write);
        (outcome, report)
    }

    /// Moves the head past a task that is done or given up. Returns the index of the write.
    fn advance(&mut self, queued: &QueuedTask, commit: &mut Commit) -> Option<usize> {
        let agent = &queued.task.agent;
        if let Some(until) = self.table.agents.queues.get(agent)?.waits_until() {
            self.table.delays.backoffs.remove(&(until, agent.clone()));
        }
        let (had_backoff, paused) = self.table.queue(agent, |queue| (queue.advance(), queue.paused));
        let dirty = self.table.agents.changed.remove(agent);
        let wait = match had_backoff {
            true => BackoffChange::Clear,
            false => dirty.map_or(BackoffChange::Keep, |dirty| dirty.wait),
        };
        commit.agents.push(AgentWrite {
            agent: agent.clone(),
            guard: queued.position,
            head: queued.position,
            run: 0,
            failures: 0,
            wait,
            paused,
            error: None,
        });
        Some(commit.agents.len() - 1)
    }

    fn failed(
        &mut self,
        id: &TurnId,
        failure: MessageFailure,
        buffer: Option<BufferState>,
        commit: &mut Commit,
        outgoing: &mut Vec<Outgoing>,
    ) -> (MessageOutcome, Option<i64>) {
        self.effects.counters.turns_failed += 1;
        let Some(turn) = self.table.turns.get(id) else { return (MessageOutcome::Failed(failure), None) };
        let (code, text) = (failure.code().to_owned(), failure.to_string());
        let (run, thread, agent) = (turn.run, turn.thread.clone(), turn.agent().clone());
        let ended = turn_ended(turn, TurnStatus::Failed, Some(code.clone()));
        let judgement = judge(&failure);
        let correlation_id = match &turn.source {
            TurnSource::Input(opened) => opened.options.correlation_id.clone(),
            TurnSource::Task(_) => None,
        };
        let wait_ms = match &turn.source {
            TurnSource::Input(opened) => {
                let open = turn.answer.slot.and_then(|slot| self.messages.get(slot));
                commit.fail_turn(FailedTurn {
                    opened: turn.failed_input(opened),
                    code: code.clone(),
                    text: text.clone(),
                    is_retryable: judgement.class != ErrorClass::Permanent,
                    partial: open.map(text_so_far).unwrap_or_default(),
                });
                outgoing.push(Outgoing::TurnEnded(ended));
                if judgement.class == ErrorClass::Auth {
                    outgoing.extend(after_turn::pause(opened, run).map(Outgoing::Pause));
                }
                None
            }
            TurnSource::Task(queued) => {
                let queued = queued.clone();
                let rules = turn.request.rules().unwrap_or_default();
                let failures =
                    self.table.agents.queues.get(&queued.task.agent).map_or(0, |queue| queue.failures);
                let is_last = judgement.counts
                    && judgement.class == ErrorClass::Transient
                    && rules.max_attempts.is_some_and(|most| failures + 1 >= most);
                if is_last || judgement.class == ErrorClass::Permanent {
                    commit.fail_task(failed_task(&queued, &code, &text));
                    self.effects.counters.tasks_failed += 1;
                    self.advance(&queued, commit);
                    outgoing.push(Outgoing::TurnEnded(ended));
                    None
                } else {
                    let error = Some((code.clone(), text.clone()));
                    self.keep(&queued, rules, &judgement, error, commit)
                }
            }
        };
        let (turn, backoff_ms) = (id.clone(), wait_ms);
        let report = MachineReport::TurnFailed {
            turn,
            run,
            thread,
            agent,
            code,
            text,
            backoff_ms,
            buffer,
            correlation_id,
        };
        self.effects.push(Action::Report(report));
        (MessageOutcome::Failed(failure), wait_ms)
    }

    /// Keeps a failed task at the head; its agent backs off, is paused, or tries again. Returns the
    /// backoff, ms.
    fn keep(
        &mut self,
        queued: &QueuedTask,
        rules: crate::types::TurnRules,
        judgement: &Judgement,
        error: Option<(String, String)>,
        commit: &mut Commit,
    ) -> Option<i64> {
        let agent = &queued.task.agent;
        let random = self.table.agents.random();
        let queue = self.table.agents.queues.get_mut(agent)?;
        let dirty = self.table.agents.changed.remove(agent).map_or(BackoffChange::Keep, |dirty| dirty.wait);
        let (wait, wait_ms) = match (judgement.counts, judgement.class) {
            (true, ErrorClass::Auth) => {
                queue.paused = true;
                queue.requeue_head();
                (dirty, None)
            }
            (true, ErrorClass::Transient | ErrorClass::Permanent) => {
                queue.fail();
                let (base, cap) = (rules.backoff_base_ms, rules.backoff_cap_ms);
                let delay = scheduling::backoff::delay_ms(queue.failures, base, cap, random);
                let delay = delay.max(judgement.floor_ms);
                self.effects.counters.backoffs += 1;
                (BackoffChange::Start(delay), Some(delay))
            }
            (false, _) => {
                queue.requeue_head();
                (dirty, None)
            }
        };
        commit.agents.push(AgentWrite {
            agent: agent.clone(),
            guard: queued.position,
            head: TurnTable::head(queue),
            run: queue.run,
            failures: queue.failures,
            wait,
            paused: queue.paused,
            error: error.filter(|_| judgement.counts),
        });
        wait_ms
    }

    /// Puts accepted tasks into their queues.
    pub(super) fn add_tasks(&mut self, commit: &mut Commit) {
        let now = self.effects.now;
        let mut size = 0;
        while commit.weight() < self.limits.commit_turns && size < self.limits.commit_bytes {
            let Some((seq, task, digest)) = self.commands.incoming.pop_front() else { break };
            self.reading.release_entry(seq);
            size += task.size();
            let position = self.committing.positions.next(task.bucket(), now);
            let key = CommandKey::Task(task.agent.clone(), task.id.clone(), None);
            if let Some(taken) = self.commands.recent.get_mut(&key) {
                taken.position = Some(position);
            }
            commit.add_task(TaskWrite { seq, queued: QueuedTask { position, task }, digest });
        }
    }

    /// Adds the changes of control commands. Returns the agents whose pending tasks are changed.
    pub(super) fn add_writes(&mut self, commit: &mut Commit) -> Vec<model::AgentId> {
        let writes = std::mem::take(&mut self.commands.writes);
        for seq in writes.seqs {
            self.reading.release_entry(seq);
        }
        commit.audit.extend(writes.audit);
        writes.failed_tasks.into_iter().for_each(|mark| commit.fail_task(mark));
        writes.task_changes.into_iter().for_each(|change| commit.change_task(change));
        commit.dropped_turns = writes.dropped_turns;
        for (agent, dirty) in std::mem::take(&mut self.table.agents.changed) {
            let thread = agent.thread();
            let Some(queue) = self.table.agents.queues.get(&agent) else { continue };
            if commit.agents.iter().any(|write| write.agent == agent) {
                // Already written with the outcome of its turn.
                continue;
            }
            commit.agents.push(AgentWrite {
                guard: ANY,
                head: TurnTable::head(queue),
                run: queue.run,
                failures: queue.failures,
                wait: dirty.wait,
                paused: queue.paused,
                error: None,
                agent,
            });
            self.table.forget_idle(&thread);
        }
        writes.more
    }

    pub(super) fn outbox(&mut self, outgoing: Vec<Outgoing>) -> Option<OutboxBatch> {
        let now = self.effects.now;
        if outgoing.is_empty() {
            return None;
        }
        let id = self.committing.positions.next(Bucket::from_number(self.committing.partition.0), now);
        Some(OutboxBatch { id, outgoing })
    }

    /// Called when the commit with a turn's end has been applied. `refused`: the store's error if
    /// it refused the messages.
    pub(super) fn turn_committed(&mut self, ended: TurnInFlight, refused: Option<String>) {
        let now = self.effects.now;
        let TurnInFlight { id, position, outcome, report, wait_ms } = ended;
        // Releases the hold of a chunk that came while the commit was under way.
        if let Some(seq) = self.table.release(&id) {
            self.reading.release_entry(seq);
        }
        let Some(turn) = self.table.remove(&id) else { return };
        if turn.is_real() {
            // A look-up of a timer may have read the store before this message was in it.
            self.timers.supersede(&turn.thread);
        }
        let outcome = match refused {
            None => outcome,
            Some(_) if turn.is_follow_up() => None,
            Some(detail) => Some(MessageOutcome::Failed(MessageFailure::Unstorable { detail })),
        };
        match &outcome {
            Some(MessageOutcome::Stopped) => self.effects.counters.turns_stopped += 1,
            Some(MessageOutcome::Complete) => {
                self.effects.counters.turns_completed += 1;
                self.effects.turn_times.committed(&turn, now);
            }
            Some(MessageOutcome::Failed(_)) | None => {}
        }
        if matches!(outcome, Some(MessageOutcome::Complete | MessageOutcome::Stopped)) {
            self.commands.complete(&id, turn.run);
        }
        if let (Some(slot), true, Some(_)) = (turn.answer.slot, turn.is_follow_up(), &outcome) {
            // The follow-up's chunks were held back until now.
            self.publish_message(slot);
        }
        let open = turn.answer.slot.and_then(|slot| {
            let open = self.messages.remove(slot)?;
            if let Some(hold) = open.hold {
                self.reading.holds.remove(&(hold.seq, slot));
            }
            Some(open)
        });
        let over = EndedRun {
            answer: MessageKey { thread: turn.thread.clone(), message: id.answer(turn.run) },
            agent: turn.agent().clone(),
            kind: super::usage::kind(&turn),
            in_time: open.as_ref().map(|open| (open.attempt, open.delivery().map(Into::into))),
        };
        self.table.late.ended(&(id.clone(), turn.run), over, now);
        if matches!(&turn.state, TurnState::Ended(EndedTurn { is_abandoned: true, .. })) {
            self.effects.push(Action::Abandon { turn: id.clone(), run: turn.run });
        }
        if let Some(outcome) = outcome {
            self.report_finalized(open.as_ref(), &outcome, &report);
            let frame = self.publishing.frames.next(&turn.thread);
            self.effects.push(Action::End(ending(&turn, open, position, (outcome, report), frame)));
        }
        self.table.active -= 1;
        if turn.is_task()
            && let Some(queue) = self.table.agents.queues.get_mut(turn.agent())
        {
            queue.rest();
            if let Some(ms) = wait_ms {
                queue.wait_until(now.plus_ms(ms));
            }
        }
        if let Some(thread_queue) = self.table.thread_queues.get_mut(&turn.thread) {
            thread_queue.leave(&id);
        }
        self.table.make_ready(&turn.thread);
    }
}

fn ending(
    turn: &TrackedTurn,
    open: Option<OpenMessage>,
    position: Position,
    (outcome, report): (MessageOutcome, AnswerReport),
    frame: FrameNumber,
) -> MessageEnded {
    let is_failed = matches!(outcome, MessageOutcome::Failed(_));
    let report = if is_failed { AnswerReport::default() } else { report };
    let key = MessageKey { thread: turn.thread.clone(), message: turn.id.answer(turn.run) };
    let attempt = open.as_ref().map_or(0, |open| open.attempt);
    let chunks = open.map_or(0, |open| open.released.len() as u32);
    let (role, batch_type) = (Role::Assistant, turn.batch_type());
    MessageEnded { key, attempt, role, batch_type, position, chunks, outcome, report, frame }
}

/// Text of the answer received so far, without calls and reasoning.
fn text_so_far(open: &OpenMessage) -> String {
    let said = open.released.iter().filter(|chunk| chunk.kind == ChunkKind::Content);
    said.map(|chunk| &*chunk.text).collect()
}

fn judge(failure: &MessageFailure) -> Judgement {
    let RetryHint { class, retry_after_ms } = failure.hint();
    let counts = !matches!(failure, MessageFailure::Turn(TurnError::RolledBack));
    Judgement { class, floor_ms: retry_after_ms.unwrap_or(0), counts }
}

fn failed_task(queued: &QueuedTask, code: &str, text: &str) -> FailedTask {
    FailedTask {
        agent: queued.task.agent.clone(),
        position: queued.position,
        code: code.to_owned(),
        text: text.to_owned(),
    }
}

fn turn_ended(turn: &TrackedTurn, status: TurnStatus, code: Option<String>) -> TurnEnded {
    TurnEnded {
        turn: turn.id.clone(),
        thread: turn.thread.clone(),
        agent: turn.agent().clone(),
        status,
        task: match &turn.source {
            TurnSource::Task(queued) => Some(queued.task.id.clone()),
            TurnSource::Input(_) => None,
        },
        message: None,
        batch: None,
        code,
    }
}
