//! Commands: stream entries other than chunks.

use crate::{
    AgentId, CommandId, DelayedTask, ScheduleName, Task, TaskEdit, TaskId, TimerId, Timestamp, TurnId,
    TurnOpened,
};

/// A stream entry other than a frame of chunks.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// An input opens a turn.
    Turn(Box<TurnOpened>),
    /// A task for an agent.
    Task(Task),
    /// A task that enters its agent's queue later.
    DelayedTask(Box<DelayedTask>),
    /// A control command of an operator or a client.
    Control(Control),
}

/// A control command of an operator or a client about an agent, a task or a turn. It travels in the
/// stream, so it is applied once and in order, and it is audited.
#[derive(Debug, Clone, PartialEq)]
pub struct Control {
    /// Id of the command: a repeated command with the same id does nothing.
    pub id: CommandId,
    /// The operator or client.
    pub actor: Box<str>,
    /// Agent that the command concerns; for a turn of a thread, the thread's id.
    pub subject: AgentId,
    pub kind: ControlKind,
}

/// What a [`Control`] does.
#[derive(Debug, Clone, PartialEq)]
pub enum ControlKind {
    /// The agent starts no further task.
    Pause,
    /// The agent starts tasks again.
    Resume,
    /// The agent's head may run at once.
    ClearBackoff,
    /// The turn ends now; its partial answer is kept and marked.
    StopTurn(TurnId),
    /// A failed task goes to the end of the queue.
    RetryTask(TaskId),
    /// A pending task becomes failed with code `dropped`; a failed one is deleted.
    DropTask(TaskId),
    /// A pending or failed task gets another payload.
    EditTask { task: TaskId, edit: TaskEdit },
    /// A failed turn is deleted.
    DropFailedTurn(TurnId),
    /// The thread was erased in the store. Once this command is audited, the thread's owner has
    /// forgotten the thread and has read the stream up to here.
    EraseThread,
    /// A pending follow-up or delayed task never fires.
    CancelTimer(TimerId),
    /// A pending follow-up gets another due time.
    SnoozeTimer {
        timer: TimerId,
        /// New due time by the database's clock.
        until: Timestamp,
    },
    /// A schedule was stored: the agent's owner loads due timers again.
    PutSchedule(ScheduleName),
    /// A schedule was deleted from the store: the agent's owner loads due timers again.
    DeleteSchedule(ScheduleName),
    /// A task that enters the queue later was stored: the agent's owner loads due timers again.
    DelayTask(TaskId),
}

impl ControlKind {
    /// Name in the audit, in JSON and in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::ClearBackoff => "clear_backoff",
            Self::StopTurn(_) => "stop_turn",
            Self::RetryTask(_) => "retry_task",
            Self::DropTask(_) => "drop_task",
            Self::EditTask { .. } => "edit_task",
            Self::DropFailedTurn(_) => "drop_failed_turn",
            Self::EraseThread => "erase_thread",
            Self::CancelTimer(_) => "cancel_timer",
            Self::SnoozeTimer { .. } => "snooze_timer",
            Self::PutSchedule(_) => "put_schedule",
            Self::DeleteSchedule(_) => "delete_schedule",
            Self::DelayTask(_) => "delay_task",
        }
    }

    /// Task, turn, timer or schedule that the command concerns, if any.
    pub fn target(&self) -> Option<&str> {
        match self {
            Self::Pause | Self::Resume | Self::ClearBackoff | Self::EraseThread => None,
            Self::StopTurn(turn) | Self::DropFailedTurn(turn) => Some(turn.as_str()),
            Self::RetryTask(task)
            | Self::DropTask(task)
            | Self::DelayTask(task)
            | Self::EditTask { task, .. } => Some(task.as_str()),
            Self::CancelTimer(timer) | Self::SnoozeTimer { timer, .. } => Some(timer.as_str()),
            Self::PutSchedule(name) | Self::DeleteSchedule(name) => Some(name.as_str()),
        }
    }
}
