//! What clients of the Responses protocol asked for: kept beside the turn, for no other protocol knows of it.

use model::{Metadata, ThreadId, Timestamp, TurnId};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::{json, thread_bucket, timestamp};
use crate::error::StoreError;
use crate::row::{metadata, object};
use crate::store::Store;

/// What a client asked for with an input, as far as its response says it again.
#[derive(Debug, Clone, PartialEq)]
pub struct AskedResponse {
    /// What the client called the model.
    pub model: String,
    /// Whether it was asked for without a connection to wait on.
    pub background: bool,
    /// What the client named as the response before.
    pub previous_response_id: Option<String>,
    /// The request's metadata.
    pub metadata: Metadata,
    /// What it asked of the model, by the fields of the request.
    pub options: Metadata,
}

/// The same as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct ResponseRow {
    /// What was asked first under the turn's id.
    pub asked: AskedResponse,
    /// When, by the database's clock.
    pub created_at: Timestamp,
}

impl Store {
    /// Keeps what a turn was asked for with, and returns what was kept first: a request that is sent again changes nothing.
    pub async fn put_response(
        &self,
        thread: &ThreadId,
        turn: &TurnId,
        asked: &AskedResponse,
    ) -> Result<ResponseRow, StoreError> {
        // DO UPDATE and not DO NOTHING: of two that come together the later one must see the row of the first.
        let statement = sqlx::query(
            "INSERT INTO responses AS r (bucket, thread_id, turn_id, model, background, previous_response_id, metadata, options)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
             ON CONFLICT (bucket, thread_id, turn_id) DO UPDATE SET turn_id = r.turn_id
             RETURNING model, background, previous_response_id, metadata, options,
                       (extract(epoch FROM created_at) * 1000)::bigint AS created_ms",
        )
        .bind(thread_bucket(thread))
        .bind(thread.as_str())
        .bind(turn.to_string())
        .bind(asked.model.clone())
        .bind(asked.background)
        .bind(asked.previous_response_id.clone())
        .bind(json(&asked.metadata))
        .bind(json(&asked.options));
        let rows = self.rows(statement).await?;
        response(rows.first().ok_or_else(|| StoreError::Row("no row was returned".to_owned()))?)
    }

    /// What a turn was asked for with; `None` when it was not by that protocol, or too long ago.
    pub async fn response(
        &self,
        thread: &ThreadId,
        turn: &TurnId,
    ) -> Result<Option<ResponseRow>, StoreError> {
        let statement = sqlx::query(
            "SELECT model, background, previous_response_id, metadata, options,
                    (extract(epoch FROM created_at) * 1000)::bigint AS created_ms
             FROM responses WHERE bucket = $1 AND thread_id = $2 AND turn_id = $3",
        )
        .bind(thread_bucket(thread))
        .bind(thread.as_str())
        .bind(turn.to_string());
        self.rows(statement).await?.first().map(response).transpose()
    }

    /// Whether a turn was asked for by that protocol, in whatever thread.
    pub async fn is_response(&self, turn: &TurnId) -> Result<bool, StoreError> {
        // The index narrows it down to the bucket, whose responses are those of thirty days.
        let statement = sqlx::query("SELECT 1 FROM responses WHERE bucket = $1 AND turn_id = $2 LIMIT 1")
            .bind(turn.bucket().get() as i16)
            .bind(turn.to_string());
        Ok(!self.rows(statement).await?.is_empty())
    }
}

fn response(row: &PgRow) -> Result<ResponseRow, StoreError> {
    let asked = AskedResponse {
        model: row.try_get("model")?,
        background: row.try_get("background")?,
        previous_response_id: row.try_get("previous_response_id")?,
        metadata: metadata(row)?,
        options: object(row, "options")?,
    };
    Ok(ResponseRow { asked, created_at: timestamp(row, "created_ms")? })
}
