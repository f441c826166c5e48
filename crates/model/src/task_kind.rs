//! Kinds of tasks.

/// Kind of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TaskKind {
    /// Work that a client sent.
    #[default]
    Task,
    /// Background work that follows a turn with a person.
    WorkRequest,
    /// Extraction of facts from a turn with a person.
    Memory,
    /// Summary of a part of a thread that leaves its contexts.
    Compaction,
}

impl TaskKind {
    /// All kinds, in the order of their numbers in protobuf.
    pub const ALL: [Self; 4] = [Self::Task, Self::WorkRequest, Self::Memory, Self::Compaction];

    /// Kinds that follow turns. Each has queues of its own (`AgentId::queue_of`).
    pub const BACKGROUND: [Self; 3] = [Self::WorkRequest, Self::Memory, Self::Compaction];

    /// Name in JSON and Postgres.
    pub fn name(self) -> &'static str {
        match self {
            Self::Task => "task",
            Self::WorkRequest => "work_request",
            Self::Memory => "memory",
            Self::Compaction => "compaction",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}
