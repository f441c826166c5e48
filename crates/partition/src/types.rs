//! Turns and tasks as values between the machine and its driver: what is asked, started, written, restored.

use bytes::Bytes;
use model::{
    AgentId, CommandId, Control, ControlKind, FinishReason, Message, MessageKey, Metadata, ModelCall,
    Position, QueryTarget, QueueStatus, QueuedTask, Seq, Task, TaskEdit, TaskId, TaskKind, ThreadId, TimerId,
    TurnId, TurnOpened, TurnOptions, TurnToken, UsageKind,
};

/// What the store is asked about a command before anything comes of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CommandKey {
    /// A run of a turn.
    Turn(ThreadId, TurnId, u32),
    /// A task, with the thread whose text it carries, if it carries one's: see [`model::origin`].
    Task(AgentId, TaskId, Option<ThreadId>),
    /// A control command, with the task that it is about, if it is about one.
    Control(AgentId, CommandId, Option<TaskId>),
}

/// What the store knows of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandVerdict {
    /// Nothing: it is new. Of a control command: it has not been done, and the task that it is about is not known.
    New,
    /// It has been taken already: a turn that is committed or whose run failed or is saved as open, a control command that was done,
    /// a task with this payload.
    Known {
        /// [`Task::digest`] of a known task, 0 otherwise.
        digest: u64,
    },
    /// The agent (or the thread) does not exist, and may not be created by use.
    Unknown,
    /// It belongs to a thread that was erased: nothing comes of it, and nothing of it is kept.
    Erased,
    /// The store refuses for good to say what it knows of it. The command becomes a dead letter.
    Refused,
    /// Of a control command that has not been done, about a task that is known.
    Task {
        /// Its place in the queue.
        position: Position,
        /// It is marked failed.
        is_failed: bool,
    },
}

/// What came of storing a task that enters its queue later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskDelay {
    /// It waits, or has waited: the same was said before.
    Stored,
    /// The agent has one of that id with another payload or time.
    Conflict,
    /// As many tasks of the agent wait as may.
    Full,
    /// The agent was erased.
    Erased,
}

/// A turn that begins: the driver reads the context and publishes the turn request. Answer with
/// [`crate::Input::Started`].
#[derive(Debug, Clone, PartialEq)]
pub struct Start {
    /// The turn.
    pub turn: TurnId,
    /// Its run, from 0.
    pub run: u32,
    /// The attempt of a first delivery; each redelivery counts one more.
    pub attempt: u32,
    /// Where it takes place.
    pub thread: ThreadId,
    /// Whose workflow is asked.
    pub agent: AgentId,
    /// `task`, `work_request` or `memory` for a task's turn; `None` for a person's.
    pub task: Option<(TaskId, TaskKind)>,
    /// The input's text.
    pub content: String,
    /// The input's metadata.
    pub metadata: Metadata,
    /// Chunks of this run have come already, from a request of the owner before: only the rules are wanted, nothing is
    /// published.
    pub is_adopted: bool,
    /// From the acceptance of its input to the begin of this run, ms; `None`: an owner before this one has begun it.
    pub waited_ms: Option<i64>,
    /// What the chunks of the answer must carry.
    pub token: TurnToken,
    /// How the turn is to be run; the default for a task's.
    pub options: TurnOptions,
}

/// How an agent's turns are run, as its settings say at the start of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnRules {
    /// Without any chunk for so long, ms, the run has failed.
    pub deadline_ms: i64,
    /// First backoff, ms.
    pub backoff_base_ms: i64,
    /// Longest backoff, ms.
    pub backoff_cap_ms: i64,
    /// A task that has failed so often is given up; `None`: never.
    pub max_attempts: Option<u32>,
}

impl Default for TurnRules {
    fn default() -> Self {
        Self { deadline_ms: 120_000, backoff_base_ms: 60_000, backoff_cap_ms: 86_400_000, max_attempts: None }
    }
}

/// Why an agent may not begin a turn now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotNow {
    /// Its agent backs off for so long still, ms.
    Backoff {
        /// How long still, from 1.
        for_ms: i64,
    },
    /// Its agent is paused.
    Paused,
    /// A budget of its agent, user or tenant is spent, and lasts for so long still, ms.
    Budget {
        /// How long still, from 1.
        for_ms: i64,
    },
    /// A limit of its workflow, model or tenant is reached. When it may begin is not known: it is asked again in so long, ms.
    Limited {
        /// How long, from 1.
        for_ms: i64,
    },
}

/// What became of a [`Start`].
#[derive(Debug, Clone, PartialEq)]
pub enum Started {
    /// The request is stored; chunks will come.
    Requested(TurnRules),
    /// Nothing was requested: its agent, which may live in another partition, may not begin this turn. It is asked again in a while.
    NotNow(NotNow),
    /// It is the turn of a follow-up that is not wanted any more, and by what: see [`crate::DueTimer::superseded_by`].
    Superseded(&'static str),
    /// The store refuses for good to read what the turn starts from. The turn fails with the code `rejected_by_database`.
    Unreadable {
        /// The rules that count for what follows.
        rules: TurnRules,
        /// What the store said.
        detail: String,
    },
    /// The request cannot be made, and trying again would not help; why, for people.
    Refused {
        /// The rules that count for what follows.
        rules: TurnRules,
        /// Why.
        text: String,
    },
}

/// What is written of one agent's queue. Absolute, and only where the agent's head is still below `guard`: so that a
/// task completes at most once, even without the epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentWrite {
    /// The agent.
    pub agent: AgentId,
    /// Written only while the stored head is below this.
    pub guard: Position,
    /// All tasks up to here are done or marked failed. Never lowered.
    pub head: Position,
    /// How often the task after the head has failed: the run that its next turn has.
    pub run: u32,
    /// Failures since the last success: `backoff_attempt_count`.
    pub failures: u32,
    /// What becomes of `backoff_next_run_at`.
    pub wait: BackoffChange,
    /// Tasks do not start.
    pub paused: bool,
    /// Why the head failed last, code and text; `None` keeps what is there, and a cleared backoff clears it.
    pub error: Option<(String, String)>,
}

/// What becomes of `backoff_next_run_at`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackoffChange {
    /// As it is.
    Keep,
    /// None.
    Clear,
    /// So many ms from now, by the database's clock.
    Start(i64),
}

/// A task marked failed.
#[derive(Debug, Clone, PartialEq)]
pub struct FailedTask {
    /// Whose.
    pub agent: AgentId,
    /// Which.
    pub position: Position,
    /// A code for machines: that of a failure, or `dropped` or `stopped`.
    pub code: String,
    /// For people.
    pub text: String,
}

/// A turn that failed, with its input: nothing of it is in the history, and it can be retried.
#[derive(Debug, Clone, PartialEq)]
pub struct FailedTurn {
    /// The input. Its `run` is the one that failed.
    pub opened: TurnOpened,
    /// A code for machines.
    pub code: String,
    /// For people.
    pub text: String,
    /// Whether trying again may help.
    pub is_retryable: bool,
    /// The text of the answer as far as it had come; empty when nothing had.
    pub partial: String,
}

/// One finished turn: its messages are written together with the rest or not at all.
#[derive(Debug, Clone, PartialEq)]
pub struct TurnWrite {
    /// The turn.
    pub turn: TurnId,
    /// Input, steps, answer, in the order of their positions; empty when nothing enters the history.
    pub messages: Vec<Message>,
    /// Of a task: index in [`crate::Commit::agents`] of the write that moves the head. Where that is refused, nothing of
    /// this turn is written.
    pub agent: Option<usize>,
    /// A failed turn of this id goes: it has been retried with success.
    pub ends_failed: Option<ThreadId>,
    /// What is written instead when the store refuses the messages themselves.
    pub on_refusal: Fallback,
}

/// See [`TurnWrite::on_refusal`]. `code` and `text` are filled in when they are known.
#[derive(Debug, Clone, PartialEq)]
pub enum Fallback {
    /// The turn failed.
    Turn(Box<FailedTurn>),
    /// The task is marked failed.
    Task(FailedTask),
    /// Nothing is left of a follow-up's turn but the end of its timer.
    FollowUp(TimerId),
}

/// One call of a model that a turn has made, as the ledger keeps it. The answer and the number are its key, so that a repeat is harmless.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageWrite {
    /// The turn.
    pub turn: TurnId,
    /// The answer for which the call was made; of a turn that failed or was taken back, what would have been it.
    pub answer: MessageKey,
    /// Number of the call among those of the answer, from 0.
    pub number: u16,
    /// Whose workflow made it.
    pub agent: AgentId,
    /// For what.
    pub kind: UsageKind,
    /// What it has used.
    pub call: ModelCall,
    /// The answer did not come to its end, so that there may have been more calls than are known.
    pub is_partial: bool,
    /// Why the answer ended; `None`: it failed, was taken back, or had ended before the call.
    pub finish_reason: Option<FinishReason>,
}

impl UsageWrite {
    /// Numbers of calls from here on are of attempts that began after the end of their run.
    pub const FIRST_LATE: u16 = 1_024;
    /// The highest number that a column of two bytes holds.
    pub const LAST_LATE: u16 = i16::MAX as u16;
}

/// A task that enters the queue.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskWrite {
    /// Its entry in the stream.
    pub seq: Seq,
    /// The task with its place.
    pub queued: QueuedTask,
    /// [`Task::digest`].
    pub digest: u64,
}

/// What is done to a stored task.
#[derive(Debug, Clone, PartialEq)]
pub enum TaskChange {
    /// The failed task gets the new position, and its mark goes.
    Requeue {
        /// Whose.
        agent: AgentId,
        /// Where it stood.
        from: Position,
        /// Where it stands now.
        to: Position,
    },
    /// A failed task goes.
    Remove {
        /// Whose.
        agent: AgentId,
        /// Which.
        position: Position,
    },
    /// Another payload. The digest stays: when it is sent again as it was, it is the same task.
    Edit {
        /// Whose.
        agent: AgentId,
        /// Which.
        position: Position,
        /// What is changed.
        edit: TaskEdit,
    },
}

/// A control command in the audit.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditWrite {
    /// The command's id; unique.
    pub id: CommandId,
    /// The agent or thread that it is about.
    pub subject: AgentId,
    /// The operator or client.
    pub actor: String,
    /// [`model::ControlKind::name`], or `retry_turn`.
    pub action: String,
    /// The task or turn.
    pub target: Option<String>,
    /// `None`: done. Else why it was rejected, for people.
    pub error: Option<String>,
}

/// An input that waits or runs for so long that it is saved, so that the checkpoint can pass it.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenTurn {
    /// The input; its run is the current one.
    pub opened: TurnOpened,
    /// Its entry in the stream: the order in which inputs wait.
    pub seq: Seq,
    /// How long ago it came, ms.
    pub age_ms: i64,
}

/// Something that is published after the commit, once: an entry of a batch of the outbox.
#[derive(Debug, Clone, PartialEq)]
pub enum Outgoing {
    /// A task for an agent, which may live in another partition.
    Task(Task),
    /// The next input of a batch that goes on, in the same thread.
    TurnOpened(Box<TurnOpened>),
    /// A turn's end, for integrators, on `turns.<thread>`.
    TurnEnded(TurnEnded),
    /// An agent is paused, which may live in another partition.
    Pause(Pause),
}

/// A turn with a person failed because its agent's credentials are refused: to try again is of no use before an operator has replaced them.
#[derive(Debug, Clone, PartialEq)]
pub struct Pause {
    /// The turn that failed.
    pub turn: TurnId,
    /// From the turn and its run, so that it is done once.
    pub id: CommandId,
    /// Whom it concerns.
    pub agent: AgentId,
}

impl Pause {
    /// Who pauses, in the audit.
    pub const ACTOR: &str = "antiphon";

    /// As it travels in the stream.
    pub fn control(&self) -> Control {
        Control {
            id: self.id.clone(),
            actor: Self::ACTOR.into(),
            subject: self.agent.clone(),
            kind: ControlKind::Pause,
        }
    }
}

/// A turn's end as integrators learn of it.
#[derive(Debug, Clone, PartialEq)]
pub struct TurnEnded {
    /// The turn.
    pub turn: TurnId,
    /// Its thread.
    pub thread: ThreadId,
    /// Its agent.
    pub agent: AgentId,
    /// `completed`, `failed` or `stopped`.
    pub status: TurnStatus,
    /// The task, if it was one.
    pub task: Option<TaskId>,
    /// The answer's message id, when there is one in the history.
    pub message: Option<model::MessageId>,
    /// The batch, likewise.
    pub batch: Option<Position>,
    /// Why it failed.
    pub code: Option<String>,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnStatus {
    /// Its messages are in the history.
    Completed,
    /// Nothing is.
    Failed,
    /// Its messages are, as far as they came.
    Stopped,
}

impl TurnStatus {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
        }
    }
}

/// What one commit sends: one row of the outbox, gone when all of it has been published.
#[derive(Debug, Clone, PartialEq)]
pub struct OutboxBatch {
    /// Its id: unique in the partition, increasing.
    pub id: Position,
    /// What is sent.
    pub outgoing: Vec<Outgoing>,
}

/// An agent as a new owner finds it: one with pending tasks, in backoff, or paused.
#[derive(Debug, Clone, PartialEq)]
pub struct SavedAgent {
    /// Which.
    pub agent: AgentId,
    /// See [`AgentWrite::head`].
    pub head: Position,
    /// See [`AgentWrite::run`].
    pub run: u32,
    /// See [`AgentWrite::failures`].
    pub failures: u32,
    /// How long it has to wait still, ms by the database's clock; `None`: it does not.
    pub wait_ms: Option<i64>,
    /// Tasks do not start.
    pub paused: bool,
    /// The first tasks after the head that are not marked failed, at most [`crate::PartitionLimits::queue_window`].
    pub tasks: Vec<QueuedTask>,
    /// There are more.
    pub more: bool,
}

/// A status query of a gateway; answered with [`crate::Action::Status`].
#[derive(Debug, Clone, PartialEq)]
pub struct StatusQuery {
    /// Comes back with the answer.
    pub token: u64,
    /// What it is about.
    pub target: QueryTarget,
}

/// The answer to a [`StatusQuery`].
#[derive(Debug, Clone, PartialEq)]
pub struct StatusReply {
    /// The token of the query.
    pub token: u64,
    /// What is known.
    pub status: QueueStatus,
}

/// A command that was refused becomes a dead letter with its raw payload.
#[derive(Debug, Clone, PartialEq)]
pub struct RawPayload {
    /// The subject that it came on.
    pub subject: String,
    /// Its payload.
    pub payload: Bytes,
}
