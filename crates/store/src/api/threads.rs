//! Threads as clients see them.

use model::{AgentId, BusyPolicy, Metadata, Position, ThreadId, Timestamp};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::listing::{Listing, listing};
use super::{json, thread_bucket, timestamp};
use crate::error::StoreError;
use crate::row::{metadata, parse_column};
use crate::store::Store;

/// A thread that a client creates before its first message.
#[derive(Debug, Clone, PartialEq)]
pub struct NewThread {
    pub thread: ThreadId,
    /// The agent that answers; `None`: the first turn decides.
    pub agent: Option<AgentId>,
    /// Effect of a second input on a running turn; `None`: the second input waits.
    pub policy: Option<BusyPolicy>,
    pub metadata: Metadata,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ThreadRow {
    /// The values given by the client.
    pub named: NewThread,
    pub messages: i64,
    /// The number of synthetic messages, which are hidden from people.
    pub hidden: i64,
    /// The highest message number assigned.
    pub last_number: u64,
    /// The position of the last message.
    pub head: Option<Position>,
    /// When it was first written (database clock).
    pub created_at: Timestamp,
    /// `None`: the thread is not listed yet.
    pub listing: Option<Listing>,
}

/// Where a position lies in a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PositionLookup {
    /// A message of the thread has this position.
    Found,
    /// No message has this position, but later messages exist. The position belongs to another
    /// thread, or its message was deleted.
    Missing,
    /// The position is after all messages of the thread.
    Ahead,
}

/// The outcome of creating a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedThread {
    /// The thread was created.
    New,
    /// The thread existed already.
    Known,
    /// The thread is being erased; nothing was done.
    BeingErased,
}

impl Store {
    /// Creates a thread. An existing thread does not change. An erased thread accepts messages
    /// again once its erasure is complete.
    pub async fn upsert_thread(&self, new: &NewThread) -> Result<NamedThread, StoreError> {
        let statement = sqlx::query(
            "WITH mark AS MATERIALIZED (
                 SELECT erasing FROM erased_threads WHERE bucket = $1 AND thread_id = $2 FOR UPDATE
             )
             , named AS (
                 UPDATE erased_threads SET recreated_at = clock_timestamp()
                 WHERE bucket = $1 AND thread_id = $2 AND recreated_at IS NULL AND EXISTS (SELECT FROM mark WHERE erasing IS NULL)
             )
             , made AS (
                 INSERT INTO threads (bucket, thread_id, agent_id, busy_policy, metadata)
                 SELECT $1, $2, $3, $4, $5 WHERE NOT EXISTS (SELECT FROM mark WHERE erasing IS NOT NULL)
                 ON CONFLICT DO NOTHING RETURNING true
             )
             , listed AS (
                 INSERT INTO thread_list (bucket, thread_id, tenant, active_at, agent_id, user_id)
                 SELECT $1, $2, antiphon_tenant_of($2), clock_timestamp(), $3, antiphon_listed_user($5) FROM made
                 ON CONFLICT (bucket, thread_id) DO UPDATE
                 SET agent_id = coalesce(excluded.agent_id, thread_list.agent_id), user_id = excluded.user_id
             )
             SELECT EXISTS (SELECT FROM mark WHERE erasing IS NOT NULL) AS is_going, EXISTS (SELECT FROM made) AS is_new",
        )
        .bind(thread_bucket(&new.thread))
        .bind(new.thread.as_str())
        .bind(new.agent.as_ref().map(AgentId::as_str))
        .bind(new.policy.map(BusyPolicy::name))
        .bind(json(&new.metadata));
        let rows = self.rows(statement).await?;
        let row = rows.first().ok_or_else(|| StoreError::Row("no row was returned".to_owned()))?;
        Ok(match (row.try_get("is_going")?, row.try_get("is_new")?) {
            (true, _) => NamedThread::BeingErased,
            (false, true) => NamedThread::New,
            (false, false) => NamedThread::Known,
        })
    }

    /// Creates a temporary thread: no list has it, nothing follows its turns, and it is deleted
    /// some time after its last message. Of an existing thread only that changes: if it was
    /// emptied, it will be emptied again.
    pub async fn create_temporary(&self, thread: &ThreadId, agent: &AgentId) -> Result<(), StoreError> {
        let statement = sqlx::query(
            "INSERT INTO threads (bucket, thread_id, agent_id, is_temporary) VALUES ($1, $2, $3, true)
             ON CONFLICT (bucket, thread_id) DO UPDATE SET emptied_at = NULL, created_at = clock_timestamp()
             WHERE threads.emptied_at IS NOT NULL",
        )
        .bind(thread_bucket(thread))
        .bind(thread.as_str())
        .bind(agent.as_str());
        self.rows(statement).await.map(drop)
    }

    /// Names the user of a thread, and creates the thread if it does not exist. A thread with a
    /// user keeps it, and an erased thread stays erased.
    pub async fn name_user(&self, thread: &ThreadId, user: &str) -> Result<(), StoreError> {
        let statement = sqlx::query(
            "WITH named AS (
                 INSERT INTO threads AS t (bucket, thread_id, metadata)
                 SELECT $1, $2, jsonb_build_object('user_id', $3::text)
                 WHERE NOT EXISTS (SELECT FROM erased_threads WHERE bucket = $1 AND thread_id = $2 AND recreated_at IS NULL)
                 ON CONFLICT (bucket, thread_id) DO UPDATE SET metadata = t.metadata || excluded.metadata
                 WHERE t.metadata ->> 'user_id' IS NULL
                 RETURNING antiphon_listed_user(t.metadata) AS user_id
             )
             UPDATE thread_list AS l SET user_id = n.user_id FROM named AS n WHERE l.bucket = $1 AND l.thread_id = $2",
        )
        .bind(thread_bucket(thread))
        .bind(thread.as_str())
        .bind(user.to_owned());
        self.rows(statement).await.map(drop)
    }

    pub async fn thread(&self, thread: &ThreadId) -> Result<Option<ThreadRow>, StoreError> {
        let statement = sqlx::query(
            "SELECT t.thread_id, t.agent_id, t.busy_policy, t.metadata, t.message_count, t.hidden_count, t.last_number,
                    t.head_position, (extract(epoch FROM t.created_at) * 1000)::bigint AS created_ms,
                    l.title, l.title_by, l.agent_id AS listed_agent, l.is_archived, l.version, (extract(epoch FROM l.active_at) * 1000000)::bigint AS active_us
             FROM threads AS t
             LEFT JOIN thread_list AS l ON l.bucket = t.bucket AND l.thread_id = t.thread_id
             WHERE t.bucket = $1 AND t.thread_id = $2",
        )
        .bind(thread_bucket(thread))
        .bind(thread.as_str());
        self.rows(statement).await?.first().map(thread_row).transpose()
    }

    /// Lists at most `limit` threads that an agent answers, after `after`, ordered by bucket and
    /// id. These are the threads that name the agent, and its own thread.
    pub async fn threads_of_agent(
        &self,
        agent: &AgentId,
        after: Option<&ThreadId>,
        limit: u32,
    ) -> Result<Vec<ThreadId>, StoreError> {
        let own = agent.thread();
        let statement = sqlx::query(
            "SELECT bucket, thread_id FROM threads
             WHERE agent_id = $1 AND agent_id IS NOT NULL AND (bucket, thread_id) > ($2, $3)
             UNION ALL
             SELECT bucket, thread_id FROM threads
             WHERE bucket = $4 AND thread_id = $5 AND agent_id IS NULL AND (bucket, thread_id) > ($2, $3)
             ORDER BY bucket, thread_id LIMIT $6",
        )
        .bind(agent.as_str())
        .bind(after.map_or(-1, thread_bucket))
        .bind(after.map_or("", ThreadId::as_str))
        .bind(thread_bucket(&own))
        .bind(own.as_str())
        .bind(i64::from(limit));
        let rows = self.rows(statement).await?;
        rows.iter().map(|row| parse_column(row, "thread_id", ThreadId::parse)).collect()
    }

    /// Finds where a position lies in a thread. The thread may be empty.
    pub async fn find_position(
        &self,
        thread: &ThreadId,
        position: Position,
    ) -> Result<PositionLookup, StoreError> {
        let statement = sqlx::query(
            "SELECT EXISTS (SELECT FROM messages WHERE bucket = $1 AND thread_id = $2 AND position >= $3)
                    OR EXISTS (SELECT FROM failed_messages WHERE bucket = $1 AND thread_id = $2 AND position >= $3)
                       AS is_reached,
                    EXISTS (SELECT FROM messages WHERE bucket = $1 AND thread_id = $2 AND position = $3)
                    OR EXISTS (SELECT FROM failed_messages WHERE bucket = $1 AND thread_id = $2 AND position = $3)
                       AS is_here",
        )
        .bind(thread_bucket(thread))
        .bind(thread.as_str())
        .bind(position.get());
        let Some(row) = self.rows(statement).await?.pop() else { return Ok(PositionLookup::Ahead) };
        Ok(match (row.try_get("is_here")?, row.try_get("is_reached")?) {
            (true, _) => PositionLookup::Found,
            (false, false) => PositionLookup::Ahead,
            (false, true) => PositionLookup::Missing,
        })
    }
}

pub(super) fn thread_row(row: &PgRow) -> Result<ThreadRow, StoreError> {
    let agent = row.try_get::<Option<&str>, _>("agent_id")?;
    let policy = row.try_get::<Option<&str>, _>("busy_policy")?;
    let named = NewThread {
        thread: parse_column(row, "thread_id", ThreadId::parse)?,
        agent: agent.map(|_| parse_column(row, "agent_id", AgentId::parse)).transpose()?,
        policy: policy.and_then(BusyPolicy::from_name),
        metadata: metadata(row)?,
    };
    Ok(ThreadRow {
        named,
        messages: row.try_get("message_count")?,
        hidden: row.try_get("hidden_count")?,
        last_number: row.try_get::<i64, _>("last_number")?.unsigned_abs(),
        head: row.try_get::<Option<i64>, _>("head_position")?.map(Position::from_stored),
        created_at: timestamp(row, "created_ms")?,
        listing: row.try_get::<Option<i64>, _>("active_us")?.map(|_| listing(row)).transpose()?,
    })
}
