//! Export and import of sessions. Rows are exported as stored, without the bucket, which is derived
//! from the id.

use batches::export_import::ReasoningRow;
use model::{ReasoningSessionId, ThreadId};
use serde_json::{Map, Value};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::values::{bucket, stored};
use crate::error::StoreError;
use crate::row::{count, parse_column};
use crate::store::Store;

type JsonRow = Map<String, Value>;

/// A session without its messages, at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct ReasoningRows {
    /// The row of the session itself.
    pub session: JsonRow,
    /// The layers, ordered by id.
    pub layers: Vec<JsonRow>,
    /// The checkpoints, ordered by name.
    pub checkpoints: Vec<JsonRow>,
    /// The highest number of its messages.
    pub last_number: u64,
}

impl Store {
    /// The sessions with ids after this one that were created from any of these threads, or that
    /// belong to agents with these ids. Without threads, all sessions.
    pub async fn reasoning_ids(
        &self,
        threads: Option<&[ThreadId]>,
        after: Option<&ReasoningSessionId>,
        limit: u32,
    ) -> Result<Vec<ReasoningSessionId>, StoreError> {
        let statement = sqlx::query(
            "SELECT session_id FROM reasoning_sessions
             WHERE (bucket, session_id) > ($1, $2) AND ($3::text[] IS NULL OR source_threads && $3)
             ORDER BY bucket, session_id LIMIT $4",
        )
        .bind(after.map_or(-1, bucket))
        .bind(after.map_or("", ReasoningSessionId::as_str).to_owned())
        .bind(threads.map(|threads| threads.iter().map(|id| id.as_str().to_owned()).collect::<Vec<_>>()))
        .bind(i64::from(limit));
        let id = |row: &PgRow| parse_column(row, "session_id", ReasoningSessionId::parse);
        self.rows(statement).await?.iter().map(id).collect()
    }

    /// A session with its layers and checkpoints; `None` if it does not exist.
    pub async fn reasoning_rows(&self, id: &ReasoningSessionId) -> Result<Option<ReasoningRows>, StoreError> {
        let statement = sqlx::query(include_str!("export.sql")).bind(bucket(id)).bind(id.as_str().to_owned());
        let rows = self.rows(statement).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(Some(ReasoningRows {
            session: object(row.try_get("session")?)?,
            layers: objects(row.try_get("layers")?)?,
            checkpoints: objects(row.try_get("checkpoints")?)?,
            last_number: row.try_get::<i64, _>("last_number")?.unsigned_abs(),
        }))
    }

    /// Messages of a session with numbers after one and up to another: about 4 MiB, and at least
    /// one message. Stored messages never change.
    pub async fn reasoning_message_rows(
        &self,
        id: &ReasoningSessionId,
        after: u64,
        through: u64,
    ) -> Result<Vec<JsonRow>, StoreError> {
        let statement = sqlx::query(include_str!("export_messages.sql"))
            .bind(bucket(id))
            .bind(id.as_str().to_owned())
            .bind(stored(after))
            .bind(stored(through));
        self.rows(statement).await?.iter().map(|row| object(row.try_get("row")?)).collect()
    }

    /// Begins to import a session. Returns false and changes nothing if it exists. The session
    /// shows no messages until its import is finished. An interrupted import can be continued.
    pub async fn begin_reasoning_import(
        &self,
        id: &ReasoningSessionId,
        session: &JsonRow,
    ) -> Result<bool, StoreError> {
        let statement = sqlx::query(include_str!("import.sql"))
            .bind(bucket(id))
            .bind(id.as_str().to_owned())
            .bind(Value::Object(session.clone()));
        let rows = self.rows(statement).await?;
        rows.first().map_or(Ok(false), |row| Ok(row.try_get("goes_on")?))
    }

    /// Writes rows of a session whose import has begun. Existing rows do not change.
    pub async fn import_reasoning_rows(
        &self,
        id: &ReasoningSessionId,
        kind: ReasoningRow,
        rows: Vec<JsonRow>,
    ) -> Result<u64, StoreError> {
        let sql = match kind {
            ReasoningRow::Session => return Ok(0),
            ReasoningRow::Layer => include_str!("import_layers.sql"),
            ReasoningRow::Checkpoint => include_str!("import_checkpoints.sql"),
            ReasoningRow::Message => include_str!("import_messages.sql"),
        };
        let rows = Value::Array(rows.into_iter().map(Value::Object).collect());
        let statement = sqlx::query(sql).bind(bucket(id)).bind(id.as_str().to_owned()).bind(rows);
        count(&self.rows(statement).await?)
    }

    /// Finishes an import after all rows are written: the session becomes visible.
    pub async fn finish_reasoning_import(
        &self,
        id: &ReasoningSessionId,
        session: &JsonRow,
    ) -> Result<(), StoreError> {
        let statement = sqlx::query(include_str!("import_finish.sql"))
            .bind(bucket(id))
            .bind(id.as_str().to_owned())
            .bind(Value::Object(session.clone()));
        self.rows(statement).await?;
        self.seal_reasoning(id).await;
        Ok(())
    }
}

fn object(value: Value) -> Result<JsonRow, StoreError> {
    match value {
        Value::Object(row) => Ok(row),
        other => Err(StoreError::Row(format!("no object: {other}"))),
    }
}

fn objects(value: Value) -> Result<Vec<JsonRow>, StoreError> {
    match value {
        Value::Array(rows) => rows.into_iter().map(object).collect(),
        other => Err(StoreError::Row(format!("no array: {other}"))),
    }
}
