//! Sessions that apply to a thread: if a session has compressed batches of the thread, the contexts
//! of its next turns omit those batches.

use model::{Bucket, ReasoningSessionId, ThreadId};
use sqlx::Row;

use super::values::{bucket, number};
use crate::error::StoreError;
use crate::store::Store;

/// Maximum tries while others compact the same thread.
const APPLY_TRIES: u32 = 4;

impl Store {
    /// Sets the thread to which the session applies: one of those from which it was created.
    pub async fn set_reasoning_thread(
        &self,
        id: &ReasoningSessionId,
        thread: &ThreadId,
    ) -> Result<(), StoreError> {
        let statement = sqlx::query(
            "UPDATE reasoning_sessions SET applies_to = $3 WHERE bucket = $1 AND session_id = $2 AND source_threads @> ARRAY[$3]",
        )
        .bind(bucket(id))
        .bind(id.as_str().to_owned())
        .bind(thread.as_str().to_owned());
        self.rows(statement).await.map(drop)
    }

    /// Updates the contexts of the thread to which a session applies: batches that were compressed
    /// whole are replaced by their summaries. Call it after each change of the session. A
    /// repetition changes nothing. Returns the number of batches replaced.
    pub async fn apply_reasoning(
        &self,
        id: &ReasoningSessionId,
        thread: &ThreadId,
        actor: &str,
    ) -> Result<u64, StoreError> {
        for _ in 0..APPLY_TRIES {
            let statement = sqlx::query(include_str!("apply.sql"))
                .bind(bucket(id))
                .bind(id.as_str().to_owned())
                .bind(Bucket::of_key(thread.as_str()).get() as i16)
                .bind(thread.as_str().to_owned())
                .bind(actor.to_owned());
            let rows = self.rows(statement).await?;
            let Some(row) = rows.first() else { return Ok(0) };
            let batches = number(row.try_get("batches")?);
            let (is_stale, is_applied): (bool, bool) = (row.try_get("is_stale")?, row.try_get("is_applied")?);
            if !is_stale && is_applied {
                return Ok(batches);
            }
        }
        Err(StoreError::TimedOut)
    }
}
