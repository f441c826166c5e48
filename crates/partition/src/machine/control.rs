//! Control commands of operators and clients for agents, tasks and turns.

use model::{AgentId, Bucket, Control, ControlKind, Position, TaskEdit, TaskId, TurnError, TurnId};

use super::Partition;
use crate::committing::InFlight;
use crate::turn_state::{TurnEnd, TurnState};
use crate::types::{BackoffChange, CommandVerdict, FailedTask, TaskChange};

/// Why a control command was refused, for people; `None` if it is done.
type Refused = Option<String>;

impl Partition {
    pub(super) fn control(&mut self, control: &Control, verdict: CommandVerdict) -> Refused {
        let agent = &control.subject;
        if let CommandVerdict::Task { position, is_failed } = verdict
            && self.commands.has_left(position, is_failed)
        {
            return Some("the task has just been retried or dropped".to_owned());
        }
        if let (ControlKind::Pause | ControlKind::Resume | ControlKind::ClearBackoff, CommandVerdict::Unknown) =
            (&control.kind, verdict)
            && !self.has_agent(agent)
        {
            return Some("there is no such agent".to_owned());
        }
        match &control.kind {
            // The store has already erased the thread; only the command's place in the stream
            // matters.
            ControlKind::EraseThread => None,
            ControlKind::Pause => self.set_paused(agent, true),
            ControlKind::Resume => self.set_paused(agent, false),
            ControlKind::ClearBackoff => self.clear_backoff(agent),
            ControlKind::StopTurn(turn) => self.stop_turn(turn),
            ControlKind::DropFailedTurn(turn) => {
                self.commands.writes.dropped_turns.push((agent.thread(), turn.clone()));
                None
            }
            ControlKind::RetryTask(task) => self.retry_task(agent, task, verdict),
            ControlKind::DropTask(task) => self.drop_task(agent, task, verdict),
            ControlKind::EditTask { task, edit } => self.edit_task(agent, task, verdict, edit),
            ControlKind::CancelTimer(timer) => self.cancel_timer(timer),
            ControlKind::SnoozeTimer { timer, until } => self.snooze_timer(timer, *until),
            // These are stored already.
            ControlKind::PutSchedule(_) | ControlKind::DeleteSchedule(_) | ControlKind::DelayTask(_) => {
                self.timers.reread();
                None
            }
        }
    }

    /// True if memory has something of the agent that may not be stored yet.
    fn has_agent(&self, agent: &AgentId) -> bool {
        self.table.agents.queues.contains_key(agent)
            || self.commands.incoming.iter().any(|(_, task, _)| task.agent == *agent)
            || self.committing.in_flight_tasks().any(|queued| queued.task.agent == *agent)
            || self.table.turns.values().any(|turn| *turn.agent() == *agent)
    }

    fn set_paused(&mut self, agent: &AgentId, paused: bool) -> Refused {
        self.table.queue(agent, |queue| queue.paused = paused);
        self.table.agents.mark(agent, BackoffChange::Keep);
        self.table.make_ready(&agent.thread());
        None
    }

    fn clear_backoff(&mut self, agent: &AgentId) -> Refused {
        let until = self.table.queue(agent, |queue| {
            let until = queue.waits_until();
            queue.clear_backoff();
            until
        });
        if let Some(until) = until {
            self.table.delays.backoffs.remove(&(until, agent.clone()));
        }
        // The backoff of a failure that is being stored has not begun.
        let is_of_agent = |turn: &TurnId| {
            self.table.turns.get(turn).is_some_and(|turn| turn.is_task() && *turn.agent() == *agent)
        };
        for ended in self.committing.in_flight.iter_mut().flat_map(|in_flight| &mut in_flight.ended) {
            if let InFlight::Turn(ended) = ended
                && is_of_agent(&ended.id)
            {
                ended.wait_ms = None;
            }
        }
        self.table.agents.mark(agent, BackoffChange::Clear);
        self.table.make_ready(&agent.thread());
        None
    }

    fn stop_turn(&mut self, turn: &TurnId) -> Refused {
        let Some(found) = self.table.turns.get(turn) else {
            return Some("the turn is not under way and does not wait".to_owned());
        };
        match found.state {
            // A turn that waits for its thread may have begun under a previous owner: a task, or an
            // input whose answer has already come. Any other waiting turn fails.
            TurnState::Waiting { .. } if !found.is_task() && found.answer.slot.is_none() => {
                let end = TurnEnd::Failed(model::MessageFailure::Turn(TurnError::Stopped));
                self.end_turn(turn, end);
                None
            }
            TurnState::Waiting { .. } | TurnState::Starting | TurnState::Running => {
                self.end_turn(turn, TurnEnd::Stopped);
                None
            }
            TurnState::Ended(_) => Some("the turn has ended already".to_owned()),
        }
    }

    fn retry_task(&mut self, agent: &AgentId, task: &TaskId, verdict: CommandVerdict) -> Refused {
        let now = self.effects.now;
        let from = match verdict {
            CommandVerdict::Task { position, is_failed: true } => position,
            CommandVerdict::Task { .. } => return Some(format!("task {task} is not failed")),
            CommandVerdict::New
            | CommandVerdict::Known { .. }
            | CommandVerdict::Unknown
            | CommandVerdict::Erased
            | CommandVerdict::Refused => {
                return unknown(task);
            }
        };
        let to = self.committing.positions.next(Bucket::of_key(agent.as_str()), now);
        self.commands.leave(from, true);
        self.commands.writes.task_changes.push(TaskChange::requeue(agent.clone(), from, to));
        self.table.queue(agent, |queue| queue.expect(to));
        self.commands.writes.more.push(agent.clone());
        None
    }

    /// A pending task is changed: see [`scheduling::AgentQueue::mark_unknown`].
    fn mark_unknown(&mut self, agent: &AgentId) {
        self.table.queue(agent, scheduling::AgentQueue::mark_unknown);
        self.commands.writes.more.push(agent.clone());
    }

    fn drop_task(&mut self, agent: &AgentId, task: &TaskId, verdict: CommandVerdict) -> Refused {
        let (position, is_failed) = match verdict {
            CommandVerdict::Task { position, is_failed } => (position, is_failed),
            CommandVerdict::New
            | CommandVerdict::Known { .. }
            | CommandVerdict::Unknown
            | CommandVerdict::Erased
            | CommandVerdict::Refused => {
                return unknown(task);
            }
        };
        if is_failed {
            self.commands.leave(position, true);
            self.commands.writes.task_changes.push(TaskChange::remove(agent.clone(), position));
            return None;
        }
        if let Some(refused) = self.is_out_of_reach(agent, task, position) {
            return Some(refused);
        }
        let (was_first, until) = self.table.queue(agent, |queue| {
            let was_first = queue.first().is_some_and(|first| first.position == position);
            let until = queue.waits_until();
            queue.remove(position);
            (was_first, until)
        });
        self.mark_unknown(agent);
        if was_first {
            if let Some(until) = until {
                self.table.delays.backoffs.remove(&(until, agent.clone()));
            }
            self.table.agents.mark(agent, BackoffChange::Clear);
            self.table.make_ready(&agent.thread());
        }
        self.commands.leave(position, false);
        self.commands.writes.failed_tasks.push(FailedTask {
            agent: agent.clone(),
            position,
            code: "dropped".to_owned(),
            text: "dropped by an operator".to_owned(),
        });
        None
    }

    fn edit_task(
        &mut self,
        agent: &AgentId,
        task: &TaskId,
        verdict: CommandVerdict,
        edit: &TaskEdit,
    ) -> Refused {
        let (position, is_failed) = match verdict {
            CommandVerdict::Task { position, is_failed } => (position, is_failed),
            CommandVerdict::New
            | CommandVerdict::Known { .. }
            | CommandVerdict::Unknown
            | CommandVerdict::Erased
            | CommandVerdict::Refused => {
                return unknown(task);
            }
        };
        if !is_failed && let Some(refused) = self.is_out_of_reach(agent, task, position) {
            return Some(refused);
        }
        if !is_failed {
            self.table.queue(agent, |queue| queue.edit(position, edit));
            self.mark_unknown(agent);
        }
        self.commands.writes.edited_bytes += edit.size();
        let (agent, edit) = (agent.clone(), edit.clone());
        self.commands.writes.task_changes.push(TaskChange::edit(agent, position, edit));
        None
    }

    /// Why a pending task cannot be changed: it is running or done.
    fn is_out_of_reach(&self, agent: &AgentId, task: &TaskId, position: Position) -> Refused {
        let queue = self.table.agents.queues.get(agent);
        if queue.is_some_and(|queue| queue.is_under_way(task)) {
            return Some(format!("task {task} is under way; stop its turn first"));
        }
        let is_pending = queue.is_some_and(|queue| queue.is_pending(position));
        (!is_pending).then(|| format!("task {task} is completed"))
    }
}

fn unknown(task: &TaskId) -> Refused {
    Some(format!("there is no task {task}, or it is older than seven days"))
}
