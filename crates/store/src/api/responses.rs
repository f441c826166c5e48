//! Parameters of requests of the Responses protocol. They are stored separately from the turn,
//! because no other protocol uses them.

use model::{Metadata, ThreadId, Timestamp, TurnId};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::{json, thread_bucket, timestamp};
use crate::error::StoreError;
use crate::row::{metadata, object};
use crate::store::Store;

/// The parameters of a request that its response repeats.
#[derive(Debug, Clone, PartialEq)]
pub struct AskedResponse {
    /// The model name given by the client.
    pub model: String,
    /// True if the client asked for a response in the background, without waiting on the
    /// connection.
    pub background: bool,
    /// The response that the client named as the previous one.
    pub previous_response_id: Option<String>,
    /// Metadata of the request.
    pub metadata: Metadata,
    /// Options for the model, keyed by the fields of the request.
    pub options: Metadata,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ResponseRow {
    /// The parameters of the first request with the turn's id.
    pub asked: AskedResponse,
    /// Time of the first request by the database clock.
    pub created_at: Timestamp,
}

impl Store {
    /// Stores the parameters of a turn and returns the stored ones. A repeated request changes
    /// nothing and gets the parameters of the first one.
    pub async fn put_response(
        &self,
        thread: &ThreadId,
        turn: &TurnId,
        asked: &AskedResponse,
    ) -> Result<ResponseRow, StoreError> {
        // DO UPDATE, not DO NOTHING: of two concurrent requests the later one must see the row of
        // the first.
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

    /// The parameters of a turn. `None` when the turn was not requested by this protocol, or so
    /// long ago that its parameters were deleted.
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

    /// True if a turn of any thread was requested by this protocol.
    pub async fn is_response(&self, turn: &TurnId) -> Result<bool, StoreError> {
        // The index narrows the search to the bucket, which has the responses of the last thirty
        // days.
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
