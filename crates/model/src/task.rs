//! Tasks, and what operators and clients do to agents, tasks and turns.

use crate::{ActId, AgentId, Bucket, Metadata, Position, TaskId, TurnId};

/// What a task is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TaskKind {
    /// Work that somebody sent.
    #[default]
    Task,
    /// The background work that follows a turn with a person.
    WorkRequest,
    /// Extraction of facts from a turn with a person.
    Memory,
    /// The summary of a part of a thread that leaves its contexts.
    Compaction,
}

impl TaskKind {
    /// All kinds, in the order of their numbers in protobuf.
    pub const ALL: [Self; 4] = [Self::Task, Self::WorkRequest, Self::Memory, Self::Compaction];

    /// The name in JSON and Postgres.
    pub fn name(self) -> &'static str {
        match self {
            Self::Task => "task",
            Self::WorkRequest => "work_request",
            Self::Memory => "memory",
            Self::Compaction => "compaction",
        }
    }

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// A unit of work of an agent, as it was sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Whose.
    pub agent: AgentId,
    /// Its id: the same id again is the same task.
    pub id: TaskId,
    /// What it is about.
    pub kind: TaskKind,
    /// The text, which becomes the turn's input.
    pub content: String,
    /// Free-form; becomes the input's metadata.
    pub metadata: Metadata,
}

impl Task {
    /// The bucket of its agent.
    pub fn bucket(&self) -> Bucket {
        Bucket::of_key(self.agent.as_str())
    }

    /// Tells payloads of the same id apart.
    pub fn digest(&self) -> u64 {
        let json = match self.metadata.as_map() {
            Some(map) => serde_json::to_vec(map).unwrap_or_default(),
            None => Vec::new(),
        };
        let seed = xxhash_rust::xxh3::xxh3_64_with_seed(&json, self.kind as u64);
        let seed = xxhash_rust::xxh3::xxh3_64_with_seed(self.agent.as_str().as_bytes(), seed);
        xxhash_rust::xxh3::xxh3_64_with_seed(self.content.as_bytes(), seed)
    }

    /// Bytes that it counts against budgets.
    pub fn size(&self) -> usize {
        self.content.len() + self.metadata.size() + 192
    }
}

/// A task in its agent's queue.
#[derive(Debug, Clone, PartialEq)]
pub struct QueuedTask {
    /// Its place: the queue is in the order of positions.
    pub position: Position,
    /// The task.
    pub task: Task,
}

/// Something that somebody does to an agent, a task or a turn. It travels in the stream, so it happens in an order and
/// once, and it is audited.
#[derive(Debug, Clone, PartialEq)]
pub struct Act {
    /// Its id: the same id again does nothing.
    pub id: ActId,
    /// Who does it.
    pub actor: Box<str>,
    /// Whom it concerns; for an act on a turn of a thread, the thread's id.
    pub subject: AgentId,
    /// What.
    pub what: ActKind,
}

/// What is done.
#[derive(Debug, Clone, PartialEq)]
pub enum ActKind {
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
        /// Its new text.
        content: String,
        /// Its new metadata.
        metadata: Metadata,
    },
    /// A failed turn goes.
    DropFailedTurn(TurnId),
}

impl ActKind {
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
        }
    }

    /// The task or turn that it is about, if it is about one.
    pub fn target(&self) -> Option<&str> {
        match self {
            Self::Pause | Self::Resume | Self::ClearBackoff => None,
            Self::StopTurn(turn) | Self::DropFailedTurn(turn) => Some(turn.as_str()),
            Self::RetryTask(task) | Self::DropTask(task) | Self::EditTask { task, .. } => Some(task.as_str()),
        }
    }
}
