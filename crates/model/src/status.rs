//! The status of a thread's turns and of an agent's queue, as the owner of their partition reports it.

use crate::{AgentId, IdRange, MessageId, Seq, TaskId, ThreadId, TurnId};

/// What a status query is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueryTarget {
    /// An agent's queue, with the turns of its thread.
    Agent(AgentId),
    /// A thread's turns.
    Thread(ThreadId),
    /// One turn.
    Turn(TurnId),
}

/// What the owner of a partition knows of a [`QueryTarget`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueStatus {
    /// The turn that is under way, if there is one.
    pub active: Option<ActiveTurn>,
    /// Inputs that wait for the thread, in their order.
    pub waiting: Vec<WaitingTurn>,
    /// Why the agent's head does not start; `None` when there is no head or it is under way.
    pub reason: Option<WaitReason>,
    /// The agent is paused.
    pub paused: bool,
    /// The head of the queue.
    pub head: Option<TaskId>,
    /// Every command of the stream up to here is applied.
    pub applied_seq: Seq,
    /// Messages of the thread that have begun and not ended, the oldest first; at most 64.
    pub open: Vec<OpenMessageStatus>,
}

/// A message that has begun and not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenMessageStatus {
    /// Which.
    pub message: MessageId,
    /// The chunk that is released next.
    pub expected: u32,
    /// How many chunks have come.
    pub received: u32,
    /// How many of them were released.
    pub released: u32,
    /// Chunks that are missing below the highest that has come; at most 64 ranges.
    pub missing: Vec<IdRange>,
    /// While a chunk is missing: time left until the gap times out, ms.
    pub gap_for_ms: Option<i64>,
}

/// An input that waits for its thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingTurn {
    /// Its turn.
    pub turn: TurnId,
    /// Why it does not begin.
    pub reason: WaitReason,
    /// For how long its owner has known of it, ms.
    pub age_ms: i64,
    /// A postponed background turn: foreground inputs overtake it.
    pub steps_aside: bool,
}

/// A turn under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActiveTurn {
    /// Which.
    pub turn: TurnId,
    /// Where.
    pub thread: ThreadId,
    /// Its run.
    pub run: u32,
    /// The answer's id.
    pub message: MessageId,
    /// What it waits for; `None` while chunks come.
    pub waits_for: Option<WaitReason>,
    /// For how long nothing has come, ms.
    pub idle_ms: i64,
}

/// Why something waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitReason {
    /// The agent is in backoff.
    Backoff {
        /// Time left, ms.
        for_ms: i64,
    },
    /// Something before it is under way.
    HeadOfLine,
    /// A chunk of the answer is missing.
    Gap,
    /// The agent is paused.
    Paused,
    /// No workflow has taken the request yet.
    NoWorkflow,
    /// The partition runs as many turns as it may.
    Capacity,
    /// A new owner is reading what happened before it.
    CatchingUp,
    /// A budget is spent; the time left is that of its period.
    Budget {
        /// Time left, ms.
        for_ms: i64,
    },
    /// A limit on turns of its workflow, model or tenant is reached, in number or rate; the time left is until the next try.
    Limited {
        /// Time left, ms.
        for_ms: i64,
    },
}

impl WaitReason {
    /// All of them, in the order of their numbers in protobuf, which begin with 1.
    pub const ALL: [Self; 9] = [
        Self::Backoff { for_ms: 0 },
        Self::HeadOfLine,
        Self::Gap,
        Self::Paused,
        Self::NoWorkflow,
        Self::Capacity,
        Self::CatchingUp,
        Self::Budget { for_ms: 0 },
        Self::Limited { for_ms: 0 },
    ];

    /// The code in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Backoff { .. } => "backoff",
            Self::HeadOfLine => "head_of_line",
            Self::Gap => "gap",
            Self::Paused => "paused",
            Self::NoWorkflow => "no_workflow",
            Self::Capacity => "capacity",
            Self::CatchingUp => "catching_up",
            Self::Budget { .. } => "budget",
            Self::Limited { .. } => "limited",
        }
    }

    /// For people.
    pub fn message(self) -> &'static str {
        match self {
            Self::Backoff { .. } => "the agent backs off after a failure",
            Self::HeadOfLine => "an earlier turn or task is not finished",
            Self::Gap => "a chunk of the answer is missing",
            Self::Paused => "the agent is paused",
            Self::NoWorkflow => "no workflow has taken the request yet",
            Self::Capacity => "the partition runs as many turns as it may",
            Self::CatchingUp => "a new owner is still reading the partition's stream",
            Self::Budget { .. } => "a budget of the agent, the user or the tenant is spent",
            Self::Limited { .. } => "a limit of the workflow, the model or the tenant is reached",
        }
    }

    /// Time left, ms, where that is known.
    pub fn for_ms(self) -> Option<i64> {
        match self {
            Self::Backoff { for_ms } | Self::Budget { for_ms } | Self::Limited { for_ms } => Some(for_ms),
            _ => None,
        }
    }

    /// The same reason with `for_ms` as the time left, if it is one with an end.
    #[must_use]
    pub fn lasting(self, for_ms: i64) -> Self {
        match self {
            Self::Backoff { .. } => Self::Backoff { for_ms },
            Self::Budget { .. } => Self::Budget { for_ms },
            Self::Limited { .. } => Self::Limited { for_ms },
            other => other,
        }
    }
}
