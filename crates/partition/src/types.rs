//! Values for turns and tasks that pass between the machine and its driver.

use bytes::Bytes;
use model::{
    AgentId, CommandId, Control, ControlKind, FinishReason, Message, MessageKey, Metadata, ModelCall,
    Position, QueryTarget, QueueStatus, QueuedTask, Seq, Task, TaskEdit, TaskId, TaskKind, TaskOrigin,
    ThreadId, TimerId, TurnId, TurnOpened, TurnOptions, TurnOrigin, TurnToken, UsageKind,
};
use scheduling::follow_up::ArmingRules;

/// Key by which the store is asked about a command before the command is taken.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CommandKey {
    /// A run of a turn.
    Turn(ThreadId, TurnId, u32),
    /// A task, and the thread whose text it carries, if any.
    Task(AgentId, TaskId, Option<ThreadId>),
    /// A control command, and the task it concerns, if any.
    Control(AgentId, CommandId, Option<TaskId>),
}

/// State of a command in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandVerdict {
    /// The command is new. For a control command: it has not been done, and its task is not known.
    New,
    /// The command was taken before: a turn that is committed, failed in this run or is saved as
    /// open; a control command that was done; or a task with this payload.
    Known {
        /// [`Task::digest`] of a known task, 0 otherwise.
        digest: u64,
    },
    /// The agent or thread does not exist and must not be created by use.
    Unknown,
    /// The command belongs to an erased thread: it is dropped, and none of its data is kept.
    Erased,
    /// The store permanently refuses this look-up. The command becomes a dead letter.
    Refused,
    /// A control command that has not been done, about a known task.
    Task {
        /// Position in the queue.
        position: Position,
        /// The task is marked failed.
        is_failed: bool,
    },
}

/// Result of storing a task that enters its queue later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskDelay {
    /// The task is stored, now or by an earlier copy of the same command.
    Stored,
    /// The agent has a task of this id with another payload or time.
    Conflict,
    /// The agent already has the maximum number of waiting tasks.
    Full,
    /// The agent was erased.
    Erased,
}

/// A turn to start: the driver reads the context and publishes the turn request. Answer with
/// [`crate::Input::Started`].
#[derive(Debug, Clone, PartialEq)]
pub struct Start {
    pub turn: TurnId,
    /// Its run, from 0.
    pub run: u32,
    /// The attempt of a first delivery; each redelivery counts one more.
    pub attempt: u32,
    /// Thread in which the turn runs.
    pub thread: ThreadId,
    /// Agent whose workflow gets the request.
    pub agent: AgentId,
    pub cause: TurnCause,
    /// Text of the input.
    pub content: String,
    /// Metadata of the input.
    pub metadata: Metadata,
    /// Chunks of this run have already come, from a request of the previous owner: only the rules
    /// are requested, and nothing is published.
    pub is_adopted: bool,
    /// Time from the acceptance of the input to the start of this run, ms; `None`: a previous owner
    /// started it.
    pub waited_ms: Option<i64>,
    /// Token that the chunks of the answer must carry.
    pub token: TurnToken,
    /// Options of the turn; the default for a task's turn.
    pub options: TurnOptions,
}

/// What a turn answers.
#[derive(Debug, Clone, PartialEq)]
pub enum TurnCause {
    /// An input of the thread.
    Input(TurnOrigin),
    /// A task of the agent.
    Task { id: TaskId, kind: TaskKind, origin: TaskOrigin },
}

impl TurnCause {
    /// Kind of the task; `None` for an input.
    pub fn task_kind(&self) -> Option<TaskKind> {
        match self {
            Self::Input(_) => None,
            Self::Task { kind, .. } => Some(*kind),
        }
    }

    /// The stored batch that the turn continues.
    pub fn continues(&self) -> Option<Position> {
        match self {
            Self::Input(origin) => origin.continues(),
            Self::Task { origin, .. } => origin.continues(),
        }
    }

    /// The batch that a heartbeat continues; see [`TurnOrigin::heartbeat_of`].
    pub fn heartbeat_of(&self) -> Option<Position> {
        match self {
            Self::Input(origin) => origin.heartbeat_of(),
            Self::Task { origin, .. } => origin.heartbeat_of(),
        }
    }

    /// Timer that fired the turn, if it is a follow-up.
    pub fn timer(&self) -> Option<&TimerId> {
        match self {
            Self::Input(origin) => origin.timer(),
            Self::Task { .. } => None,
        }
    }

    /// Thread whose text the task carries.
    pub fn source_thread(&self) -> Option<&ThreadId> {
        match self {
            Self::Input(_) => None,
            Self::Task { origin, .. } => origin.source_thread(),
        }
    }
}

/// Rules for an agent's turns, from its settings at the start of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnRules {
    /// Time without any chunk after which the run fails, ms.
    pub deadline_ms: i64,
    /// First backoff, ms.
    pub backoff_base_ms: i64,
    /// Longest backoff, ms.
    pub backoff_cap_ms: i64,
    /// Number of failures after which a task is given up; `None`: never.
    pub max_attempts: Option<u32>,
    /// A successful turn with a person sends the agent a `work_request` task.
    pub work_request: bool,
    /// A successful turn with a person sends the agent a `memory` task.
    pub memory: bool,
    /// Decide whether and when a follow-up is armed after the turn; `None`: never.
    pub follow_ups: Option<ArmingRules>,
}

impl Default for TurnRules {
    fn default() -> Self {
        Self {
            deadline_ms: 120_000,
            backoff_base_ms: 60_000,
            backoff_cap_ms: 86_400_000,
            max_attempts: None,
            work_request: false,
            memory: false,
            follow_ups: None,
        }
    }
}

/// Why an agent cannot begin a turn now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotNow {
    /// The agent backs off.
    Backoff {
        /// Remaining time in ms, at least 1.
        for_ms: i64,
    },
    /// Its agent is paused.
    Paused,
    /// A budget of the agent, user or tenant is spent.
    Budget {
        /// Time until the budget is renewed in ms, at least 1.
        for_ms: i64,
    },
    /// A limit of the workflow, model or tenant is reached. The end of the wait is not known, so
    /// the turn is tried again later.
    Limited {
        /// Time until the next try in ms, at least 1.
        for_ms: i64,
    },
}

/// Result of a [`Start`].
#[derive(Debug, Clone, PartialEq)]
pub enum Started {
    /// The request is stored; chunks will follow.
    Requested(TurnRules),
    /// Nothing was requested: the agent, which may live in another partition, cannot start this
    /// turn now. The turn is tried again later.
    NotNow(NotNow),
    /// The turn belongs to a follow-up that is no longer wanted; names the cause, see
    /// [`crate::DueTimer::superseded_by`].
    Superseded(&'static str),
    /// The store permanently refuses to read the data that the turn starts from. The turn fails
    /// with code `rejected_by_database`.
    Unreadable {
        /// Rules for the work that follows the turn.
        rules: TurnRules,
        /// Error text of the store.
        detail: String,
    },
    /// The request cannot be made, and a retry would not help.
    Refused {
        /// Rules for the work that follows the turn.
        rules: TurnRules,
        /// Reason, for people.
        text: String,
    },
}

/// Change of one agent's queue row. The values are absolute. They are written only while the stored
/// head is below `guard`, so a task completes at most once even without the epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentWrite {
    pub agent: AgentId,
    /// The write applies only while the stored head is below this position.
    pub guard: Position,
    /// All tasks up to here are done or marked failed. The head never goes back.
    pub head: Position,
    /// Number of failures of the task after the head. It is also the run number of that task's next
    /// turn.
    pub run: u32,
    /// Failures since the last success: `backoff_attempt_count`.
    pub failures: u32,
    /// Change of `backoff_next_run_at`.
    pub wait: BackoffChange,
    /// True: tasks do not start.
    pub paused: bool,
    /// Code and text of the last failure of the head. `None` keeps the stored value; clearing the
    /// backoff clears it too.
    pub error: Option<(String, String)>,
}

/// Change of the column `backoff_next_run_at`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackoffChange {
    /// The column keeps its value.
    Keep,
    /// The column becomes null.
    Clear,
    /// Delay in ms from now, by the database's clock.
    Start(i64),
}

/// A task marked failed.
#[derive(Debug, Clone, PartialEq)]
pub struct FailedTask {
    pub agent: AgentId,
    pub position: Position,
    /// Code for machines: the code of a failure, `dropped` or `stopped`.
    pub code: String,
    pub text: String,
}

impl FailedTask {
    pub(crate) fn is_of(&self, agent: &AgentId, position: Position) -> bool {
        self.agent == *agent && self.position == position
    }
}

/// A failed turn with its input. Nothing of it is in the history; it can be retried.
#[derive(Debug, Clone, PartialEq)]
pub struct FailedTurn {
    /// The input, with the run that failed.
    pub opened: TurnOpened,
    /// A code for machines.
    pub code: String,
    pub text: String,
    /// True if a retry may help.
    pub is_retryable: bool,
    /// Text of the answer received before the failure; empty when none had come.
    pub partial: String,
}

impl FailedTurn {
    pub(crate) fn is_of(&self, thread: &ThreadId, turn: &TurnId) -> bool {
        self.opened.turn == *turn && self.opened.thread == *thread
    }
}

/// One finished turn. Its messages are written together with the rest of the commit or not at all.
#[derive(Debug, Clone, PartialEq)]
pub struct TurnWrite {
    pub turn: TurnId,
    /// Input, steps and answer in the order of their positions; empty when nothing enters the
    /// history.
    pub messages: Vec<Message>,
    /// For a task: index in [`crate::Commit::agents`] of the write that moves the head. If that
    /// write is refused, nothing of this turn is written.
    pub agent: Option<usize>,
    /// The agent that answered an input; `None` for a task. It becomes the agent of a thread that
    /// names none.
    pub answered_by: Option<AgentId>,
    /// Thread of a stored failed turn with this id, which is deleted because its retry succeeded.
    pub ends_failed: Option<ThreadId>,
    /// Written instead when the store refuses the messages.
    pub on_refusal: Fallback,
}

/// See [`TurnWrite::on_refusal`]. `code` and `text` are filled in when they are known.
#[derive(Debug, Clone, PartialEq)]
pub enum Fallback {
    /// The turn becomes a failed turn.
    Turn(Box<FailedTurn>),
    /// The task is marked failed.
    Task(FailedTask),
    /// Only the end of the follow-up's timer is written.
    FollowUp(TimerId),
}

/// One model call of a turn, as a row of the ledger. Its key is the answer and the number, so a
/// repeated write is harmless.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageWrite {
    pub turn: TurnId,
    /// Answer for which the call was made; for a turn that failed or was withdrawn, the id that its
    /// answer would have had.
    pub answer: MessageKey,
    /// Number of the call within the answer, from 0.
    pub number: u16,
    /// Agent whose workflow made the call.
    pub agent: AgentId,
    /// Purpose of the call.
    pub kind: UsageKind,
    /// Tokens and other usage of the call.
    pub call: ModelCall,
    /// True if the answer did not reach its end, so that there may have been more calls.
    pub is_partial: bool,
    /// Why the answer ended; `None`: it failed, was withdrawn, or had ended before the call.
    pub finish_reason: Option<FinishReason>,
}

impl UsageWrite {
    /// Numbers from here on are calls of attempts that began after the end of their run.
    pub const FIRST_LATE: u16 = 1_024;
    /// Highest number that the two-byte column can hold.
    pub const LAST_LATE: u16 = i16::MAX as u16;
}

/// A task that enters the queue.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskWrite {
    /// Sequence of its entry in the stream.
    pub seq: Seq,
    /// Task with its position in the queue.
    pub queued: QueuedTask,
    /// [`Task::digest`].
    pub digest: u64,
}

/// All changes of one stored task by operators.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskChange {
    pub agent: AgentId,
    /// The position at which the task is stored.
    pub stored: Position,
    /// The new position, or the stored one; `None`: the task is deleted. A task that is moved or
    /// deleted loses its failure mark.
    pub position: Option<Position>,
    /// The changed fields. The task's digest stays, so that the original command is still
    /// recognized as this task if it is sent again.
    pub edit: TaskEdit,
}

impl TaskChange {
    /// A failed task gets a new position.
    pub fn requeue(agent: AgentId, from: Position, to: Position) -> Self {
        Self { agent, stored: from, position: Some(to), edit: TaskEdit::default() }
    }

    /// A failed task is deleted.
    pub fn remove(agent: AgentId, position: Position) -> Self {
        Self { agent, stored: position, position: None, edit: TaskEdit::default() }
    }

    /// A task gets another payload.
    pub fn edit(agent: AgentId, position: Position, edit: TaskEdit) -> Self {
        Self { agent, stored: position, position: Some(position), edit }
    }

    /// True if both change the same task. Two acts that were checked together both name the task by
    /// the position that it had then.
    pub(crate) fn is_of(&self, later: &Self) -> bool {
        self.agent == later.agent && (self.stored == later.stored || self.position == Some(later.stored))
    }

    /// True if the change deletes this mark. Only failed tasks are moved or deleted.
    pub(crate) fn lifts(&self, mark: &FailedTask) -> bool {
        mark.is_of(&self.agent, self.stored) && self.position != Some(self.stored)
    }

    /// Adds a later change of the same task. A task that was deleted stays deleted.
    pub(crate) fn then(&mut self, later: Self) {
        if later.position != Some(later.stored) {
            self.position = self.position.and(later.position);
        }
        let TaskEdit { content, metadata } = later.edit;
        self.edit.content = content.or(self.edit.content.take());
        self.edit.metadata = metadata.or(self.edit.metadata.take());
    }
}

/// An audit row of a control command.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditWrite {
    /// Id of the command; unique.
    pub id: CommandId,
    /// Agent or thread that the command concerns.
    pub subject: AgentId,
    /// The operator or client.
    pub actor: String,
    /// [`model::ControlKind::name`], or `retry_turn`.
    pub action: String,
    /// Task or turn that the command concerns.
    pub target: Option<String>,
    /// `None`: done; otherwise why it was rejected, for people.
    pub error: Option<String>,
}

/// An open input that is saved so that the checkpoint can pass it.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenTurn {
    /// The input, with the current run.
    pub opened: TurnOpened,
    /// Sequence of the input's entry in the stream, which is the order of waiting inputs.
    pub seq: Seq,
    /// Age of the input in ms.
    pub age_ms: i64,
}

/// Work that a commit adds to its own partition. It begins when the commit is applied.
#[derive(Debug, Clone, PartialEq)]
pub enum NewWork {
    /// The input of a continuation or of a follow-up.
    Turn(Box<TurnOpened>),
    /// A task for an agent of the partition.
    Task(Task),
}

impl NewWork {
    /// Key by which a command that asks for the same is recognized.
    pub(crate) fn key(&self) -> CommandKey {
        match self {
            Self::Turn(opened) => CommandKey::Turn(opened.thread.clone(), opened.turn.clone(), opened.run),
            Self::Task(task) => CommandKey::Task(task.agent.clone(), task.id.clone(), None),
        }
    }
}

/// Something published once after the commit: an entry of an outbox batch.
#[derive(Debug, Clone, PartialEq)]
pub enum Outgoing {
    /// A task for an agent, which may live in another partition.
    Task(Task),
    /// End of a turn, for integrators, on `turns.<thread>`.
    TurnEnded(TurnEnded),
    /// Pause of an agent, which may live in another partition.
    Pause(Pause),
}

/// A pause requested because the agent's credentials were refused in a person's turn. Retries are
/// useless until an operator has replaced the credentials.
#[derive(Debug, Clone, PartialEq)]
pub struct Pause {
    /// The turn that failed.
    pub turn: TurnId,
    /// Derived from the turn and its run, so that the pause is done once.
    pub id: CommandId,
    /// Agent to pause.
    pub agent: AgentId,
}

impl Pause {
    /// Actor of the pause in the audit.
    pub const ACTOR: &str = "antiphon";

    /// The control command that travels in the stream.
    pub fn control(&self) -> Control {
        Control {
            id: self.id.clone(),
            actor: Self::ACTOR.into(),
            subject: self.agent.clone(),
            kind: ControlKind::Pause,
        }
    }
}

/// The end of a turn as published to integrators.
#[derive(Debug, Clone, PartialEq)]
pub struct TurnEnded {
    pub turn: TurnId,
    pub thread: ThreadId,
    pub agent: AgentId,
    /// `completed`, `failed` or `stopped`.
    pub status: TurnStatus,
    /// Task of the turn; `None` for an input.
    pub task: Option<TaskId>,
    /// Message id of the answer, if it is in the history.
    pub message: Option<model::MessageId>,
    /// Position of the batch, if it is in the history.
    pub batch: Option<Position>,
    pub code: Option<String>,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnStatus {
    /// All its messages are in the history.
    Completed,
    /// Nothing of it is in the history.
    Failed,
    /// The messages received before the stop are in the history.
    Stopped,
}

impl TurnStatus {
    /// Name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
        }
    }
}

/// Everything that one commit sends: one row of the outbox, deleted when all of it is published.
#[derive(Debug, Clone, PartialEq)]
pub struct OutboxBatch {
    /// Id of the batch: unique in the partition, increasing.
    pub id: Position,
    pub outgoing: Vec<Outgoing>,
}

/// An agent as loaded by a new owner: one with pending tasks, in backoff, or paused.
#[derive(Debug, Clone, PartialEq)]
pub struct SavedAgent {
    pub agent: AgentId,
    /// See [`AgentWrite::head`].
    pub head: Position,
    /// See [`AgentWrite::run`].
    pub run: u32,
    /// See [`AgentWrite::failures`].
    pub failures: u32,
    /// Remaining backoff in ms by the database's clock; `None`: no backoff.
    pub wait_ms: Option<i64>,
    /// True: tasks do not start.
    pub paused: bool,
    /// First tasks after the head that are not marked failed, at most
    /// [`crate::PartitionLimits::queue_window`].
    pub tasks: Vec<QueuedTask>,
    /// True if the store has more tasks.
    pub more: bool,
}

/// Status query of a gateway; answered with [`crate::Action::Status`].
#[derive(Debug, Clone, PartialEq)]
pub struct StatusQuery {
    /// Returned in the reply.
    pub token: u64,
    /// Thread or agent in question.
    pub target: QueryTarget,
}

/// Reply to a [`StatusQuery`].
#[derive(Debug, Clone, PartialEq)]
pub struct StatusReply {
    /// The token of the query.
    pub token: u64,
    pub status: QueueStatus,
}

/// Raw payload of a command, for the dead letter it may become.
#[derive(Debug, Clone, PartialEq)]
pub struct RawPayload {
    /// Subject on which it came.
    pub subject: String,
    pub payload: Bytes,
}
