//! Inputs given up on, for operators.

use bytes::Bytes;
use model::{PartitionId, Seq, Timestamp};
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::leases::partition_id;
use crate::row::unsigned;
use crate::{Store, StoreError};

/// A dead letter as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredDeadLetter {
    /// The bucket: of the thread, or the partition's number for an entry.
    pub bucket: u16,
    /// `entry` or `message`.
    pub kind: String,
    /// `<incarnation>:<sequence>` of an entry, `<thread>/<message>` of a message.
    pub key: String,
    /// The partition.
    pub partition: PartitionId,
    /// The entry, or the first entry of the message.
    pub seq: Seq,
    /// The subject of an entry.
    pub subject: Option<String>,
    /// The thread of a message.
    pub thread: Option<String>,
    /// The message.
    pub message: Option<String>,
    /// The attempt of a message.
    pub attempt: Option<u32>,
    /// The code of the reason.
    pub reason: String,
    /// `text`, and what else is known.
    pub detail: Value,
    /// The payload as it came, or the message's chunks as a JSON array.
    pub raw: Bytes,
    /// When it was written, by the database's clock.
    pub created_at: Timestamp,
}

impl Store {
    /// The newest dead letters, newest first.
    pub async fn list_dead_letters(&self, limit: u32) -> Result<Vec<StoredDeadLetter>, StoreError> {
        let statement = sqlx::query(
            "SELECT *, (extract(epoch FROM created_at) * 1000)::bigint AS created_ms
             FROM dead_letters ORDER BY created_at DESC LIMIT $1",
        );
        self.rows(statement.bind(i64::from(limit))).await?.iter().map(dead_letter).collect()
    }
}

fn dead_letter(row: &PgRow) -> Result<StoredDeadLetter, StoreError> {
    let attempt = row.try_get::<Option<i64>, _>("attempt")?;
    Ok(StoredDeadLetter {
        bucket: row.try_get::<i16, _>("bucket")?.unsigned_abs(),
        kind: row.try_get("kind")?,
        key: row.try_get("key")?,
        partition: partition_id(row)?,
        seq: Seq(unsigned(row, "stream_seq")?),
        subject: row.try_get("subject")?,
        thread: row.try_get("thread_id")?,
        message: row.try_get("message_id")?,
        attempt: attempt.and_then(|attempt| u32::try_from(attempt).ok()),
        reason: row.try_get("reason")?,
        detail: row.try_get("detail")?,
        raw: row.try_get::<Vec<u8>, _>("raw")?.into(),
        created_at: Timestamp(row.try_get("created_ms")?),
    })
}
