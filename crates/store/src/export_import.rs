//! Export and import: reads threads from their beginning, and writes exported messages and
//! compactions.

use batches::Item;
use batches::compaction::Compaction;
use model::{BusyPolicy, CommandId, Position, TENANT_MARK, Tenant, ThreadId};
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::api::NewThread;
use crate::error::StoreError;
use crate::history::StoredMessage;
use crate::history::message;
use crate::row::{count, parse_column, unsigned};
use crate::statement::Statement;
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

/// The outcome of an import of batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImportOutcome {
    /// All batches are stored now. The number counts the messages that are new.
    Stored(u64),
    /// Nothing was written.
    Refused {
        /// The first batch that cannot be written.
        batch: Position,
        /// The id of the message in that batch that differs from the stored one.
        message: Option<String>,
        why: ImportRefusal,
    },
}

/// The reason why a batch cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ImportRefusal {
    /// The batch is stored with other content, or a stored message with other content has the
    /// position or id of one of its messages.
    #[error("it is there already in another form")]
    Other,
    /// The stored batch has more messages than the imported one.
    #[error("it is there already and has gone on since")]
    Longer,
    /// Messages of other batches follow the position at which the batch begins.
    #[error("it comes before what the thread already has")]
    Before,
    /// The position of the batch is in the future, so later messages would precede it.
    #[error("its position is later than now by the database's clock")]
    Future,
    /// The thread was erased after the import had begun.
    #[error("the thread has been erased meanwhile")]
    Erased,
}

/// The outcome of an import of a compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompactionImport {
    /// The compaction is new.
    Written,
    /// The compaction existed already.
    Same,
    /// Another compaction with the same id exists.
    Other,
    /// Later compactions exist in the thread.
    Before,
    /// The thread was erased after the import had begun.
    Erased,
}

impl Store {
    /// Lists the ids of threads after this one, in a fixed order.
    pub async fn thread_ids(
        &self,
        after: Option<&ThreadId>,
        limit: u32,
    ) -> Result<Vec<ThreadId>, StoreError> {
        let statement = sqlx::query(
            "SELECT thread_id FROM threads WHERE (bucket, thread_id) > ($1, $2) ORDER BY bucket, thread_id LIMIT $3",
        )
        .bind(after.map_or(-1, bucket))
        .bind(after.map_or("", ThreadId::as_str).to_owned())
        .bind(i64::from(limit));
        let id = |row: &PgRow| parse_column(row, "thread_id", ThreadId::parse);
        self.rows(statement).await?.iter().map(id).collect()
    }

    /// Lists the ids of threads of one tenant after this one; `None`: of the default tenant.
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

    /// Creates a thread and returns true. Returns false and changes nothing if the thread exists.
    pub async fn import_thread(&self, named: &NewThread) -> Result<bool, StoreError> {
        let statement = sqlx::query(
            "INSERT INTO threads (bucket, thread_id, agent_id, busy_policy, metadata) SELECT $1, $2, $3, $4, $5
             WHERE NOT EXISTS (SELECT FROM erased_threads AS e
                               WHERE e.bucket = $1 AND e.thread_id = $2 AND e.recreated_at IS NULL)
             ON CONFLICT DO NOTHING RETURNING true",
        )
        .bind(bucket(&named.thread))
        .bind(named.thread.as_str().to_owned())
        .bind(named.agent.as_ref().map(|agent| agent.as_str().to_owned()))
        .bind(named.policy.map(BusyPolicy::name))
        .bind(named.metadata.to_value());
        Ok(!self.rows(statement).await?.is_empty())
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

    /// Writes whole batches of a thread from an export: all of them or none. Batches that are
    /// stored in the same form do not change.
    ///
    /// New batches must follow all other messages of the thread, except those of the batches in
    /// `beside`. These come from the same source, were written before, begin earlier, and extend
    /// beyond the first of the new batches.
    pub async fn import_batches(
        &self,
        thread: &ThreadId,
        items: &[Item],
        beside: &[Position],
    ) -> Result<ImportOutcome, StoreError> {
        if items.is_empty() {
            return Ok(ImportOutcome::Stored(0));
        }
        if let Some(new) = self.append(thread, items).await? {
            return Ok(ImportOutcome::Stored(new));
        }
        let statement =
            with_items(sqlx::query(include_str!("export_import/import_batches.sql")), thread, items)
                .bind(column(beside, |batch| batch.get()))
                .bind(column(items, |item| item.number.and_then(|number| i64::try_from(number).ok())))
                .bind(column(items, started_after_ms));
        let rows = self.rows(statement).await?;
        match rows.first().map(refusal).transpose()?.flatten() {
            Some(refused) => Ok(refused),
            None => Ok(ImportOutcome::Stored(count(&rows)?)),
        }
    }

    /// Appends batches to a new thread, which is the usual case, without the look-ups of the
    /// general case. Returns `None` and writes nothing when the general case is needed.
    async fn append(&self, thread: &ThreadId, items: &[Item]) -> Result<Option<u64>, StoreError> {
        let (Some(first), Some(last)) = (items.first(), items.last()) else { return Ok(None) };
        if !stand_one_after_the_other(items) {
            return Ok(None);
        }
        let before = std::iter::once(None).chain(items.iter().map(|item| Some(item.position.get())));
        let parents: Vec<Option<i64>> = before.take(items.len()).collect();
        let statement = with_items(sqlx::query(include_str!("export_import/append.sql")), thread, items)
            .bind(parents)
            .bind(first.position.get())
            .bind(last.position.get())
            .bind(rising_numbers(items))
            .bind(column(items, started_after_ms));
        match self.rows(statement).await {
            Ok(rows) if rows.is_empty() => Ok(None),
            Ok(rows) => count(&rows).map(Some),
            // An id exists already. The general case finds out which id it is.
            Err(StoreError::Statement(sqlx::Error::Database(error))) if error.is_unique_violation() => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Writes a compaction from an export.
    pub async fn import_compaction(
        &self,
        thread: &ThreadId,
        one: &Compaction,
    ) -> Result<CompactionImport, StoreError> {
        let provenance = serde_json::to_string(&one.provenance).unwrap_or_else(|_| "{}".to_owned());
        let statement = sqlx::query(include_str!("export_import/import_compaction.sql"))
            .bind(bucket(thread))
            .bind(thread.as_str().to_owned())
            .bind(one.id.get())
            .bind(one.through.get())
            .bind(column(&one.kept, |kept| kept.get()))
            .bind(one.summary.clone())
            .bind(one.strategy.name())
            .bind(provenance)
            .bind(one.previous.map(Position::get))
            .bind(one.undone_at.map(Position::get))
            .bind(one.counts_from.get());
        let rows = self.rows(statement).await?;
        let outcome = |row: &PgRow| {
            parse_column(row, "outcome", |name| match name {
                "written" => Ok(CompactionImport::Written),
                "same" => Ok(CompactionImport::Same),
                "other" => Ok(CompactionImport::Other),
                "before" => Ok(CompactionImport::Before),
                "erased" => Ok(CompactionImport::Erased),
                _ => Err("no such outcome"),
            })
        };
        rows.first().map_or_else(|| Err(StoreError::Row("no outcome".to_owned())), outcome)
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
        let sql = "SELECT f.count FROM antiphon_fork_thread($1, $2, $3, $4, $5, $6, $7, $8) AS f (count)";
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

fn refusal(row: &PgRow) -> Result<Option<ImportOutcome>, StoreError> {
    let Some(batch) = row.try_get::<Option<i64>, _>("batch_id")? else { return Ok(None) };
    let why = parse_column(row, "problem", |name| match name {
        "other" => Ok(ImportRefusal::Other),
        "longer" => Ok(ImportRefusal::Longer),
        "before" => Ok(ImportRefusal::Before),
        "future" => Ok(ImportRefusal::Future),
        "erased" => Ok(ImportRefusal::Erased),
        _ => Err("no such problem"),
    })?;
    Ok(Some(ImportOutcome::Refused {
        batch: Position::from_stored(batch),
        message: row.try_get("other")?,
        why,
    }))
}

fn column<R, T>(rows: &[R], value: impl Fn(&R) -> T) -> Vec<T> {
    rows.iter().map(value).collect()
}

fn bucket(thread: &ThreadId) -> i16 {
    thread.bucket().get() as i16
}

fn with_items(statement: Statement, thread: &ThreadId, items: &[Item]) -> Statement {
    let text = |value: &Option<Value>| value.as_ref().map(Value::to_string);
    statement
        .bind(bucket(thread))
        .bind(thread.as_str().to_owned())
        .bind(column(items, |item| item.position.get()))
        .bind(column(items, |item| item.message_id.as_str().to_owned()))
        .bind(column(items, |item| item.batch_id.get()))
        .bind(column(items, |item| item.sequence_num))
        .bind(column(items, |item| item.batch_type.name()))
        .bind(column(items, |item| item.role.name()))
        .bind(column(items, |item| item.content.clone()))
        .bind(column(items, |item| text(&item.tool_calls)))
        .bind(column(items, |item| item.tool_call_id.clone()))
        .bind(column(items, |item| item.metadata.to_value().to_string()))
        .bind(column(items, |item| item.token_count.and_then(|count| i64::try_from(count).ok())))
        .bind(column(items, |item| item.created_at.0))
}

/// The start time relative to the creation time; `None` when it is not known or out of the column's
/// range.
fn started_after_ms(item: &Item) -> Option<i32> {
    item.started_at?.0.checked_sub(item.created_at.0)?.try_into().ok()
}

/// The numbers of the messages, if all have one and the numbers rise strictly; otherwise empty.
fn rising_numbers(items: &[Item]) -> Vec<i64> {
    let number = |item: &Item| item.number.and_then(|number| i64::try_from(number).ok());
    let numbers: Option<Vec<i64>> = items.iter().map(number).collect();
    numbers.filter(|numbers| numbers.is_sorted_by(|a, b| a < b)).unwrap_or_default()
}

/// True if each message begins a batch or continues the batch of the previous message, at a higher
/// position.
fn stand_one_after_the_other(items: &[Item]) -> bool {
    let is_start = |item: &Item| item.position == item.batch_id;
    items.first().is_some_and(is_start)
        && items.windows(2).all(|pair| {
            pair[0].position < pair[1].position
                && (pair[1].batch_id == pair[0].batch_id || is_start(&pair[1]))
        })
}
