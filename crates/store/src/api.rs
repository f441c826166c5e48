//! Reads and writes of the HTTP API: threads, turns, agents, tasks, the audit log.
//!
//! Gateways write only a few things: new threads, settings and schedules of agents, facts, budgets,
//! delayed tasks, idempotency keys, and the parameters of responses. All other changes go through
//! the partition's stream and are written by the owner of the partition.

mod agents;
mod audit;
mod keys;
mod listing;
mod messages;
mod responses;
mod schedules;
mod tasks;
mod thread_list;
mod threads;
mod timers;
mod turns;
mod usage;

pub use agents::{
    AgentAdmission, AgentError, AgentRow, AgentSettings, AgentWaiting, COUNTED_TASKS, PutAgent,
    PutAgentOutcome,
};
pub use audit::AuditRow;
pub(crate) use keys::TURN_TOKENS_OVERLAP;
pub use keys::{KeyRow, SigningKey, key_subject};
pub use listing::Listing;
pub use messages::{EndContent, EndRow, EndRows};
pub use responses::{AskedResponse, ResponseRow};
pub use schedules::{MOST_SCHEDULES, PutOutcome, PutSchedule, ScheduleRow, StoredSchedule};
pub use tasks::{TaskFailure, TaskRow, TaskStatus};
pub use thread_list::{
    ListCursor, ListedThread, MAX_LISTED_USER, PatchOutcome, ThreadFilter, ThreadListPage, ThreadPatch,
};
pub use threads::{NamedThread, NewThread, PositionLookup, ThreadRow};
pub use timers::{FollowUpRow, MOST_DELAYED_TASKS, TimerStatus};
pub use turns::{FailedTurnRow, KeyClaim, RunFailure, StoredTurnTimes, TurnState};
pub(crate) use usage::bind_prices;
pub use usage::{UsageGroup, UsageSum};

use model::{AgentId, Bucket, Metadata, ThreadId, Timestamp};
use serde_json::{Map, Value};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::StoreError;

fn thread_bucket(thread: &ThreadId) -> i16 {
    thread.bucket().get() as i16
}

fn agent_bucket(agent: &AgentId) -> i16 {
    Bucket::of_key(agent.as_str()).get() as i16
}

pub(crate) fn timestamp(row: &PgRow, column: &str) -> Result<Timestamp, StoreError> {
    Ok(Timestamp(row.try_get(column)?))
}

fn timestamp_opt(row: &PgRow, column: &str) -> Result<Option<Timestamp>, StoreError> {
    Ok(row.try_get::<Option<i64>, _>(column)?.map(Timestamp))
}

/// Reads a JSON object; any other value in the column was not written by Antiphon.
fn object(row: &PgRow, column: &str) -> Result<Map<String, Value>, StoreError> {
    match row.try_get(column)? {
        Value::Object(map) => Ok(map),
        other => Err(StoreError::Row(format!("column {column}: {other} is no object"))),
    }
}

fn json(metadata: &Metadata) -> Value {
    metadata.to_value()
}
