//! Postgres: every query and transaction of Antiphon; embeds `migrations/`.
//!
//! [`Store`] reads, and keeps leases, over a small pool. A [`Writer`] holds one connection and applies
//! [`partition::Commit`]s. [`migrate`] lays out a database.
//!
//! Invariants: one operation is one function and one statement; nothing here begins a transaction, and none leaves this
//! crate. Database work runs in tasks of its own, so that a dropped future never cancels it half-way. Only the
//! database's clock decides about leases and ages.

mod api;
mod commit;
mod compactions;
mod config;
mod connect;
mod context;
mod dead_letters;
mod erase;
mod error;
mod history;
mod incidents;
mod kept;
mod leases;
mod look_up;
mod mend;
mod migrate;
mod orders;
mod outbox;
mod partitions;
mod reasoning_sessions;
mod retain;
mod row;
mod store;
mod takeover;
mod travel;
mod walls;

pub use api::{
    AgentError, AgentRow, AgentSettings, AgentStanding, AgentWaiting, AskedResponse, AuditRow, COUNTED_TASKS,
    EndRow, FailedTurnRow, KeyClaim, KeyRow, NewThread, Placed, PutAgent, ResponseRow, RunFailure, Said,
    TaskFailure, TaskRow, TaskStatus, ThreadRow, TurnState,
};
pub use commit::{CommitError, Committed, Gone, Submission, Writer};
pub use compactions::{PendingCompaction, Written};
pub use config::{Sees, StoreConfig};
pub use context::{ContextWanted, Gate, StartContext, StoredCompaction};
pub use dead_letters::{DeadLetterCursor, DeadLetterId, ReplayClaim, StoredDeadLetter};
pub use erase::{Erased, ErasedOwner, ErasedRows};
pub use error::{Disposition, StoreError};
pub use history::{Range, StoredMessage};
pub use incidents::IncidentRow;
pub use kept::{Kept, KeptBound};
pub use leases::{Applied, Fleet, Grant, Reclaimed, Renewed};
pub use look_up::StoredOutcome;
pub use mend::Mend;
pub use migrate::{Layout, MigrateError, migrate};
pub use partitions::PartitionStatus;
pub use reasoning_sessions::{
    Appended, CreatedReasoning, DiscardedLayer, EarlierCompression, ReasoningThread, RequestId, Restorable,
};
pub use retain::KeptThread;
pub use store::Store;
pub use travel::{NotTaken, Place, Taken, TakenCompaction};
