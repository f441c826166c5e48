//! Retention: reads the sizes and ages of a thread's messages, and deletes batches in small
//! transactions.

use batches::RetentionRules;
use batches::retention::{self, BatchSize, MessageInfo};
use model::{AgentId, Bucket, MessageId, Position, ThreadId, Timestamp};
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::StoreError;
use crate::row::{column_error, count};
use crate::store::Store;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetainedThread {
    pub thread: ThreadId,
    /// The agent whose rules apply.
    pub agent: AgentId,
    /// The number of messages in the thread.
    pub messages: u64,
    /// The position of the last message.
    pub head: Option<Position>,
}

impl Store {
    /// The current time of the database clock, which decides about ages: a machine with a wrong
    /// clock must not delete recent messages. `None` when no agent has rules, as in most
    /// installations.
    pub async fn retention_time(&self) -> Result<Option<Timestamp>, StoreError> {
        let statement = sqlx::query(
            "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms
             WHERE EXISTS (SELECT FROM agent_settings WHERE jsonb_typeof(settings -> 'retention') = 'object')",
        );
        let rows = self.rows(statement).await?;
        rows.first().map(|row| Ok(Timestamp(row.try_get("now_ms")?))).transpose()
    }

    /// Threads of a bucket with ids after this one, ordered by id.
    pub async fn retained_threads(
        &self,
        bucket: Bucket,
        after: &str,
        most: u32,
    ) -> Result<Vec<RetainedThread>, StoreError> {
        let statement = sqlx::query(include_str!("retention/threads.sql"))
            .bind(bucket.get() as i16)
            .bind(after.to_owned())
            .bind(i64::from(most));
        self.rows(statement).await?.iter().map(kept).collect()
    }

    /// The age of the oldest message of a thread, in ms by the database clock; `None` when the
    /// thread has no messages.
    pub async fn oldest_ms(&self, thread: &ThreadId) -> Result<Option<i64>, StoreError> {
        let statement = sqlx::query(
            "SELECT (extract(epoch FROM clock_timestamp() - greatest(m.created_at, m.imported_at, to_timestamp((m.position >> 22) / 1000.0 + 1704067200))) * 1000)::bigint AS oldest_ms
             FROM messages AS m
             WHERE m.bucket = $1 AND m.thread_id = $2 ORDER BY m.position LIMIT 1",
        )
        .bind(thread.bucket().get() as i16)
        .bind(thread.as_str().to_owned());
        let rows = self.rows(statement).await?;
        rows.first().map_or(Ok(None), |row| Ok(row.try_get("oldest_ms")?))
    }

    /// The rules of these agents, without unreadable ones.
    pub async fn retention_rules(
        &self,
        agents: &[AgentId],
    ) -> Result<Vec<(AgentId, RetentionRules)>, StoreError> {
        let statement = sqlx::query(include_str!("retention/rules.sql"))
            .bind(agents.iter().map(|agent| Bucket::of_key(agent.as_str()).get() as i16).collect::<Vec<_>>())
            .bind(agents.iter().map(AgentId::as_str).collect::<Vec<_>>());
        let read = |row: &PgRow| -> Result<Option<(AgentId, RetentionRules)>, StoreError> {
            let (id, value): (String, Value) = (row.try_get("agent_id")?, row.try_get("rules")?);
            let agent = AgentId::parse(&id).map_err(|error| column_error("agent_id", &error))?;
            // Unreadable rules are skipped, so that they delete nothing.
            Ok(retention::rules(&value).ok().map(|rules| (agent, rules)))
        };
        self.rows(statement).await?.iter().filter_map(|row| read(row).transpose()).collect()
    }

    /// Sizes and ages of the messages of a thread before this position, newest first.
    pub async fn retention_index(
        &self,
        thread: &ThreadId,
        before: Position,
        most: u32,
    ) -> Result<Vec<MessageInfo>, StoreError> {
        let statement = sqlx::query(include_str!("retention/index.sql"))
            .bind(thread.bucket().get() as i16)
            .bind(thread.as_str().to_owned())
            .bind(before.get())
            .bind(i64::from(most));
        let place = |row: &PgRow| -> Result<MessageInfo, StoreError> {
            let bytes: i64 = row.try_get("bytes")?;
            Ok(MessageInfo {
                position: Position::from_stored(row.try_get("position")?),
                batch: Position::from_stored(row.try_get("batch_id")?),
                bytes: bytes.unsigned_abs(),
                at: Timestamp(row.try_get("created_ms")?),
            })
        };
        self.rows(statement).await?.iter().map(place).collect()
    }

    /// Deletes these batches, all or none, and returns the number of messages. Returns `None` and
    /// deletes nothing if `head` is no longer the last position of the thread.
    pub async fn delete_batches(
        &self,
        thread: &ThreadId,
        head: Option<Position>,
        batches: &[BatchSize],
    ) -> Result<Option<u64>, StoreError> {
        let statement = sqlx::query(include_str!("retention/delete.sql"))
            .bind(thread.bucket().get() as i16)
            .bind(thread.as_str().to_owned())
            .bind(head.map(Position::get))
            .bind(batches.iter().map(|batch| batch.id.get()).collect::<Vec<_>>())
            .bind(batches.iter().map(|batch| batch.last.get()).collect::<Vec<_>>());
        let rows = self.rows(statement).await?;
        if rows.is_empty() { Ok(None) } else { count(&rows).map(Some) }
    }
}

impl Store {
    /// True if retention has deleted this message recently.
    pub async fn is_expired(&self, thread: &ThreadId, message: &MessageId) -> Result<bool, StoreError> {
        let statement = sqlx::query(
            "SELECT FROM expired_messages WHERE bucket = $1 AND message_id = $2 AND thread_id = $3",
        )
        .bind(thread.bucket().get() as i16)
        .bind(message.as_str().to_owned())
        .bind(thread.as_str().to_owned());
        Ok(!self.rows(statement).await?.is_empty())
    }
}

fn kept(row: &PgRow) -> Result<RetainedThread, StoreError> {
    let (thread, agent): (String, String) = (row.try_get("thread_id")?, row.try_get("agent_id")?);
    let messages: i64 = row.try_get("message_count")?;
    Ok(RetainedThread {
        thread: ThreadId::parse(&thread).map_err(|error| column_error("thread_id", &error))?,
        agent: AgentId::parse(&agent).map_err(|error| column_error("agent_id", &error))?.agent(),
        messages: messages.unsigned_abs(),
        head: row.try_get::<Option<i64>, _>("head_position")?.map(Position::from_stored),
    })
}
