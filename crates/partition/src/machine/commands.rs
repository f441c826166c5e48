//! Applies commands in the order of the stream, each once, after a look-up in the store.

use model::{
    BusyPolicy, Command, Control, ControlKind, DelayedTask, Frame, Metadata, RejectedEntry, Seq, TimerId,
    Timestamp, TurnError, TurnId, TurnOpened,
};
use scheduling::{Admission, Readiness};

use super::Partition;
use super::command_queue::{Pending, TakenCommand};
use crate::action::{Action, MachineReport};
use crate::committing::{EndedInput, refused_size};
use crate::reading::EntryPlace;
use crate::timers::{ArmedTimer, TimerWrite};
use crate::turn_state::{SUPERSEDED_BY_MESSAGE, SavedInput, TrackedTurn, TurnEnd};
use crate::types::{AuditWrite, CommandKey, CommandVerdict, RawPayload, TaskDelay};

/// Code of a command that the database permanently refuses.
const REJECTED: &str = "rejected_by_database";

/// Key by which a repeated command is recognized.
fn identity(command: &Command) -> CommandKey {
    match key_of(command) {
        CommandKey::Task(agent, task, _) => CommandKey::Task(agent, task, None),
        CommandKey::Control(subject, id, _) => CommandKey::Control(subject, id, None),
        key @ CommandKey::Turn(..) => key,
    }
}

/// Key of the task that an operator's command concerns.
fn task_of(command: &Command) -> Option<CommandKey> {
    match key_of(command) {
        CommandKey::Control(subject, _, Some(task)) => Some(CommandKey::Task(subject, task, None)),
        CommandKey::Turn(..) | CommandKey::Task(..) | CommandKey::Control(..) => None,
    }
}

fn key_of(command: &Command) -> CommandKey {
    match command {
        Command::Turn(opened) => CommandKey::Turn(opened.thread.clone(), opened.turn.clone(), opened.run),
        Command::Task(task) => {
            CommandKey::Task(task.agent.clone(), task.id.clone(), task.origin.source_thread().cloned())
        }
        Command::DelayedTask(delayed) => {
            CommandKey::Task(delayed.task.agent.clone(), delayed.task.id.clone(), None)
        }
        Command::Control(control) => {
            let task = match &control.kind {
                ControlKind::RetryTask(task)
                | ControlKind::DropTask(task)
                | ControlKind::EditTask { task, .. } => Some(task.clone()),
                ControlKind::Pause
                | ControlKind::Resume
                | ControlKind::ClearBackoff
                | ControlKind::StopTurn(_)
                | ControlKind::DropFailedTurn(_)
                | ControlKind::EraseThread
                | ControlKind::CancelTimer(_)
                | ControlKind::SnoozeTimer { .. }
                | ControlKind::PutSchedule(_)
                | ControlKind::DeleteSchedule(_)
                | ControlKind::DelayTask(_) => None,
            };
            CommandKey::Control(control.subject.clone(), control.id.clone(), task)
        }
    }
}

impl Partition {
    pub(super) fn command(&mut self, command: Command, raw: RawPayload, seq: Seq, room: &mut usize) {
        if seq <= self.commands.read {
            return;
        }
        if self.reading.deferring.is_some() || *room == 0 || self.commands.is_full() {
            return self.defer((seq, 0));
        }
        *room -= 1;
        self.commands.read = seq;
        self.reading.hold_entry(seq);
        self.commands.to_check.push(key_of(&command));
        self.commands.pending.push_back(Pending::Command {
            seq,
            stored_at: self.reading.last_stored_at,
            command,
            raw,
            verdict: None,
            stored: self.commands.stored,
            is_obsolete: false,
        });
    }

    /// Holds back a frame whose turn is about to be opened; true if the frame is held back.
    pub(super) fn blocks_chunks(&mut self, frame: &Frame, seq: Seq) -> bool {
        if self.commands.pending.is_empty() {
            return false;
        }
        let waits = frame.chunks.iter().any(|arrival| {
            TurnId::of_answer(&arrival.message)
                .is_some_and(|(turn, run)| self.commands.blocks_run(&frame.thread, &turn, run))
        });
        if waits {
            self.reading.hold_entry(seq);
            self.commands.pending.push_back(Pending::Frame { seq, frame: frame.clone() });
        }
        waits
    }

    pub(super) fn checked(&mut self, verdicts: Vec<(CommandKey, CommandVerdict)>) {
        let mut verdicts = verdicts.into_iter();
        for pending in &mut self.commands.pending {
            let Pending::Command { command, verdict: verdict @ None, .. } = pending else { continue };
            let Some((key, known)) = verdicts.next() else { break };
            debug_assert_eq!(key, key_of(command), "verdicts come in the order of the commands");
            *verdict = Some(known);
        }
        self.take_commands();
    }

    /// Takes checked commands, in the order of the stream.
    pub(super) fn take_commands(&mut self) {
        while let Some(pending) = self.commands.pending.pop_front() {
            match pending {
                Pending::Frame { seq, frame } => {
                    self.reading.release_entry(seq);
                    self.place(&frame, seq, &mut 0);
                    self.table.make_ready(&frame.thread);
                }
                Pending::Command {
                    seq, raw, verdict: Some(CommandVerdict::New), is_obsolete: true, ..
                } => {
                    self.refuse_retry(seq, raw);
                }
                Pending::Command { seq, stored_at, command, raw, verdict: Some(verdict), .. }
                    if !self.must_wait(&command, verdict) =>
                {
                    let verdict = self.since_asked(&command, verdict);
                    self.take_command(command, raw, (seq, stored_at), verdict);
                }
                Pending::Refused { answer, refusal } => self.fail_refused(&answer, refusal),
                waiting @ Pending::Command { .. } => {
                    self.commands.pending.push_front(waiting);
                    return;
                }
            }
        }
    }

    /// True if the command retries a turn whose failure is in a commit that is not applied yet.
    /// Also true for a command about a task that this owner does not know to be stored. Even if the
    /// store has the task, it is not in the queue in memory yet.
    fn must_wait(&self, command: &Command, verdict: CommandVerdict) -> bool {
        (verdict == CommandVerdict::New && self.earlier_run(command).is_some_and(has_failed))
            || self.taken_task(command).is_some_and(|taken| !self.is_stored(taken))
            || matches!(command, Command::Control(control) if self.has_to_wait(control))
    }

    /// True if the next commit has the maximum bytes of task edits, or if a failure that begins a
    /// backoff or pauses the agent is not in a commit yet.
    fn has_to_wait(&self, control: &Control) -> bool {
        let is_of_agent = |ended: &EndedInput| {
            let EndedInput::Turn(id) = ended else { return false };
            self.table.turns.get(id).is_some_and(|turn| turn.is_task() && *turn.agent() == control.subject)
        };
        self.commands.writes.edited_bytes >= self.limits.commit_bytes
            || (matches!(control.kind, ControlKind::ClearBackoff | ControlKind::Resume)
                && self.committing.ended.queue.iter().any(is_of_agent))
    }

    /// The task that an operator's command concerns, if it was taken so recently that the check may
    /// have missed it.
    fn taken_task(&self, command: &Command) -> Option<&TakenCommand> {
        self.commands.recent.get(&task_of(command)?)
    }

    fn is_stored(&self, taken: &TakenCommand) -> bool {
        let Some(position) = taken.position else { return false };
        !self.committing.in_flight_tasks().any(|queued| queued.position == position)
    }

    /// The verdict that the store would give now.
    fn since_asked(&self, command: &Command, verdict: CommandVerdict) -> CommandVerdict {
        match (verdict, self.taken_task(command)) {
            (CommandVerdict::New, Some(TakenCommand { position: Some(position), .. })) => {
                CommandVerdict::Task { position: *position, is_failed: false }
            }
            (verdict, _) => verdict,
        }
    }

    /// The run that this command retries, if it is in memory.
    fn earlier_run(&self, command: &Command) -> Option<&TrackedTurn> {
        let Command::Turn(opened) = command else { return None };
        self.table.turns.get(&opened.turn).filter(|turn| turn.run < opened.run)
    }

    /// True if the command opens a run that is in memory or is followed by a later run in memory.
    /// The store may have nothing of such a run: a previous owner took it, or it was a follow-up
    /// that was withdrawn.
    fn is_here(&self, command: &Command) -> bool {
        let Command::Turn(opened) = command else { return false };
        self.table.turns.get(&opened.turn).is_some_and(|turn| turn.run >= opened.run)
    }

    fn take_command(
        &mut self,
        command: Command,
        raw: RawPayload,
        (seq, stored_at): (Seq, Timestamp),
        verdict: CommandVerdict,
    ) {
        let now = self.effects.now;
        self.queue_restored(Some(seq));
        let key = identity(&command);
        let known = match verdict {
            // For an erased thread, only the erasure of a thread or a tenant is still executed.
            CommandVerdict::Erased if !is_erasure(&command) => {
                self.effects.counters.erased_commands += 1;
                self.reading.release_entry(seq);
                return;
            }
            CommandVerdict::Known { digest } => Some(digest),
            CommandVerdict::Refused => {
                let detail =
                    "the database refuses for good to look the command up; the worker's log says why";
                return self.refuse(seq, raw, REJECTED, detail.to_owned());
            }
            CommandVerdict::New
            | CommandVerdict::Unknown
            | CommandVerdict::Task { .. }
            | CommandVerdict::Erased => {
                let taken = self.commands.recent.get(&key).map(|taken| taken.digest);
                taken.or_else(|| self.is_here(&command).then_some(0))
            }
        };
        if let Some(digest) = known {
            let task = match &command {
                Command::Task(task) => Some(task),
                Command::DelayedTask(delayed) => Some(&delayed.task),
                Command::Turn(_) | Command::Control(_) => None,
            };
            if let Some(task) = task.filter(|task| task.digest() != digest) {
                let detail = format!("task {} is known with another payload", task.id);
                return self.refuse(seq, raw, "task_conflict", detail);
            }
            self.effects.counters.duplicate_commands += 1;
            self.reading.release_entry(seq);
            return;
        }
        // A command about an unknown agent is refused in the audit log: its sender waits for the
        // result.
        if verdict == CommandVerdict::Unknown && !matches!(command, Command::Control(_)) {
            let detail = "there is no such agent or thread, and they may not be created by use here";
            return self.refuse(seq, raw, "unknown_agent", detail.to_owned());
        }
        if self.earlier_run(&command).is_some() {
            // This happens when the store went back to before the failure that was retried. Waiting
            // for the run's end could take forever: the entry that ends it may be after this
            // command.
            return self.refuse_retry(seq, raw);
        }
        match command {
            Command::Turn(opened) => {
                self.commands.recent.insert(key, TakenCommand { seq, digest: 0, position: None });
                self.open_turn(opened, Some((seq, stored_at)));
            }
            Command::Task(task) => {
                let digest = task.digest();
                self.commands.recent.insert(key, TakenCommand { seq, digest, position: None });
                self.commands.incoming.push_back((seq, task, digest));
            }
            Command::DelayedTask(delayed)
                if delayed.not_before.since_ms(now) > DelayedTask::MOST_DELAY_MS =>
            {
                let detail = "not_before must be within 366 days from now".to_owned();
                self.refuse(seq, raw, "invalid_not_before", detail);
            }
            Command::DelayedTask(delayed) => {
                // The store is asked even if the task's time has come: only the store knows whether
                // the task was delayed before and cancelled.
                self.commands.delaying.insert(seq, (raw, delayed.clone()));
                self.effects.push(Action::DelayTask { seq, delayed });
            }
            Command::Control(control) => {
                self.commands.recent.insert(key, TakenCommand { seq, digest: 0, position: None });
                self.effects.counters.control_commands += 1;
                let refused = self.control(&control, verdict);
                let audited = audited(&control, refused);
                let stopped = match &control.kind {
                    ControlKind::StopTurn(turn) if audited.error.is_none() => {
                        self.table.turns.get_mut(turn).and_then(TrackedTurn::ended_mut)
                    }
                    _ => None,
                };
                match stopped {
                    // The end of the turn may have to wait for a later commit, and so must its
                    // audit row.
                    Some(ended) => ended.stopped_by = Some((seq, audited)),
                    None => {
                        self.commands.writes.seqs.push(seq);
                        self.commands.writes.audit.push(audited);
                    }
                }
            }
        }
    }

    /// Handles the result of storing a task that enters its queue later.
    pub(super) fn task_delayed(&mut self, seq: Seq, outcome: Option<TaskDelay>) {
        let Some((raw, delayed)) = self.commands.delaying.remove(&seq) else { return };
        let (code, detail) = match outcome {
            Some(TaskDelay::Stored) => return self.arm_delayed(seq, &delayed),
            Some(TaskDelay::Erased) => {
                self.effects.counters.erased_commands += 1;
                self.reading.release_entry(seq);
                return;
            }
            Some(TaskDelay::Conflict) => {
                ("task_conflict", "the agent knows a task of that id with another payload or time")
            }
            Some(TaskDelay::Full) => {
                ("too_many_delayed_tasks", "the agent has as many delayed tasks as an agent may have")
            }
            None => (REJECTED, "the database refuses the task for good; the worker's log says why"),
        };
        self.refuse(seq, raw, code, detail.to_owned());
    }

    /// The commit that lets the checkpoint pass the entry writes the timer again if it is missing.
    /// Rows that are stored outside of commits can be lost when a store goes back in time, and the
    /// fence does not detect this loss.
    fn arm_delayed(&mut self, seq: Seq, delayed: &DelayedTask) {
        let now = self.effects.now;
        let DelayedTask { task, not_before } = delayed;
        let id = TimerId::of_task(&task.agent, &task.id);
        self.timers.reread();
        self.commands.writes.seqs.push(seq);
        let body = delayed.timer_body().as_object().cloned().and_then(|body| Metadata::new(body).ok());
        let armed = ArmedTimer {
            id,
            thread: None,
            agent: task.agent.clone(),
            wait_ms: not_before.since_ms(now),
            body: body.unwrap_or_default(),
            armed_by: None,
        };
        self.timers.write(TimerWrite::Arm(armed), None);
    }

    fn refuse_retry(&mut self, seq: Seq, raw: RawPayload) {
        self.refuse(seq, raw, "turn_not_failed", "the run that it retries has not failed".to_owned());
    }

    fn refuse(&mut self, seq: Seq, raw: RawPayload, code: &'static str, detail: String) {
        self.effects.counters.refused += 1;
        self.give_up(seq, raw, RejectedEntry { code, detail });
    }

    /// Makes the entry a dead letter with the next commit that has room.
    pub(super) fn give_up(&mut self, seq: Seq, raw: RawPayload, refusal: RejectedEntry) {
        let RawPayload { subject, payload } = raw;
        self.committing.ended.refused_bytes += refused_size(&payload);
        self.push_ended(EndedInput::Entry { seq, subject, payload, refusal });
    }

    /// Opens a turn for an input: of an entry of the stream, or of a commit that was applied.
    pub(super) fn open_turn(&mut self, opened: Box<TurnOpened>, entry: Option<(Seq, Timestamp)>) {
        let now = self.effects.now;
        if let (true, Some(actor)) = (opened.run > 0, &opened.actor) {
            self.audit_retry(&opened, actor.to_string());
        }
        let thread = opened.thread.clone();
        let is_late = opened.origin.timer().is_some() && self.has_real_input(&thread);
        if !opened.origin.is_synthetic() {
            self.withdraw_follow_ups(&thread);
        }
        let policy = match opened.options.busy_policy {
            // A thread is not busy if only postponed background turns wait there, or follow-ups
            // that yield.
            BusyPolicy::Reject if self.only_postponed_wait(&opened.thread) => BusyPolicy::Enqueue,
            policy => policy,
        };
        let token = self.table.token_keys.token(&opened.thread, &opened.turn, opened.run);
        let mut turn = TrackedTurn::of_input(opened, token);
        (turn.times.known_at, turn.times.came_at) = (now, entry.map_or(now, |(_, came_at)| came_at));
        match entry {
            Some((seq, _)) => turn.input.hold = Some(self.hold_at(seq)),
            None => turn.input.saved = SavedInput::Yes,
        }
        let id = turn.id.clone();
        self.table.insert(turn);
        match self.table.thread_queues.entry(thread.clone()).or_default().admit(id.clone(), policy) {
            Admission::Enqueued => {}
            Admission::Rejected => {
                self.end_turn(&id, TurnEnd::Failed(model::MessageFailure::Turn(TurnError::Busy)));
            }
            Admission::Interrupts(active) => self.make_way(&active, TurnEnd::Stopped),
            Admission::RollsBack(active) => {
                let end = TurnEnd::Failed(model::MessageFailure::Turn(TurnError::RolledBack));
                self.make_way(&active, end);
            }
        }
        self.publish_input(&id);
        if is_late {
            // A person has written since the follow-up was fired.
            self.end_turn(&id, TurnEnd::Withdrawn(SUPERSEDED_BY_MESSAGE));
        }
        self.table.make_ready(&thread);
    }

    fn only_postponed_wait(&self, thread: &model::ThreadId) -> bool {
        let now = self.effects.now;
        let yields =
            |id: &TurnId| self.table.turns.get(id).is_some_and(|turn| turn.waiting(now) == Readiness::Yields);
        self.table.thread_queues.get(thread).is_some_and(|thread_queue| {
            thread_queue.active().is_none_or(|active| self.is_follow_up(active))
                && thread_queue.waiting().all(|id| yields(id) || self.is_follow_up(id))
        })
    }

    /// Ends the active turn in favour of a person's message. A task yields without having failed.
    fn make_way(&mut self, active: &TurnId, end: TurnEnd) {
        let is_task = self.table.turns.get(active).is_some_and(TrackedTurn::is_task);
        let end = match is_task {
            true => TurnEnd::Failed(model::MessageFailure::Turn(TurnError::RolledBack)),
            false => end,
        };
        self.end_turn(active, end);
    }

    fn audit_retry(&mut self, opened: &TurnOpened, actor: String) {
        let text = format!("{}-retry{}", opened.turn, opened.run);
        let Ok(id) = model::CommandId::parse(&text) else { return };
        self.commands.writes.audit.push(AuditWrite {
            id,
            subject: opened.thread.agent(),
            actor,
            action: "retry_turn".to_owned(),
            target: Some(opened.turn.as_str().to_owned()),
            error: None,
        });
    }

    /// A new message or a command has to wait in the stream, and so do all later ones.
    pub(super) fn defer(&mut self, place: EntryPlace) {
        self.effects.counters.deferred += 1;
        if self.reading.deferring.is_none() {
            self.reading.deferring = Some(place);
            self.effects.push(Action::Report(MachineReport::Deferring(place.0)));
        }
    }
}

/// True for the control command of an erasure.
fn is_erasure(command: &Command) -> bool {
    matches!(command, Command::Control(Control { kind: ControlKind::EraseThread, .. }))
}

/// True if the turn's failure is decided and goes with the next commit.
fn has_failed(turn: &TrackedTurn) -> bool {
    matches!(turn.end(), Some(TurnEnd::Failed(_)))
}

fn audited(control: &Control, error: Option<String>) -> AuditWrite {
    AuditWrite {
        id: control.id.clone(),
        subject: control.subject.clone(),
        actor: control.actor.to_string(),
        action: control.kind.name().to_owned(),
        target: control.kind.target().map(str::to_owned),
        error,
    }
}
