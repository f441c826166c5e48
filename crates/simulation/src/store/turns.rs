//! The tables of turns, tasks and agents of one partition, with the semantics of the statements.

use std::collections::{BTreeMap, BTreeSet};

use model::{AgentId, CommandId, MessageKey, Position, QueuedTask, Task, TaskId, ThreadId, TimerId, TurnId};
use partition::{
    AgentWrite, AuditWrite, BackoffChange, CommandKey, CommandVerdict, Commit, FailedTask, FailedTurn,
    OpenTurn, OutboxBatch, Outgoing, SavedAgent, TimerEnd, TimerWrite, TurnStatus,
};

use super::timer_rows::TimerRow;
use crate::bug::PlantedBug;
use crate::checker::turns::{AgentRow, Audited, RunEnd, TransitionKind, UsageRow};

#[derive(Debug, Default, Clone)]
pub(crate) struct Tables {
    pub(crate) agents: BTreeMap<AgentId, AgentRow>,
    pub(crate) tasks: BTreeMap<(AgentId, i64), Task>,
    pub(super) task_ids: BTreeMap<(AgentId, TaskId), (i64, u64)>,
    pub(crate) failed_tasks: BTreeSet<(AgentId, i64)>,
    pub(crate) failed_turns: BTreeMap<(ThreadId, TurnId), FailedTurn>,
    pub(crate) open_turns: BTreeMap<(ThreadId, TurnId), OpenTurn>,
    pub(crate) outbox: BTreeMap<Position, OutboxBatch>,
    pub(crate) audit: BTreeMap<(AgentId, CommandId), AuditWrite>,
    /// Turns in the history.
    pub(crate) committed: BTreeSet<(ThreadId, TurnId)>,
    pub(crate) timers: BTreeMap<TimerId, TimerRow>,
    /// Model calls, by answer and number.
    pub(crate) usage: BTreeMap<(MessageKey, u16), UsageRow>,
    /// Turns of follow-ups that were withdrawn.
    pub(super) taken_back: BTreeSet<TurnId>,
    /// Failed turns that were dropped by command, with the failed run, which is remembered.
    dropped: BTreeMap<(ThreadId, TurnId), u32>,
}

/// The effects of one commit on these tables.
#[derive(Default)]
pub(crate) struct CommitEffects {
    pub(crate) happened: Vec<TransitionKind>,
    /// Indices of turns whose messages are written.
    pub(crate) turns: Vec<usize>,
    /// Runs that have failed.
    pub(crate) failed: Vec<MessageKey>,
    /// A queue was further ahead than its owner knew.
    pub(crate) is_stale: bool,
}

impl Tables {
    /// True if the turn belongs to a task that will be answered again. Either the task has another
    /// position now, or its turn comes after other turns whose answers are read again first.
    pub(crate) fn will_answer(&self, turn: &TurnId) -> bool {
        let is_its = |(agent, position): &&(AgentId, i64)| {
            TurnId::of_task(agent, Position::from_stored(*position)) == *turn
        };
        let head = |agent: &AgentId| self.agents.get(agent).map_or(0, |row| row.head);
        let task = self.tasks.keys().find(is_its);
        turn.as_str().starts_with('t') && task.is_none_or(|(agent, position)| *position > head(agent))
    }

    /// Applies the part of a commit that concerns turns, tasks and agents. `now` is the database's
    /// clock, ms.
    pub(crate) fn apply(
        &mut self,
        commit: &Commit,
        now: i64,
        skew: i64,
        bug: Option<PlantedBug>,
        is_erased: impl Fn(&ThreadId) -> bool,
    ) -> CommitEffects {
        let mut applied = CommitEffects::default();
        let before = self.agents.clone();
        let won: Vec<bool> = commit
            .agents
            .iter()
            .map(|write| self.write_agent(write, now + skew, bug, &mut applied.happened))
            .collect();
        applied.is_stale = won.contains(&false);
        self.apply_turns(commit, &before, &won, &mut applied);
        self.apply_tasks(commit, bug, &is_erased, &mut applied.happened);
        self.apply_marks(commit, &before, &won, &mut applied);
        self.apply_changes(commit, &mut applied.happened);
        self.apply_inputs(commit, bug, &mut applied);
        let opened = commit.opened.iter().filter(|open| !is_erased(&open.opened.thread));
        self.save_inputs(opened);
        for write in &commit.timers {
            if let TimerWrite::End { id, state: TimerEnd::Withdrawn, .. } = write
                && let Ok(turn) = id.turn()
            {
                self.taken_back.insert(turn.clone());
                applied.happened.push(TransitionKind::TakenBack { turn });
            }
        }
        self.apply_usage(commit, bug);
        for id in &commit.sent {
            self.outbox.remove(id);
        }
        if let Some(batch) = &commit.outbox {
            self.outbox.entry(batch.id).or_insert_with(|| batch.clone());
        }
        for control in &commit.audit {
            let key = (control.subject.clone(), control.id.clone());
            if let std::collections::btree_map::Entry::Vacant(entry) = self.audit.entry(key) {
                entry.insert(control.clone());
                let is_done = control.error.is_none();
                let (subject, control) = (control.subject.clone(), control.id.clone());
                applied.happened.push(TransitionKind::Acted { subject, control, is_done });
            }
        }
        applied
    }

    /// Calls that are already known are not written again.
    fn apply_usage(&mut self, commit: &Commit, bug: Option<PlantedBug>) {
        for write in &commit.usage {
            if bug == Some(PlantedBug::FailedCallsLost) && write.is_partial {
                continue;
            }
            let key = (write.answer.clone(), write.number);
            let row = UsageRow {
                answer: write.answer.clone(),
                number: write.number,
                call: write.call.clone(),
                is_partial: write.is_partial,
            };
            if bug == Some(PlantedBug::CallsCountedTwice) && write.number == 0 {
                self.usage.insert((write.answer.clone(), u16::MAX), row.clone());
            }
            self.usage.entry(key).or_insert(row);
        }
    }

    /// False if the stored head is not below the guard.
    fn write_agent(
        &mut self,
        write: &AgentWrite,
        now: i64,
        bug: Option<PlantedBug>,
        happened: &mut Vec<TransitionKind>,
    ) -> bool {
        let row = self.agents.entry(write.agent.clone()).or_default();
        if row.head >= write.guard.get() && bug != Some(PlantedBug::NoGuard) {
            return false;
        }
        row.head = row.head.max(write.head.get());
        if bug == Some(PlantedBug::HeadPastFailing) && write.run > row.run && write.guard != Position::MAX {
            row.head = row.head.max(write.guard.get());
        }
        (row.run, row.failures, row.is_paused) = (write.run, write.failures, write.paused);
        let mut wait_ms = None;
        match write.wait {
            BackoffChange::Keep => {}
            BackoffChange::Start(_) if bug == Some(PlantedBug::FailureWithoutBackoff) => {}
            BackoffChange::Clear => row.next_run_at = None,
            BackoffChange::Start(ms) => {
                wait_ms = Some(ms);
                row.next_run_at = Some(now + ms);
            }
        }
        happened.push(TransitionKind::Agent { agent: write.agent.clone(), row: row.clone(), wait_ms });
        true
    }

    fn apply_turns(
        &mut self,
        commit: &Commit,
        before: &BTreeMap<AgentId, AgentRow>,
        won: &[bool],
        applied: &mut CommitEffects,
    ) {
        for (index, write) in commit.turns.iter().enumerate() {
            if write.agent.is_some_and(|item| won.get(item) != Some(&true)) {
                continue;
            }
            if let Some(thread) = &write.ends_failed {
                self.failed_turns.remove(&(thread.clone(), write.turn.clone()));
            }
            let Some((first, last)) = write.messages.first().zip(write.messages.last()) else { continue };
            let thread = first.key.thread.clone();
            if !self.committed.insert((thread.clone(), write.turn.clone())) {
                continue;
            }
            applied.turns.push(index);
            let run = TurnId::of_answer(&last.key.message).map_or(0, |(_, run)| run);
            let is_stopped = last.metadata.get("stopped").is_some();
            let end = if is_stopped { RunEnd::Stopped } else { RunEnd::Completed };
            applied.happened.push(TransitionKind::Ended { turn: write.turn.clone(), run, thread, end });
        }
        // Failed runs of tasks that stay in their queues.
        for (write, _) in commit.agents.iter().zip(won).filter(|(_, won)| **won) {
            let run = before.get(&write.agent).map_or(0, |row| row.run);
            if write.guard == Position::MAX || write.run <= run {
                continue;
            }
            let code = write.error.as_ref().map_or("rolled_back", |(code, _)| code);
            self.failed_run(&write.agent, write.guard, run, code, applied);
        }
    }

    fn failed_run(
        &self,
        agent: &AgentId,
        position: Position,
        run: u32,
        code: &str,
        applied: &mut CommitEffects,
    ) {
        let (turn, thread) = (TurnId::of_task(agent, position), agent.thread());
        applied.failed.push(MessageKey { thread: thread.clone(), message: turn.answer(run) });
        let end = RunEnd::Failed(code.to_owned());
        applied.happened.push(TransitionKind::Ended { turn, run, thread, end });
    }

    fn apply_tasks(
        &mut self,
        commit: &Commit,
        bug: Option<PlantedBug>,
        is_erased: impl Fn(&ThreadId) -> bool,
        happened: &mut Vec<TransitionKind>,
    ) {
        for write in &commit.tasks {
            let (task, position) = (&write.queued.task, write.queued.position.get());
            let key = (task.agent.clone(), task.id.clone());
            if is_erased(&task.agent.thread()) {
                continue;
            }
            if self.task_ids.contains_key(&key) && bug != Some(PlantedBug::CheckAlwaysNew) {
                continue;
            }
            self.task_ids.insert(key, (position, write.digest));
            self.tasks.insert((task.agent.clone(), position), task.clone());
            self.agents.entry(task.agent.clone()).or_default();
            let (agent, task) = (task.agent.clone(), task.id.clone());
            happened.push(TransitionKind::Queued { agent, task, position });
        }
    }

    fn apply_marks(
        &mut self,
        commit: &Commit,
        before: &BTreeMap<AgentId, AgentRow>,
        won: &[bool],
        applied: &mut CommitEffects,
    ) {
        let marked_before = self.failed_tasks.clone();
        for mark in &commit.failed_tasks {
            let item = commit.agents.iter().position(|write| write.agent == mark.agent);
            let key = (mark.agent.clone(), mark.position.get());
            // A queue that has already advanced must not get a mark for a task that it has
            // completed.
            if item.is_some_and(|item| won.get(item) != Some(&true)) || !self.failed_tasks.insert(key) {
                continue;
            }
            // The row has the run of the first pending task; the tasks behind it were not tried
            // before this commit.
            let row = before.get(&mark.agent).map_or((0, 0), |row| (row.head, row.run));
            let is_pending = |task: &&(AgentId, i64)| {
                task.0 == mark.agent && task.1 > row.0 && !marked_before.contains(*task)
            };
            let first = self.tasks.keys().filter(is_pending).map(|(_, position)| *position).min();
            let run = if first.is_none_or(|first| first >= mark.position.get()) { row.1 } else { 0 };
            self.marked(mark, run, commit, applied);
        }
    }

    /// Notes that the task was given up with a run of its turn, stopped, or dropped by command.
    fn marked(&self, mark: &FailedTask, run: u32, commit: &Commit, applied: &mut CommitEffects) {
        let FailedTask { agent, position, code, .. } = mark;
        let (turn, thread) = (TurnId::of_task(agent, *position), agent.thread());
        let what =
            TransitionKind::Marked { agent: agent.clone(), position: position.get(), code: code.clone() };
        applied.happened.push(what);
        if commit.turns.iter().any(|write| write.turn == turn && !write.messages.is_empty()) {
            return;
        }
        let outgoing = commit.outbox.iter().flat_map(|batch| &batch.outgoing);
        let has_ended = outgoing.into_iter().any(|outgoing| match outgoing {
            Outgoing::TurnEnded(ended) => ended.turn == turn,
            Outgoing::Task(_) | Outgoing::Pause(_) => false,
        });
        if has_ended {
            return self.failed_run(agent, *position, run, code, applied);
        }
        // The task was dropped by command; an owner that has lost its lease may have begun it.
        let runs = 0..=run;
        applied
            .failed
            .extend(runs.map(|run| MessageKey { thread: thread.clone(), message: turn.answer(run) }));
    }

    fn apply_changes(&mut self, commit: &Commit, happened: &mut Vec<TransitionKind>) {
        for change in &commit.task_changes {
            let (agent, stored) = (&change.agent, change.stored.get());
            let Some(mut task) = self.tasks.remove(&(agent.clone(), stored)) else { continue };
            task.edit(&change.edit);
            if change.position != Some(change.stored) {
                self.failed_tasks.remove(&(agent.clone(), stored));
            }
            let Some(position) = change.position.map(Position::get) else {
                happened.push(TransitionKind::Removed { agent: agent.clone(), position: stored });
                continue;
            };
            if position != stored {
                if let Some(id) = self.task_ids.get_mut(&(agent.clone(), task.id.clone())) {
                    id.0 = position;
                }
                let agent = agent.clone();
                happened.push(TransitionKind::Requeued { agent, from: stored, to: position });
            }
            self.tasks.insert((agent.clone(), position), task);
        }
    }

    fn apply_inputs(&mut self, commit: &Commit, bug: Option<PlantedBug>, applied: &mut CommitEffects) {
        for failed in &commit.failed_turns {
            let (thread, turn, run) = (&failed.opened.thread, &failed.opened.turn, failed.opened.run);
            applied.failed.push(MessageKey { thread: thread.clone(), message: turn.answer(run) });
            let end = RunEnd::Failed(failed.code.clone());
            let (turn, thread) = (turn.clone(), thread.clone());
            applied.happened.push(TransitionKind::Ended {
                turn: turn.clone(),
                run,
                thread: thread.clone(),
                end,
            });
            if bug != Some(PlantedBug::PromptLost) {
                self.failed_turns.insert((thread, turn), failed.clone());
            }
        }
        for key in &commit.dropped_turns {
            if let Some(failed) = self.failed_turns.remove(key) {
                self.dropped.insert(key.clone(), failed.opened.run);
                let (thread, turn) = key.clone();
                applied.happened.push(TransitionKind::Dropped { thread, turn });
            }
        }
        for key in commit.ended_turns.iter().filter(|_| bug != Some(PlantedBug::SavedInputsStay)) {
            self.open_turns.remove(key);
        }
    }

    /// Saves open inputs; their place in the order stays.
    pub(super) fn save_inputs<'a>(&mut self, inputs: impl IntoIterator<Item = &'a OpenTurn>) {
        for open in inputs {
            let key = (open.opened.thread.clone(), open.opened.turn.clone());
            let seq = self.open_turns.get(&key).map_or(open.seq, |known| known.seq);
            self.open_turns.insert(key, OpenTurn { seq, ..open.clone() });
        }
    }

    /// Deletes the marks of these tasks, and returns their number.
    pub(super) fn forget_failed(&mut self, is_gone: impl Fn(&AgentId, i64) -> bool) -> usize {
        let before = self.failed_tasks.len();
        self.failed_tasks.retain(|(agent, position)| !is_gone(agent, *position));
        before - self.failed_tasks.len()
    }

    /// Looks up a command. The caller handles unknown agents.
    pub(crate) fn check(&self, key: &CommandKey, bug: Option<PlantedBug>) -> CommandVerdict {
        let known = CommandVerdict::Known { digest: 0 };
        match key {
            CommandKey::Turn(..) | CommandKey::Task(..) if bug == Some(PlantedBug::CheckAlwaysNew) => {
                CommandVerdict::New
            }
            CommandKey::Turn(thread, turn, run) => {
                let key = (thread.clone(), turn.clone());
                let has_failed = self.has_failed(&key, *run) && bug != Some(PlantedBug::RetryRepeats);
                let is_open = self.open_turns.contains_key(&key);
                let timer = TimerId::of_turn(turn).and_then(|timer| self.timers.get(&timer));
                let is_withdrawn = timer.is_some_and(|timer| timer.state == "withdrawn");
                if self.committed.contains(&key) || has_failed || is_open || is_withdrawn {
                    known
                } else {
                    CommandVerdict::New
                }
            }
            CommandKey::Task(agent, task, _) => match self.task_ids.get(&(agent.clone(), task.clone())) {
                Some((_, digest)) => CommandVerdict::Known { digest: *digest },
                None => CommandVerdict::New,
            },
            CommandKey::Control(agent, control, task) => {
                if self.audit.contains_key(&(agent.clone(), control.clone())) {
                    return known;
                }
                let task = task.as_ref().and_then(|task| self.task_ids.get(&(agent.clone(), task.clone())));
                // The id of a deleted task is remembered, but commands can no longer change the
                // task.
                let task = task.filter(|(position, _)| self.tasks.contains_key(&(agent.clone(), *position)));
                task.map_or(CommandVerdict::New, |(position, _)| CommandVerdict::Task {
                    position: Position::from_stored(*position),
                    is_failed: self.failed_tasks.contains(&(agent.clone(), *position)),
                })
            }
        }
    }

    /// At most `limit` pending tasks after `after`, and whether there are more.
    pub(crate) fn pending(&self, agent: &AgentId, after: i64, limit: usize) -> (Vec<QueuedTask>, bool) {
        let from = (agent.clone(), after.saturating_add(1));
        let to = (agent.clone(), i64::MAX);
        let mut pending = self.tasks.range(from..=to).filter(|(key, _)| !self.failed_tasks.contains(*key));
        let queued = |((_, position), task): (&(AgentId, i64), &Task)| QueuedTask {
            position: Position::from_stored(*position),
            task: task.clone(),
        };
        let tasks = pending.by_ref().take(limit).map(queued).collect();
        (tasks, pending.next().is_some())
    }

    /// Queues as a new owner loads them.
    pub(crate) fn saved_agents(&self, now: i64, window: usize, bug: Option<PlantedBug>) -> Vec<SavedAgent> {
        let saved = |(agent, row): (&AgentId, &AgentRow)| {
            let (tasks, more) = self.pending(agent, row.head, window);
            let is_idle =
                tasks.is_empty() && !row.is_paused && row.failures == 0 && row.next_run_at.is_none();
            (!is_idle).then(|| SavedAgent {
                agent: agent.clone(),
                head: Position::from_stored(row.head),
                run: if bug == Some(PlantedBug::RunForgotten) { 0 } else { row.run },
                failures: row.failures + u32::from(bug == Some(PlantedBug::TakeoverCounts)),
                wait_ms: row
                    .next_run_at
                    .map(|at| at - now)
                    .filter(|ms| *ms > 0 && bug != Some(PlantedBug::BackoffForgotten)),
                paused: row.is_paused,
                tasks,
                more,
            })
        };
        self.agents.iter().filter_map(saved).collect()
    }

    /// Saved inputs in order of arrival.
    pub(crate) fn saved_inputs(&self) -> Vec<OpenTurn> {
        let mut open: Vec<OpenTurn> = self.open_turns.values().cloned().collect();
        open.sort_by_key(|open| open.seq);
        open
    }

    /// Inputs that are saved although their run has ended.
    pub(crate) fn saved_and_over(&self) -> impl Iterator<Item = &(ThreadId, TurnId)> {
        let is_over = |key: &(ThreadId, TurnId), open: &OpenTurn| {
            self.committed.contains(key) || self.has_failed(key, open.opened.run)
        };
        self.open_turns.iter().filter(move |(key, open)| is_over(key, open)).map(|(key, _)| key)
    }

    /// True if the input is not lost, although the checkpoint has passed it.
    pub(crate) fn keeps_input(&self, thread: &ThreadId, turn: &TurnId, run: u32) -> bool {
        let key = (thread.clone(), turn.clone());
        self.committed.contains(&key)
            || self.has_failed(&key, run)
            || self.open_turns.contains_key(&key)
            || self.taken_back.contains(turn)
    }

    /// True if this run or a later one has failed.
    fn has_failed(&self, key: &(ThreadId, TurnId), run: u32) -> bool {
        self.failed_turns.get(key).is_some_and(|failed| failed.opened.run >= run)
            || self.dropped.get(key).is_some_and(|dropped| *dropped >= run)
    }

    pub(crate) fn knows_task(&self, agent: &AgentId, task: &TaskId) -> bool {
        self.task_ids.contains_key(&(agent.clone(), task.clone()))
    }

    /// True if chunks of this run are now ignored.
    pub(crate) fn run_is_over(&self, thread: &ThreadId, turn: &TurnId, run: u32) -> bool {
        let key = (thread.clone(), turn.clone());
        self.committed.contains(&key)
            || self.has_failed(&key, run)
            || self.taken_back.contains(turn)
            || self.open_turns.get(&key).is_some_and(|open| open.opened.run > run)
    }

    /// True if everything accepted has ended.
    pub(crate) fn is_idle(&self) -> bool {
        let pending = |(agent, row): (&AgentId, &AgentRow)| !self.pending(agent, row.head, 1).0.is_empty();
        self.open_turns.is_empty() && self.outbox.is_empty() && !self.agents.iter().any(pending)
    }

    /// The audit as rows.
    pub(crate) fn audited(&self) -> impl Iterator<Item = Audited> {
        self.audit.values().map(|control| Audited {
            id: control.id.clone(),
            subject: control.subject.clone(),
            actor: control.actor.clone(),
            what: control.action.clone(),
            target: control.target.clone(),
        })
    }
}

/// Items that a commit sends or begins on behalf of a turn that it stops.
pub(crate) fn sent_by_stopped(commit: &Commit) -> Vec<(TurnId, String)> {
    let outgoing: Vec<&Outgoing> = commit.outbox.iter().flat_map(|batch| &batch.outgoing).collect();
    let stopped = outgoing.iter().filter_map(|outgoing| match outgoing {
        Outgoing::TurnEnded(ended) if ended.status == TurnStatus::Stopped => Some(&ended.turn),
        Outgoing::TurnEnded(_) | Outgoing::Task(_) | Outgoing::Pause(_) => None,
    });
    let sent = stopped.flat_map(|turn| {
        let follows = outgoing.iter().filter_map(move |outgoing| match outgoing {
            Outgoing::Task(task) => (task.origin.turn() == Some(turn)).then(|| format!("task {}", task.id)),
            Outgoing::Pause(pause) => (pause.turn == *turn).then(|| format!("act {}", pause.id)),
            Outgoing::TurnEnded(_) => None,
        });
        let opened = commit.opened.iter().filter(move |open| open.opened.origin.turn() == Some(turn));
        let tasks =
            commit.tasks.iter().filter(move |task| task.queued.task.origin.continued_turn() == Some(turn));
        let own = opened
            .map(|open| format!("input {}", open.opened.turn))
            .chain(tasks.map(|task| format!("task {}", task.queued.task.id)));
        follows.chain(own).map(|follows| (turn.clone(), follows))
    });
    sent.collect()
}
