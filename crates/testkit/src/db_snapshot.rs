//! The tables, as an outsider reads them.

pub mod turns;

use anyhow::Result;
use serde_json::Value;
use sqlx::PgPool;

use crate::from_row;

from_row! {
    /// A persisted message.
    #[derive(Debug, Clone)]
    pub struct MessageRow {
        /// Its thread.
        pub thread_id: String,
        /// Its id in the thread.
        pub message_id: String,
        /// Its place.
        pub position: i64,
        /// The position of its predecessor.
        pub parent_id: Option<i64>,
        /// Its number in the thread.
        pub number: Option<i64>,
        /// The position of its batch's first message.
        pub batch_id: i64,
        /// Its number in the batch.
        pub sequence_num: i32,
        /// Who speaks.
        pub role: String,
        /// Its text.
        pub content: String,
        /// Its metadata.
        pub metadata: Value,
        /// The attempt that it comes from.
        pub attempt: i64,
    }
}

from_row! {
    /// An input that was given up on.
    #[derive(Debug, Clone)]
    pub struct DeadLetterRow {
        /// `entry` or `message`.
        pub kind: String,
        /// The stream sequence of the entry, or of the message's first entry.
        pub stream_seq: i64,
        /// Its partition.
        pub partition_id: i16,
        /// The subject of an entry.
        pub subject: Option<String>,
        /// The thread of a message.
        pub thread_id: Option<String>,
        /// The message.
        pub message_id: Option<String>,
        /// The attempt of a message.
        pub attempt: Option<i64>,
        /// The code.
        pub reason: String,
        /// Text, and what was missing.
        pub detail: Value,
        /// What came.
        pub raw: Vec<u8>,
    }
}

from_row! {
    /// The end of a message, as clients get it.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct EndRow {
        /// Its thread.
        pub thread_id: String,
        /// The message.
        pub message_id: String,
        /// Its place among the ends of its thread.
        pub position: i64,
        /// Why it failed; `None` when it is persisted.
        pub code: Option<String>,
    }
}

from_row! {
    /// When a message was committed.
    #[derive(Debug, Clone)]
    pub struct CommitTime {
        /// Its thread.
        pub thread_id: String,
        /// The message.
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
        /// Its number.
        pub partition_id: i16,
        /// Another one with each grant.
        pub epoch: i64,
        /// The worker that holds it.
        pub owner: Option<String>,
        /// Whether the lease is running, by the database's clock.
        pub leased: bool,
        /// Nothing up to here is needed again.
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

/// When each message was committed.
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

/// How all messages ended of which clients get the end, by thread and position.
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

/// All partitions.
pub async fn partitions(pool: &PgPool) -> Result<Vec<PartitionRow>> {
    let rows = sqlx::query_as(
        "SELECT partition_id, epoch, owner, coalesce(lease_until > clock_timestamp(), false) AS leased, checkpoint
         FROM partitions ORDER BY partition_id",
    );
    Ok(rows.fetch_all(pool).await?)
}

/// Number of messages and of dead letters.
pub async fn ended(pool: &PgPool) -> Result<(i64, i64)> {
    Ok(sqlx::query_as("SELECT (SELECT count(*) FROM messages), (SELECT count(*) FROM dead_letters)")
        .fetch_one(pool)
        .await?)
}
