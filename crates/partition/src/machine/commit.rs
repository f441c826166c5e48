//! Builds commits from ended inputs.

use std::collections::BTreeMap;

use model::{
    AnswerReport, DeadLetter, DeadLetterSource, FailedMessage, Message, MessageFailure, MessageOutcome,
    MessageTimes, Placement, Position, Role, Seq, ThreadId, TimerKind, TurnId,
};

use super::Partition;
use super::new_work::without_work_of;
use crate::action::{Action, MachineReport, MessageEnded};
use crate::commit::Commit;
use crate::committing::{EndedInput, InFlight, InFlightCommit, refused_size};
use crate::isolate::withhold;
use crate::messages::Slot;
use crate::open::OpenMessage;
use crate::timers::TimerWrite;
use crate::types::Outgoing;

impl Partition {
    /// Queues an ended input for the next commit.
    pub(super) fn push_ended(&mut self, ended: EndedInput) {
        self.committing.ended.bytes += self.ended_size(&ended);
        self.committing.ended.queue.push_back(ended);
    }

    /// Bytes of chunks that stay in memory until the end is committed.
    fn ended_size(&self, ended: &EndedInput) -> usize {
        let slot = match ended {
            EndedInput::Message(slot) => Some(*slot),
            EndedInput::Turn(id) => self.table.turns.get(id).and_then(|turn| turn.answer.slot),
            EndedInput::Entry { .. } => None,
        };
        slot.and_then(|slot| self.messages.get(slot)).map_or(0, OpenMessage::bytes)
    }

    /// Builds a commit when none is in flight and there is something to write. The holds of its
    /// entries are released at once: either the commit is applied as a whole, or the machine is
    /// dropped.
    pub(super) fn commit_if_ready(&mut self) {
        let now = self.effects.now;
        if self.committing.in_flight.is_some() {
            return;
        }
        let mut commit = Commit::empty(
            self.committing.partition,
            self.committing.epoch,
            self.committing.checkpoint,
            self.committing.positions.high_water(),
        );
        let (mut in_flight, mut outgoing) = (InFlightCommit::default(), Vec::new());
        self.add_ended(&mut commit, &mut in_flight, &mut outgoing);
        self.add_tasks(&mut commit);
        in_flight.agents_with_changed_tasks = self.add_writes(&mut commit);
        // These timers replace earlier follow-ups. Until this commit is applied, the store may
        // still return a replaced follow-up, and a decision on it must not be used.
        in_flight.armed = armed_threads(&commit.timers);
        in_flight.armed.iter().for_each(|thread| self.timers.supersede(thread));
        let (timers, fired) = self.timers.take_writes();
        commit.timers.extend(timers);
        fired.into_iter().for_each(|work| self.add_new_work(work, &mut commit));
        commit.usage.extend(self.table.late.take_usage());
        commit.outbox = self.outbox(outgoing);
        commit.checkpoint = self.reading.low().max(self.committing.checkpoint);
        commit.position_high_water = self.committing.positions.high_water();
        if commit.is_empty() && !self.is_due(commit.checkpoint) {
            return;
        }
        commit.sent = std::mem::take(&mut self.outbox.sent);
        commit.ended_spills.append(&mut self.committing.orphans);
        in_flight.tasks = commit.tasks.iter().map(|task| task.queued.clone()).collect();
        in_flight.opened.clone_from(&commit.opened);
        let timers = commit.timers.iter().filter(|write| !write.is_stored());
        in_flight.timers = timers.map(|write| (write.id().clone(), write.waits_ms())).collect();
        in_flight.outbox.clone_from(&commit.outbox);
        in_flight.given = Some(self.committing.positions.given());
        self.committing.checkpoint = commit.checkpoint;
        self.committing.committed_at = now;
        self.committing.in_flight = Some(in_flight);
        self.effects.push(Action::Commit(commit));
    }

    /// True if it is time to write a checkpoint that has moved, or to delete outbox rows, without
    /// anything else to write.
    fn is_due(&self, checkpoint: Seq) -> bool {
        let now = self.effects.now;
        (checkpoint > self.committing.checkpoint || !self.outbox.sent.is_empty())
            && now.since_ms(self.committing.committed_at) >= self.limits.checkpoint_ms
    }

    fn add_ended(
        &mut self,
        commit: &mut Commit,
        in_flight: &mut InFlightCommit,
        outgoing: &mut Vec<Outgoing>,
    ) {
        let (mut size, mut waiting) = (0, Vec::new());
        while commit.weight() < self.limits.commit_turns && size < self.limits.commit_bytes {
            let Some(ended) = self.committing.ended.queue.pop_front() else { break };
            if self.must_wait_for_input(&ended) || self.is_being_saved(&ended) {
                waiting.push(ended);
                continue;
            }
            let bytes = self.ended_size(&ended);
            self.committing.ended.bytes = self.committing.ended.bytes.saturating_sub(bytes);
            in_flight.bytes += bytes;
            match ended {
                EndedInput::Entry { seq, subject, payload, refusal } => {
                    self.reading.release_entry(seq);
                    self.committing.ended.refused_bytes =
                        self.committing.ended.refused_bytes.saturating_sub(refused_size(&payload));
                    let source = DeadLetterSource::Entry { subject, payload, refusal };
                    let letter = DeadLetter { seq, source };
                    size += letter.size();
                    commit.dead_letters.push(letter);
                }
                EndedInput::Message(slot) => {
                    in_flight.ended.extend(self.add_message(slot, commit, &mut size));
                }
                EndedInput::Turn(id) => {
                    in_flight.ended.extend(self.add_turn(&id, commit, outgoing));
                    let written = commit.turns.last().filter(|turn| turn.turn == id);
                    size += written.map_or(256, |turn| turn.messages.iter().map(Message::size).sum());
                }
            }
        }
        waiting.into_iter().rev().for_each(|ended| self.committing.ended.queue.push_front(ended));
    }

    fn add_message(&mut self, slot: Slot, commit: &mut Commit, size: &mut usize) -> Option<InFlight> {
        let now = self.effects.now;
        let open = self.messages.get_mut(slot)?;
        if let Some(hold) = open.hold.take() {
            self.reading.holds.remove(&(hold.seq, slot));
        }
        if open.is_saved {
            commit.ended_spills.push(open.key.clone());
        }
        let position = self.committing.positions.next(open.key.thread.bucket(), now);
        let failure = match open.failure.clone().map_or_else(|| message(open, position), Err) {
            Ok(message) => {
                *size += message.size();
                self.effects.counters.ambiguous_calls +=
                    batches::ambiguous_calls(message.tool_calls.as_ref()) as u64;
                let report = match message.role {
                    Role::Assistant => AnswerReport::of_stored(&message.metadata),
                    Role::User | Role::Tool | Role::System => AnswerReport::default(),
                };
                commit.messages.push(message);
                return Some(InFlight::Message { slot, position, outcome: MessageOutcome::Complete, report });
            }
            Err(failure) => failure,
        };
        let letter = dead_letter(open, failure.clone());
        *size += letter.size();
        commit.dead_letters.push(letter);
        commit.failed_messages.push(FailedMessage {
            key: open.key.clone(),
            position,
            attempt: open.attempt,
            role: open.role,
            batch_type: open.batch_type(),
            failure: failure.clone(),
        });
        let (outcome, report) = (MessageOutcome::Failed(failure), AnswerReport::default());
        Some(InFlight::Message { slot, position, outcome, report })
    }

    /// The commit has been applied, except for the turns that the store refused.
    pub(super) fn committed(&mut self, refused: Vec<(TurnId, String)>) {
        let now = self.effects.now;
        let Some(in_flight) = self.committing.in_flight.take() else { return };
        let InFlightCommit {
            ended,
            tasks,
            opened,
            agents_with_changed_tasks,
            outbox,
            timers,
            armed,
            given,
            ..
        } = in_flight;
        armed.iter().for_each(|thread| self.timers.supersede(thread));
        self.committing.applied = given.unwrap_or(self.committing.applied);
        self.commands.stored(self.committing.checkpoint, self.timers.first_asked());
        let mut refused: BTreeMap<TurnId, String> = refused.into_iter().collect();
        let (tasks, opened) = without_work_of(&refused, tasks, opened);
        let withheld: Vec<TurnId> = refused.keys().filter(|id| self.is_follow_up(id)).cloned().collect();
        for ended in ended {
            match ended {
                InFlight::Message { slot, position, outcome, report } => {
                    self.message_committed(slot, (position, outcome, report));
                }
                InFlight::Turn(turn) => {
                    let refused = refused.remove(&turn.id);
                    self.turn_committed(turn, refused);
                }
            }
        }
        self.effects.counters.tasks += tasks.len() as u64;
        for queued in tasks {
            let agent = queued.task.agent.clone();
            let window = self.limits.queue_window;
            self.table.queue(&agent, |queue| queue.push(queued, window));
            self.table.make_ready(&agent.thread());
        }
        opened.into_iter().for_each(|open| self.admit(open));
        for agent in agents_with_changed_tasks {
            self.table.queue(&agent, scheduling::AgentQueue::settle);
            self.table.make_ready(&agent.thread());
        }
        for (timer, waits_ms) in timers {
            self.timers.written(timer, waits_ms, now);
        }
        if let Some(mut batch) = outbox {
            withheld.iter().for_each(|turn| withhold(&mut batch, turn));
            self.outbox.unsent += 1;
            self.effects.push(Action::Send(batch));
        }
        self.take_commands();
    }

    fn message_committed(
        &mut self,
        slot: Slot,
        (position, outcome, report): (Position, MessageOutcome, AnswerReport),
    ) {
        let Some(open) = self.messages.remove(slot) else { return };
        // A chunk that came while the commit was under way has set this hold.
        if let Some(hold) = open.hold {
            self.reading.holds.remove(&(hold.seq, slot));
        }
        self.effects.counters.completed += u64::from(outcome == MessageOutcome::Complete);
        self.messages.look_ups.remember(open.key.clone(), self.limits.remembered_bytes);
        if open.is_hidden() && outcome == MessageOutcome::Complete {
            return;
        }
        self.report_finalized(Some(&open), &outcome, &report);
        let chunks = open.released.len() as u32;
        let (batch_type, frame) = (open.batch_type(), self.publishing.frames.next(&open.key.thread));
        let (key, attempt, role) = (open.key, open.attempt, open.role);
        self.effects.push(Action::End(MessageEnded {
            key,
            attempt,
            role,
            batch_type,
            position,
            chunks,
            outcome,
            report,
            frame,
        }));
    }
}

impl Partition {
    /// Reports a finalized message if the log shows it.
    pub(super) fn report_finalized(
        &mut self,
        open: Option<&OpenMessage>,
        outcome: &MessageOutcome,
        report: &AnswerReport,
    ) {
        let is_wanted = self.limits.reports_chunks && *outcome == MessageOutcome::Complete;
        let Some(open) = open.filter(|_| is_wanted) else { return };
        let tokens = report.usage.as_deref().map(|call| call.input_tokens.saturating_add(call.output_tokens));
        let bytes = open.released.iter().map(|chunk| chunk.text.len()).sum();
        let (key, chunks) = (open.key.clone(), open.released.len() as u32);
        self.effects.push(Action::Report(MachineReport::Finalized { key, chunks, tokens, bytes }));
    }
}

/// Threads whose follow-ups are armed and replace pending ones.
fn armed_threads(writes: &[TimerWrite]) -> Vec<ThreadId> {
    let thread = |write: &TimerWrite| match write {
        TimerWrite::Arm(armed) if armed.id.kind() == TimerKind::FollowUp => armed.thread.clone(),
        _ => None,
    };
    writes.iter().filter_map(thread).collect()
}

/// Builds a bare message, which no turn has opened, as a batch of its own.
fn message(open: &OpenMessage, position: Position) -> Result<Message, MessageFailure> {
    let folded = batches::fold(&open.released)
        .map_err(|error| MessageFailure::Unstorable { detail: error.to_string() })?;
    Ok(Message {
        key: open.key.clone(),
        placement: Placement {
            position,
            batch_id: position,
            sequence_num: 0,
            batch_type: model::BatchType::SystemTrigger,
        },
        role: open.role,
        content: folded.content,
        tool_calls: folded.tool_calls,
        tool_call_id: None,
        metadata: folded.metadata,
        token_count: folded.token_count,
        attempt: open.attempt,
        times: MessageTimes {
            created_at: open.released.len().checked_sub(1).and_then(|last| open.times.at(last)),
            started_at: open.times.at(0),
        },
    })
}

fn dead_letter(open: &OpenMessage, failure: MessageFailure) -> DeadLetter {
    let source = DeadLetterSource::Message {
        key: open.key.clone(),
        attempt: open.attempt,
        chunks: open.chunks_by_id(),
        failure,
    };
    DeadLetter { seq: open.first_seq, source }
}
