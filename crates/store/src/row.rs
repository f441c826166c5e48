//! Reads types of the model from rows.

use std::time::Duration;

use model::{
    AgentId, BatchType, IdRange, MessageId, MessageKey, Metadata, PartitionId, Position, QueuedTask, Role,
    Task, TaskId, TaskKind, TaskOrigin, ThreadId, TurnId, TurnOpened, TurnOptions, TurnOrigin,
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;
use sqlx::postgres::types::PgInterval;

use crate::error::StoreError;

/// The message named by the columns `thread_id` and `message_id`.
pub(crate) fn key(row: &PgRow) -> Result<MessageKey, StoreError> {
    let thread = parse_column(row, "thread_id", ThreadId::parse)?;
    Ok(MessageKey { thread, message: message_id(row)? })
}

pub(crate) fn message_id(row: &PgRow) -> Result<MessageId, StoreError> {
    parse_column(row, "message_id", MessageId::parse)
}

pub(crate) fn partition_id(row: &PgRow) -> Result<PartitionId, StoreError> {
    let id: i16 = row.try_get("partition_id")?;
    Ok(PartitionId(id.unsigned_abs()))
}

pub(crate) fn role(row: &PgRow) -> Result<Role, StoreError> {
    parse_column(row, "role", |name| Role::from_name(name).ok_or("no such role"))
}

pub(crate) fn batch_type(row: &PgRow) -> Result<BatchType, StoreError> {
    parse_column(row, "batch_type", |name| BatchType::from_name(name).ok_or("no such batch type"))
}

/// A task of `agent` from the columns of `tasks`.
pub(crate) fn queued(row: &PgRow, agent: &AgentId) -> Result<QueuedTask, StoreError> {
    let id = parse_column(row, "task_id", TaskId::parse)?;
    let kind = parse_column(row, "kind", |name| TaskKind::from_name(name).ok_or("no such kind of task"))?;
    let (origin, metadata) = TaskOrigin::split(origin(row)?, (agent, &id, kind), metadata(row)?);
    let task = Task { agent: agent.clone(), id, kind, content: row.try_get("content")?, origin, metadata };
    Ok(QueuedTask { position: Position::from_stored(row.try_get("position")?), task })
}

/// An input from the columns that `spilled_turns` and `failed_turns` share. The actor is missing,
/// because only the former has one.
pub(crate) fn opened(row: &PgRow) -> Result<TurnOpened, StoreError> {
    let (origin, metadata) = TurnOrigin::split(origin(row)?, metadata(row)?);
    Ok(TurnOpened {
        turn: parse_column(row, "turn_id", TurnId::parse)?,
        thread: parse_column(row, "thread_id", ThreadId::parse)?,
        agent: parse_column(row, "agent_id", AgentId::parse)?,
        run: row.try_get::<i32, _>("run")?.unsigned_abs(),
        content: row.try_get("content")?,
        origin,
        metadata,
        actor: None,
        options: options(row)?,
    })
}

/// The column `origin`. `None` in rows that a sender wrote, and in rows of earlier builds, whose
/// metadata show the origin.
fn origin<T: DeserializeOwned>(row: &PgRow) -> Result<Option<T>, StoreError> {
    let Some(value) = row.try_get::<Option<Value>, _>("origin")? else { return Ok(None) };
    serde_json::from_value(value).map(Some).map_err(|error| column_error("origin", &error))
}

/// The column `origin` of `spilled_turns` and `failed_turns`; `None` for a person's input.
pub(crate) fn stored_turn_origin(origin: &TurnOrigin) -> Option<String> {
    match origin {
        TurnOrigin::Person { .. } => None,
        // Encoding it cannot fail.
        _ => serde_json::to_string(origin).ok(),
    }
}

/// The column `origin` of `tasks`; `None` for a task that was sent.
pub(crate) fn stored_task_origin(origin: &TaskOrigin) -> Option<String> {
    match origin {
        TaskOrigin::Sent { .. } => None,
        // Encoding it cannot fail.
        _ => serde_json::to_string(origin).ok(),
    }
}

fn options(row: &PgRow) -> Result<TurnOptions, StoreError> {
    serde_json::from_value(row.try_get("options")?).map_err(|error| column_error("options", &error))
}

pub(crate) fn metadata(row: &PgRow) -> Result<Metadata, StoreError> {
    object(row, "metadata")
}

/// The JSON object in `column`.
pub(crate) fn object(row: &PgRow, column: &str) -> Result<Metadata, StoreError> {
    match row.try_get(column)? {
        Value::Object(map) => Metadata::new(map).map_err(|error| column_error(column, &error)),
        other => Err(column_error(column, &other)),
    }
}

/// Reads a number that was stored from an unsigned one.
pub(crate) fn unsigned<T: TryFrom<i64, Error: std::fmt::Display>>(
    row: &PgRow,
    column: &str,
) -> Result<T, StoreError> {
    T::try_from(row.try_get(column)?).map_err(|error| column_error(column, &error))
}

/// Parses the text of `column`.
pub(crate) fn parse_column<T, E: std::fmt::Display>(
    row: &PgRow,
    column: &str,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, StoreError> {
    let text: &str = row.try_get(column)?;
    parse(text).map_err(|error| column_error(column, &error))
}

pub(crate) fn column_error(column: &str, error: &dyn std::fmt::Display) -> StoreError {
    StoreError::Row(format!("column {column}: {error}"))
}

/// The buckets, threads and messages of `keys` as columns.
pub(crate) fn columns(keys: &[MessageKey]) -> (Vec<i16>, Vec<&str>, Vec<&str>) {
    let bucket = |key: &MessageKey| key.thread.bucket().get() as i16;
    (
        keys.iter().map(bucket).collect(),
        keys.iter().map(|key| key.thread.as_str()).collect(),
        keys.iter().map(|key| key.message.as_str()).collect(),
    )
}

/// The column `count` of the only row.
pub(crate) fn count(rows: &[PgRow]) -> Result<u64, StoreError> {
    let count: Option<i64> = rows.first().map(|row| row.try_get("count")).transpose()?;
    Ok(count.unwrap_or(0).unsigned_abs())
}

/// A duration that Postgres can add to a timestamp.
pub(crate) fn interval(duration: Duration) -> PgInterval {
    PgInterval { months: 0, days: 0, microseconds: i64::try_from(duration.as_micros()).unwrap_or(i64::MAX) }
}

/// Ranges of chunk ids, as `[{"first": …, "last": …}, …]`.
pub(crate) fn missing(ranges: &Value) -> Vec<IdRange> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let range = |range: &Value| Some(IdRange { first: id(&range["first"])?, last: id(&range["last"])? });
    ranges.as_array().map(|all| all.iter().filter_map(range).collect()).unwrap_or_default()
}
