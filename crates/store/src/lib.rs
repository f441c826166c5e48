//! All access to Postgres: every query and transaction of Antiphon; embeds `migrations/`.
//!
//! [`Store`] reads, and maintains leases, over a small pool. A [`CommitWriter`] holds one
//! connection and applies [`partition::Commit`]s. [`migrate()`] lays out a database.
//!
//! Invariants: an operation writes with one statement, so it applies whole or not at all. Some
//! operations read first, and try again when another change came in between. Only `row_security`
//! opens a transaction around another statement, and no transaction is visible outside this crate.
//! Database work runs in its own tasks, so that dropping a future never cancels it half-way. Only
//! the database clock decides about leases and ages.

mod api;
mod budgets;
mod cleanup;
mod command_verdicts;
mod commit;
mod compactions;
mod config;
mod connect;
mod context;
mod dead_letters;
mod durability;
mod erase;
mod erased_tenants;
mod erasures;
mod error;
mod export_import;
mod fact_vectors;
mod facts;
mod feedback;
mod history;
mod incidents;
mod leases;
mod lookup;
mod migrate;
mod outbox;
mod partition_change;
mod partitions;
mod reasoning_sessions;
mod repair;
mod replica;
mod retention;
mod row;
mod row_security;
mod statement;
mod store;
mod takeover;
mod thread_imports;
mod thread_version;
mod timers;
mod turn_limits;
mod unreadable_tasks;

pub use api::{
    AgentAdmission, AgentError, AgentRow, AgentSettings, AgentWaiting, AskedResponse, AuditRow,
    COUNTED_TASKS, EndContent, EndRow, EndRows, FailedTurnRow, FollowUpRow, KeyClaim, KeyRow, ListCursor,
    ListedThread, Listing, MAX_LISTED_USER, MOST_DELAYED_TASKS, MOST_SCHEDULES, NamedThread, NewThread,
    PatchOutcome, PositionLookup, PutAgent, PutAgentOutcome, PutOutcome, PutSchedule, ResponseRow,
    RunFailure, ScheduleRow, SigningKey, StoredSchedule, StoredTurnTimes, TaskFailure, TaskRow, TaskStatus,
    ThreadFilter, ThreadListPage, ThreadPatch, ThreadRow, TimerStatus, TurnState, UsageGroup, UsageSum,
    key_subject,
};
pub use budgets::{Budget, BudgetRow, BudgetScope, MOST_BUDGETS, OverBudget, budget_subject};
pub use cleanup::{CleanupKind, CleanupLimit};
pub use command_verdicts::QueueRead;
pub use commit::{CommitError, CommitWriter, Committed, MOST_OF_SCOPE, StreamGap, Submission};
pub use compactions::{PendingCompaction, Written};
pub use config::{StoreConfig, TenantScope};
pub use context::{ContextWanted, Gate, StartContext, StoredCompaction};
pub use dead_letters::{DeadLetterCursor, DeadLetterId, ReplayClaim, StoredDeadLetter};
pub use erase::{Erased, ErasedOwner, ErasedRows};
pub use erased_tenants::{ErasedTenant, ReopenedTenant, tenant_subject};
pub use erasures::{
    AttemptEnd, ClaimedErasure, ErasedCounts, ErasedData, ErasedKind, ErasureHold, ErasureId, ErasureRow,
    ErasureState, MAX_OPEN_ERASURES, NewErasure,
};
pub use error::{Disposition, StoreError};
pub use export_import::IndexedMessage;
pub use fact_vectors::{FactToEmbed, VectorTables, lay_out_vectors};
pub use facts::{
    AnswerFact, FactCommand, FactFilter, FactOutcome, FactRow, FactScope, FoundFact, NewFact, NotedFact,
};
pub use feedback::{
    Feedback, FeedbackCursor, FeedbackFilter, FeedbackOutcome, FeedbackRow, ImportedFeedback, MAX_LABEL,
    MAX_USER, check_score, check_text,
};
pub use history::{Range, StoredMessage};
pub use incidents::IncidentRow;
pub use leases::{Applied, Grant, LiveWorkers, Reclaimed, Renewed};
pub use migrate::{Layout, MigrateError, migrate};
pub use partition::{DueSchedule, DueTimer, TaskDelay, TimerState};
pub use partition_change::{BeginChange, ChangeLock, PartitionChange, StreamEnd, StreamLimits};
pub use partitions::PartitionStatus;
pub use reasoning_sessions::{
    Appended, CreatedReasoning, DiscardedCursor, DiscardedLayer, DiscardedMessage, DiscardedPage,
    EarlierCompression, EarlierReturn, InvalidDiscardedCursor, ReadReasoningMessage, ReasoningRows,
    ReasoningThread, RequestId, Restorable, UndoneReasoning,
};
pub use repair::{NumberFault, RowRepair};
pub use replica::{Replica, ReplicaState};
pub use retention::RetainedThread;
pub use store::Store;
pub use thread_imports::{
    ImportAct, ImportOutcome, ImportRefusal, ImportedRows, RefusalReason, RefusedItem, ThreadImport,
};
pub use thread_version::ThreadVersion;
pub use turn_limits::{HeldTurns, LimitedTurn};
