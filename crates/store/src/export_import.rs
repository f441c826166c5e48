//! Export: reads threads from their beginning; and forks, which copy them.

use model::{CommandId, Position, TENANT_MARK, Tenant, ThreadId};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::StoreError;
use crate::history::StoredMessage;
use crate::history::message;
use crate::row::{count, parse_column, unsigned};
use crate::store::Store;

/// The position and batch of a message in its thread, without its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexedMessage {
    pub position: Position,
    pub batch_id: Position,
    /// True if the message is marked as stored apart from its batch.
    pub is_out_of_range: bool,
    /// True if the first message of its batch is missing. Of several adjacent messages of the
    /// batch, only the first has this set.
    pub is_headless: bool,
    /// Approximate size in bytes.
    pub bytes: u64,
}

impl Store {
    /// Lists the ids of threads after this one, in a fixed order, without temporary ones.
    pub async fn thread_ids(
        &self,
        after: Option<&ThreadId>,
        limit: u32,
    ) -> Result<Vec<ThreadId>, StoreError> {
        let statement = sqlx::query(
            "SELECT thread_id FROM threads WHERE (bucket, thread_id) > ($1, $2) AND NOT is_temporary ORDER BY bucket, thread_id LIMIT $3",
        )
        .bind(after.map_or(-1, bucket))
        .bind(after.map_or("", ThreadId::as_str).to_owned())
        .bind(i64::from(limit));
        let id = |row: &PgRow| parse_column(row, "thread_id", ThreadId::parse);
        self.rows(statement).await?.iter().map(id).collect()
    }

    /// Lists the ids of threads of one tenant after this one, without temporary ones; `None`: of
    /// the default tenant.
    pub async fn thread_ids_of_tenant(
        &self,
        tenant: Option<&Tenant>,
        after: Option<&ThreadId>,
        limit: u32,
    ) -> Result<Vec<ThreadId>, StoreError> {
        let statement = sqlx::query(include_str!("export_import/thread_ids_of_tenant.sql"))
            .bind(after.map_or(0, bucket))
            .bind(after.map_or("", ThreadId::as_str).to_owned())
            .bind(i64::from(limit))
            .bind(tenant.map(|tenant| format!("{tenant}{TENANT_MARK}")));
        let id = |row: &PgRow| parse_column(row, "thread_id", ThreadId::parse);
        self.rows(statement).await?.iter().map(id).collect()
    }

    /// The positions and batches of the thread's messages after one position and up to another,
    /// ordered by position.
    pub async fn message_index(
        &self,
        thread: &ThreadId,
        after: Option<Position>,
        through: Position,
        limit: u32,
    ) -> Result<Vec<IndexedMessage>, StoreError> {
        let statement = sqlx::query(include_str!("export_import/message_index.sql"))
            .bind(bucket(thread))
            .bind(thread.as_str().to_owned())
            .bind(after.map_or(i64::MIN, Position::get))
            .bind(through.get())
            .bind(i64::from(limit));
        self.rows(statement).await?.iter().map(place).collect()
    }

    /// True if any message of the thread is marked as stored apart from its batch.
    pub async fn has_out_of_range(&self, thread: &ThreadId) -> Result<bool, StoreError> {
        let statement = sqlx::query(
            "SELECT EXISTS (SELECT FROM messages WHERE bucket = $1 AND thread_id = $2 AND out_of_range) AS has",
        );
        let rows = self.rows(statement.bind(bucket(thread)).bind(thread.as_str().to_owned())).await?;
        rows.first().map_or(Ok(false), |row| Ok(row.try_get("has")?))
    }

    /// The messages of the thread after one position and up to another, ordered by position.
    /// Returns at most `limit` messages, and at most `bytes` bytes except for the last message. An
    /// empty result means that there are no more.
    pub async fn messages_range(
        &self,
        thread: &ThreadId,
        after: Option<Position>,
        through: Position,
        limit: u32,
        bytes: u64,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        let statement = sqlx::query(include_str!("export_import/messages_range.sql"))
            .bind(bucket(thread))
            .bind(thread.as_str().to_owned())
            .bind(after.map_or(i64::MIN, Position::get))
            .bind(through.get())
            .bind(i64::from(limit))
            .bind(i64::try_from(bytes).unwrap_or(i64::MAX));
        self.rows(statement).await?.iter().filter_map(|row| message(row).transpose()).collect()
    }

    /// All messages of a batch, ordered by position. [`Store::batches`] returns the same, unless
    /// marks of messages stored apart are wrong. This function reads the whole thread from the
    /// batch on.
    pub async fn messages_of_batch(
        &self,
        thread: &ThreadId,
        batch: Position,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        let statement = sqlx::query(include_str!("export_import/messages_of_batch.sql"))
            .bind(bucket(thread))
            .bind(thread.as_str().to_owned())
            .bind(batch.get());
        self.rows(statement).await?.iter().filter_map(|row| message(row).transpose()).collect()
    }

    /// Raises the last number of a thread to this number, so that lower numbers are not assigned
    /// again, even if their messages are gone.
    pub async fn raise_last_number(&self, thread: &ThreadId, number: u64) -> Result<(), StoreError> {
        let statement = sqlx::query(
            "UPDATE threads SET last_number = $3 WHERE bucket = $1 AND thread_id = $2 AND last_number < $3",
        );
        let statement = statement.bind(bucket(thread)).bind(thread.as_str().to_owned());
        self.rows(statement.bind(i64::try_from(number).unwrap_or(i64::MAX))).await.map(drop)
    }

    /// Copies a thread up to and including a batch, with the compactions that were effective then,
    /// and returns the number of messages. Returns `None` when the thread does not exist, or a
    /// thread with the new id exists.
    pub async fn fork(
        &self,
        thread: &ThreadId,
        new: &ThreadId,
        through: Position,
        act: &CommandId,
        actor: &str,
    ) -> Result<Option<u64>, StoreError> {
        let sql = "SELECT f.count, antiphon_list_thread($3, $4, l.title, l.title_by, false)
             FROM antiphon_fork_thread($1, $2, $3, $4, $5, $6, $7, $8) AS f (count)
             LEFT JOIN thread_list AS l ON l.bucket = $1 AND l.thread_id = $2";
        let statement = sqlx::query(sql)
            .bind(bucket(thread))
            .bind(thread.as_str().to_owned())
            .bind(bucket(new))
            .bind(new.as_str().to_owned())
            .bind(through.get())
            .bind(act.to_string())
            .bind(actor.to_owned())
            .bind(thread.name().to_owned());
        let rows = self.rows(statement).await?;
        if rows.is_empty() { Ok(None) } else { count(&rows).map(Some) }
    }
}

fn place(row: &PgRow) -> Result<IndexedMessage, StoreError> {
    Ok(IndexedMessage {
        position: Position::from_stored(row.try_get("position")?),
        batch_id: Position::from_stored(row.try_get("batch_id")?),
        is_out_of_range: row.try_get("out_of_range")?,
        is_headless: row.try_get("is_headless")?,
        bytes: unsigned(row, "bytes")?,
    })
}

fn bucket(thread: &ThreadId) -> i16 {
    thread.bucket().get() as i16
}
