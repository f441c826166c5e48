//! The tables as an outsider reads them.

pub mod turns;

use anyhow::Result;
use serde_json::Value;
use sqlx::PgPool;

use crate::from_row;

from_row! {
    /// A row of `messages`.
    #[derive(Debug, Clone)]
    pub struct MessageRow {
        pub thread_id: String,
        /// Unique within the thread.
        pub message_id: String,
        pub position: i64,
        /// The position of the previous message in the thread.
        pub parent_id: Option<i64>,
        /// Number within the thread.
        pub number: Option<i64>,
        /// The position of its batch's first message.
        pub batch_id: i64,
        /// Number within the batch.
        pub sequence_num: i32,
        pub role: String,
        pub content: String,
        pub metadata: Value,
        /// The attempt that produced it.
        pub attempt: i64,
    }
}

from_row! {
    /// A row of `dead_letters`.
    #[derive(Debug, Clone)]
    pub struct DeadLetterRow {
        /// `entry` or `message`.
        pub kind: String,
        /// The stream sequence of the entry, or of the message's first entry.
        pub stream_seq: i64,
        pub partition_id: i16,
        /// Set for an entry only.
        pub subject: Option<String>,
        /// Set for a message only.
        pub thread_id: Option<String>,
        /// Set for a message only.
        pub message_id: Option<String>,
        /// Set for a message only.
        pub attempt: Option<i64>,
        pub reason: String,
        /// The reason as text, and what was missing.
        pub detail: Value,
        /// The payload as received.
        pub raw: Vec<u8>,
    }
}

from_row! {
    /// The end of a message, as clients receive it.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct EndRow {
        pub thread_id: String,
        pub message_id: String,
        /// Position in the order in which the messages of its thread end.
        pub position: i64,
        /// Failure code; `None` for a persisted message.
        pub code: Option<String>,
    }
}

from_row! {
    /// The time at which a message was committed.
    #[derive(Debug, Clone)]
    pub struct CommitTime {
        pub thread_id: String,
        pub message_id: String,
        /// The attempt that was committed.
        pub attempt: i64,
        /// By the database's clock, ms since 1970.
        pub at_ms: i64,
    }
}

from_row! {
    /// A partition and its lease.
    #[derive(Debug, Clone)]
    pub struct PartitionRow {
        pub partition_id: i16,
        /// Rises with each grant.
        pub epoch: i64,
        /// The worker that holds the lease.
        pub owner: Option<String>,
        /// Whether the lease is valid, by the database's clock.
        pub leased: bool,
        /// Nothing up to this sequence is needed again.
        pub checkpoint: i64,
    }
}

/// All messages, by thread and position.
pub async fn messages(pool: &PgPool) -> Result<Vec<MessageRow>> {
    let rows = sqlx::query_as(
        "SELECT thread_id, message_id, position, parent_id, number::bigint AS number, batch_id, sequence_num, role, content, metadata, attempt
         FROM messages ORDER BY thread_id, position",
    );
    Ok(rows.fetch_all(pool).await?)
}

pub async fn commit_times(pool: &PgPool) -> Result<Vec<CommitTime>> {
    let rows = sqlx::query_as(
        "SELECT thread_id, message_id, attempt, ((position >> 22) + 1704067200000)::bigint AS at_ms FROM messages",
    );
    Ok(rows.fetch_all(pool).await?)
}

/// All dead letters, oldest first.
pub async fn dead_letters(pool: &PgPool) -> Result<Vec<DeadLetterRow>> {
    let rows = sqlx::query_as(
        "SELECT kind, stream_seq, partition_id, subject, thread_id, message_id, attempt, reason, detail, raw
         FROM dead_letters ORDER BY created_at, stream_seq",
    );
    Ok(rows.fetch_all(pool).await?)
}

/// The ends of all messages whose ends clients receive, by thread and position.
pub async fn ends(pool: &PgPool) -> Result<Vec<EndRow>> {
    let rows = sqlx::query_as(
        "SELECT thread_id, message_id, position, NULL AS code FROM messages
         WHERE (batch_type = 'system_trigger' AND metadata -> 'synthetic' IS DISTINCT FROM 'true'::jsonb)
            OR (role = 'assistant' AND message_id ~ '-a([1-9][0-9]*)?$')
         UNION ALL
         SELECT thread_id, message_id, position, code FROM failed_messages
         ORDER BY thread_id, position",
    );
    Ok(rows.fetch_all(pool).await?)
}

pub async fn partitions(pool: &PgPool) -> Result<Vec<PartitionRow>> {
    let rows = sqlx::query_as(
        "SELECT partition_id, epoch, owner, coalesce(lease_until > clock_timestamp(), false) AS leased, checkpoint
         FROM partitions ORDER BY partition_id",
    );
    Ok(rows.fetch_all(pool).await?)
}

/// Counts of messages and of dead letters.
pub async fn ended(pool: &PgPool) -> Result<(i64, i64)> {
    Ok(sqlx::query_as("SELECT (SELECT count(*) FROM messages), (SELECT count(*) FROM dead_letters)")
        .fetch_one(pool)
        .await?)
}
