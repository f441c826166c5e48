//! Commands: what an entry of the stream asks for besides chunks.

use crate::{
    AgentId, CommandId, DelayedTask, ScheduleName, Task, TaskEdit, TaskId, TimerId, Timestamp, TurnId,
    TurnOpened,
};

/// What an entry of the stream asks for besides chunks.
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

/// A command of an operator or a client about an agent, a task or a turn. It travels in the stream, so it is applied in the order of the
/// stream and once, and it is audited.
#[derive(Debug, Clone, PartialEq)]
pub struct Control {
    /// Its id: the same id again does nothing.
    pub id: CommandId,
    /// The operator or client.
    pub actor: Box<str>,
    /// The agent that it is about; for a turn of a thread, the thread's id.
    pub subject: AgentId,
    /// What is to be done.
    pub kind: ControlKind,
}

/// What a [`Control`] does.
#[derive(Debug, Clone, PartialEq)]
pub enum ControlKind {
    /// The agent starts no further task.
    Pause,
    /// It does again.
    Resume,
    /// Its head may run at once.
    ClearBackoff,
    /// The turn ends now; its partial answer is kept and marked.
    StopTurn(TurnId),
    /// A failed task goes to the end of the queue.
    RetryTask(TaskId),
    /// A pending task becomes failed with code `dropped`; a failed one goes.
    DropTask(TaskId),
    /// A pending or failed task gets another payload.
    EditTask {
        /// The task.
        task: TaskId,
        /// What is changed.
        edit: TaskEdit,
    },
    /// A failed turn goes.
    DropFailedTurn(TurnId),
    /// The thread was erased in the store: its owner has forgotten it, and has read the stream up to here, once this is audited.
    EraseThread,
    /// A follow-up or a delayed task that waits never fires.
    CancelTimer(TimerId),
    /// A follow-up that waits is due at another time.
    SnoozeTimer {
        /// The follow-up.
        timer: TimerId,
        /// When it is due, by the database's clock.
        until: Timestamp,
    },
    /// A schedule was put in the store: the owner of the agent reads again what is due.
    PutSchedule(ScheduleName),
    /// A schedule was deleted there.
    DeleteSchedule(ScheduleName),
    /// A task was stored that enters the queue later; likewise.
    DelayTask(TaskId),
}

impl ControlKind {
    /// The name in the audit, in JSON and in metrics.
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

    /// The task, turn, timer or schedule that it is about, if it is about one.
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
