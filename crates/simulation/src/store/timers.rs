//! The double of the timers table, with the semantics of the statements.

use std::collections::BTreeMap;

use batches::Item;
use model::{
    AgentId, BatchType, Metadata, PartitionCount, PartitionId, Position, Role, ThreadId, TimerId, TimerKind,
    Timestamp,
};
use partition::{
    ArmedTimer, Commit, DueTimer, FailedTurn, PendingTimer, TimerEnd, TimerPage, TimerState, TimerWrite,
};
use serde_json::{Map, Value};

use super::Store;
use super::timer_rows::TimerRow;
use crate::bug::PlantedBug;
use crate::checker::turns::{TimerEvent, TimerStep, Transition, TransitionKind};
use crate::log::START;

/// Maximum number of a thread's follow-ups that the rules read.
const MOST_COUNTED: usize = 256;

/// True if the timer is no longer pending after this write.
fn ends(write: &TimerWrite) -> bool {
    matches!(write, TimerWrite::Fire { next: None, .. } | TimerWrite::End { .. })
}

impl Store {
    /// The time by the database's clock, ms.
    pub(crate) fn database_ms(&self, time: i64) -> i64 {
        START + time + self.timers.ahead_ms
    }

    pub(crate) fn timer_partition(&self, timer: &TimerId) -> PartitionId {
        let count = PartitionCount::new(self.rows.len() as u64).ok();
        count.map_or(PartitionId(0), |count| timer.bucket().partition(count))
    }

    pub(crate) fn timer(&self, timer: &TimerId) -> Option<&TimerRow> {
        self.tables[usize::from(self.timer_partition(timer).0)].timers.get(timer)
    }

    /// All pending timers, of all partitions.
    pub(crate) fn pending_timers(&self) -> impl Iterator<Item = (&TimerId, &TimerRow)> {
        self.tables.iter().flat_map(|tables| &tables.timers).filter(|(_, row)| row.is_pending())
    }

    /// A client creates a timer.
    pub(crate) fn put_timer(&mut self, timer: &TimerId, row: TimerRow, now: i64) {
        let (partition, due_ms) = (self.timer_partition(timer), row.due);
        self.note_timer(timer, row.thread.clone(), now, TimerStep::Armed { by: None, due_ms });
        self.tables[usize::from(partition.0)].timers.insert(timer.clone(), row);
    }

    fn note_timer(&mut self, timer: &TimerId, thread: Option<ThreadId>, database_ms: i64, step: TimerStep) {
        let (timer, number) = (timer.clone(), self.commits);
        let at_ms = database_ms - START - self.timers.ahead_ms;
        self.timers.events.push(TimerEvent { timer, thread, at_ms, database_ms, number, step });
    }

    /// Applies timer writes like one statement: each write sees the rows from before the statement.
    pub(super) fn apply_timers(&mut self, commit: &Commit, time: i64) {
        let number = usize::from(commit.partition.0);
        let now = self.database_ms(time);
        if commit.timers.is_empty() && commit.failed_turns.is_empty() {
            return;
        }
        let before = self.tables[number].timers.clone();
        let is_real = |failed: &&FailedTurn| !failed.opened.origin.is_synthetic();
        for failed in commit.failed_turns.iter().filter(is_real) {
            self.end_answered(number, &failed.opened.thread, now);
        }
        for write in commit.timers.iter().filter(|write| ends(write)) {
            self.change(number, write, &before, commit, now);
        }
        for write in &commit.timers {
            if let TimerWrite::Arm(armed) = write {
                self.arm(commit, armed, &before, now);
            }
        }
        for write in commit.timers.iter().filter(|write| !ends(write)) {
            self.change(number, write, &before, commit, now);
        }
    }

    /// Cancels earlier follow-ups when a person has written and the turn has failed, even a
    /// follow-up that has fired and is not answered yet.
    fn end_answered(&mut self, number: usize, thread: &ThreadId, now: i64) {
        if self.bug == Some(PlantedBug::FailedInputForgotten) {
            return;
        }
        let history = self.kept.get(thread);
        let is_answered = |id: &TimerId| {
            let input = id.turn().ok().map(|turn| turn.input());
            history.is_some_and(|rows| rows.values().any(|row| Some(&row.key.message) == input.as_ref()))
        };
        let mut ended = Vec::new();
        for (id, row) in &mut self.tables[number].timers {
            if id.kind() != TimerKind::FollowUp || row.thread.as_ref() != Some(thread) {
                continue;
            }
            let state = match row.state {
                "pending" => "cancelled",
                "fired" if !is_answered(id) => "withdrawn",
                _ => continue,
            };
            (row.state, row.ended) = (state, Some(now));
            ended.push((id.clone(), state));
        }
        for (id, state) in ended {
            if let (Ok(turn), "withdrawn") = (id.turn(), state) {
                self.tables[number].taken_back.insert(turn.clone());
                self.history.push(Transition {
                    at_ms: now - START - self.timers.ahead_ms,
                    partition: PartitionId(number as u16),
                    number: self.commits,
                    what: TransitionKind::TakenBack { turn },
                });
            }
            let step = self.ended_step(state, "message");
            self.note_timer(&id, Some(thread.clone()), now, step);
        }
    }

    /// The end of a timer by a statement, not by a decision.
    fn ended_step(&self, state: &'static str, by: &str) -> TimerStep {
        TimerStep::Ended { state, by: by.to_owned(), decided_after: self.commits }
    }

    fn arm(&mut self, commit: &Commit, armed: &ArmedTimer, before: &BTreeMap<TimerId, TimerRow>, now: i64) {
        let number = usize::from(commit.partition.0);
        // A timer that the same statement fires or ends is not replaced.
        let has_ended = |id: &TimerId| commit.timers.iter().any(|write| ends(write) && write.id() == id);
        let is_replaced = |(id, row): &(&TimerId, &TimerRow)| {
            id.kind() == TimerKind::FollowUp
                && row.thread == armed.thread
                && row.is_pending()
                && **id != armed.id
                && !has_ended(id)
        };
        let is_merged = self.bug != Some(PlantedBug::OverdueNotMerged);
        let replaced: Vec<TimerId> = before.iter().filter(is_replaced).map(|(id, _)| id.clone()).collect();
        for id in replaced.into_iter().filter(|_| is_merged) {
            if let Some(row) = self.tables[number].timers.get_mut(&id) {
                (row.state, row.ended) = ("cancelled", Some(now));
            }
            let step = self.ended_step("cancelled", "replaced");
            self.note_timer(&id, armed.thread.clone(), now, step);
        }
        if before.contains_key(&armed.id) {
            return;
        }
        let not_before = armed.body.get("not_before_ms").and_then(Value::as_i64);
        let due = not_before.unwrap_or(now + armed.wait_ms);
        let row = TimerRow {
            thread: armed.thread.clone(),
            agent: armed.agent.clone(),
            state: "pending",
            due,
            body: armed.body.clone(),
            created_in: self.commits,
            ended: None,
        };
        self.tables[number].timers.insert(armed.id.clone(), row);
        let step = TimerStep::Armed { by: armed.armed_by.clone(), due_ms: due };
        self.note_timer(&armed.id, armed.thread.clone(), now, step);
    }

    fn change(
        &mut self,
        number: usize,
        write: &TimerWrite,
        before: &BTreeMap<TimerId, TimerRow>,
        commit: &Commit,
        now: i64,
    ) {
        let id = write.id();
        let Some(was) = before.get(id) else { return };
        let withdraws = matches!(write, TimerWrite::End { state: TimerEnd::Withdrawn, .. });
        if !(was.is_pending() || (was.state == "fired" && withdraws)) {
            return;
        }
        let bug = self.bug;
        let is_even = self.commits.is_multiple_of(2);
        let Some(row) = self.tables[number].timers.get_mut(id) else { return };
        // A replaced timer is no longer pending.
        let is_replaced = |write: &TimerWrite| {
            matches!(write, TimerWrite::Arm(armed) if armed.id.kind() == TimerKind::FollowUp
                && armed.thread == row.thread && armed.id != *id)
        };
        let is_postponed = matches!(write, TimerWrite::Postpone { .. }) && id.kind() == TimerKind::FollowUp;
        // A person has written, and the turn fails with this commit.
        let is_answered = |failed: &FailedTurn| {
            !failed.opened.origin.is_synthetic() && Some(&failed.opened.thread) == row.thread.as_ref()
        };
        if is_postponed
            && (commit.timers.iter().any(is_replaced) || commit.failed_turns.iter().any(is_answered))
        {
            return;
        }
        // When one statement changes a row twice, the database makes one of the changes; which one
        // is undefined.
        if row.state != was.state && is_even {
            return;
        }
        let (thread, due_ms) = (row.thread.clone(), row.due);
        let step = match write {
            TimerWrite::Arm(_) => return,
            TimerWrite::Fire { turn, next, .. } => {
                match next {
                    Some(next) if bug != Some(PlantedBug::OccurrenceStays) => row.due = next.at.0,
                    Some(_) => {}
                    None if bug == Some(PlantedBug::TimerFiresTwice) => {}
                    None => (row.state, row.ended) = ("fired", Some(now)),
                }
                let decided_ms = self.timers.decided.get(id).map_or(now, |at| at.database_ms);
                TimerStep::Fired { turn: turn.clone(), task: task_of(id, row, commit), due_ms, decided_ms }
            }
            TimerWrite::Postpone { next, by, .. } => {
                row.due = next.at.0;
                TimerStep::Postponed { by: by.clone() }
            }
            TimerWrite::End { state, by, .. } => {
                (row.state, row.ended) = (state.name(), Some(now));
                let decided_after = self.timers.decided.get(id).map_or(self.commits, |at| at.after);
                TimerStep::Ended { state: state.name(), by: by.clone(), decided_after }
            }
        };
        self.note_timer(id, thread, now, step);
    }

    /// The next due timers of a partition.
    pub(crate) fn timer_page(
        &self,
        partition: PartitionId,
        from_ms: Option<i64>,
        limit: usize,
        time: i64,
    ) -> TimerPage {
        let now = self.database_ms(time);
        let from = from_ms.map_or(i64::MIN, |ms| now.saturating_add(ms));
        let timers = self.tables[usize::from(partition.0)].timers.iter();
        let mut pending: Vec<(i64, &TimerId)> = timers
            .filter(|(_, row)| row.is_pending() && row.due >= from)
            .map(|(id, row)| (row.due, id))
            .collect();
        pending.sort_unstable();
        pending.truncate(limit);
        let is_all = pending.len() < limit;
        let waits = |(due, id): (i64, &TimerId)| PendingTimer { id: id.clone(), wait_ms: due - now };
        TimerPage { timers: pending.into_iter().map(waits).collect(), is_all }
    }

    /// The data that decides about a timer.
    pub(crate) fn due_timer(
        &self,
        id: &TimerId,
        settings: Map<String, Value>,
        time: i64,
    ) -> Option<DueTimer> {
        let row = self.timer(id)?;
        let number = usize::from(self.timer_partition(id).0);
        let now = self.database_ms(time);
        let agents = self.tables.iter().find_map(|tables| tables.agents.get(&row.agent.agent()));
        let thread = row.thread.clone();
        let mut due = DueTimer {
            id: id.clone(),
            kind: id.kind(),
            thread: thread.clone(),
            agent: row.agent.clone(),
            state: match row.state {
                "pending" => TimerState::Pending,
                "fired" => TimerState::Fired,
                _ => TimerState::Ended,
            },
            body: row.body.clone(),
            now: Timestamp(now),
            due: Timestamp(row.due),
            is_due: row.due <= now,
            settings,
            paused: agents.is_some_and(|row| row.is_paused),
            is_over_budget: false,
            // Converted from the simulation's clock.
            backoff_until: agents
                .and_then(|row| row.next_run_at)
                .map(|until| Timestamp(until + self.timers.ahead_ms)),
            real_input: thread.as_ref().and_then(|thread| self.real_input(thread)),
            is_history_gone: thread.as_ref().is_some_and(|thread| self.is_history_gone(thread, row)),
            is_erased: thread.as_ref().is_some_and(|thread| self.is_erased(thread)),
            is_taken: delayed_task(row).is_some_and(|task| self.tables[number].knows_task(&row.agent, &task)),
            fired_since_real_input: 0,
            fired_at: Vec::new(),
            schedule: self.timers.schedules.get(id).cloned(),
        };
        if let Some(thread) = &thread {
            self.count_fired(number, thread, &mut due);
        }
        if let Some(schedule) = &mut due.schedule {
            schedule.unfinished = self.unfinished(id, &row.agent);
        }
        Some(due)
    }

    fn real_input(&self, thread: &ThreadId) -> Option<(Position, Timestamp, Metadata)> {
        let mut rows = self.kept.get(thread)?.iter().rev();
        let is_any = self.bug == Some(PlantedBug::CountResetByContinuation);
        rows.find_map(|(position, kept)| {
            let Item { role, batch_type, metadata, message_id, .. } = &kept.item;
            let is_work = matches!(batch_type, BatchType::AgentToAgent | BatchType::SystemTrigger)
                || model::TurnId::of_input(message_id).is_some_and(|turn| turn.task_position().is_some());
            let is_synthetic = metadata.is_synthetic();
            let is_continuation = is_any && *batch_type == BatchType::Continuation;
            let is_real = *role == Role::User && (is_continuation || !(is_work || is_synthetic));
            let at = Timestamp(START + kept.at + self.timers.ahead_ms);
            is_real.then(|| (Position::from_stored(*position), at, metadata.clone()))
        })
    }

    /// True if retention has deleted the answer that armed the follow-up, and the thread has newer
    /// messages.
    fn is_history_gone(&self, thread: &ThreadId, row: &TimerRow) -> bool {
        let text = row.body.get("armed_position").and_then(Value::as_str);
        text.and_then(|text| text.parse::<i64>().ok()).is_some_and(|armed| {
            let has_gone_on = self.heads.get(thread).is_some_and(|head| *head > armed);
            has_gone_on && !self.kept.get(thread).is_some_and(|kept| kept.contains_key(&armed))
        })
    }

    fn count_fired(&self, number: usize, thread: &ThreadId, due: &mut DueTimer) {
        let of_thread = self.tables[number].timers.iter().filter(|(id, row)| {
            id.kind() == TimerKind::FollowUp && row.thread.as_ref() == Some(thread) && row.state == "fired"
        });
        let mut fired: Vec<&TimerRow> = of_thread.map(|(_, row)| row).collect();
        fired.sort_by_key(|row| std::cmp::Reverse(row.created_in));
        fired.truncate(MOST_COUNTED);
        let real = due.real_input.as_ref().map_or(0, |(position, ..)| position.get());
        let armed = |row: &TimerRow| {
            let text = row.body.get("armed_position").and_then(Value::as_str);
            text.and_then(|text| text.parse::<i64>().ok()).unwrap_or(0)
        };
        let since = fired.iter().filter(|row| armed(row) > real).count();
        due.fired_since_real_input = since as u32;
        let mut at: Vec<i64> = fired.iter().filter_map(|row| row.ended).collect();
        at.sort_unstable_by_key(|at| std::cmp::Reverse(*at));
        due.fired_at = at.into_iter().map(Timestamp).collect();
    }

    /// Tasks of earlier occurrences that are neither done nor given up.
    fn unfinished(&self, id: &TimerId, agent: &AgentId) -> u32 {
        let name = format!("{id}-");
        let of_tables = |tables: &super::Tables| {
            let head = tables.agents.get(agent).map_or(0, |row| row.head);
            let (pending, _) = tables.pending(agent, head, usize::MAX);
            pending.iter().filter(|queued| queued.task.id.as_str().starts_with(&name)).count()
        };
        self.tables.iter().map(of_tables).sum::<usize>() as u32
    }

    /// Deletes the timers of an erased thread and of its agent, and returns their number.
    pub(super) fn erase_timers(&mut self, thread: &ThreadId) -> usize {
        let is_its = |row: &TimerRow| match &row.thread {
            Some(of) => of == thread,
            None => row.agent.as_str() == thread.as_str(),
        };
        self.tables
            .iter_mut()
            .map(|tables| {
                let before = tables.timers.len();
                tables.timers.retain(|_, row| !is_its(row));
                before - tables.timers.len()
            })
            .sum()
    }
}

/// The id of the task that enters its queue when the timer is due.
fn delayed_task(row: &TimerRow) -> Option<model::TaskId> {
    model::TaskId::parse(row.body.get("task")?.get("id")?.as_str()?).ok()
}

/// The task that a commit adds for this timer.
fn task_of(timer: &TimerId, row: &TimerRow, commit: &Commit) -> Option<model::TaskId> {
    let delayed = delayed_task(row);
    let is_its = |task: &&model::Task| match timer.kind() {
        TimerKind::Schedule => task.id.as_str().starts_with(&format!("{timer}-")),
        TimerKind::Task => task.agent == row.agent && Some(&task.id) == delayed.as_ref(),
        TimerKind::FollowUp => false,
    };
    commit.tasks.iter().map(|write| &write.queued.task).find(is_its).map(|task| task.id.clone())
}
