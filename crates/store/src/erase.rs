//! Erasing threads: everything that Postgres has of one, in small transactions.

use model::{Bucket, ThreadId, Timestamp};
use serde_json::Value;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row};

use crate::row::count;
use crate::{Store, StoreError};

/// Rows that one transaction takes.
const ROWS_AT_ONCE: i64 = 500;

/// Every table that has rows of threads, but for the mark of those that are erased. What is written of a thread while the
/// first ones are erased is found in a later one, or by erasing again.
pub const TABLES_OF_THREADS: [&str; 11] = [
    "threads",
    "open_turns",
    "failed_turns",
    "failed_messages",
    "idempotency_keys",
    "responses",
    "stragglers",
    "straggler_chunks",
    "dead_letters",
    "compactions",
    "messages",
];

/// What is known of a thread that was erased.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Erased {
    /// When somebody erased it last, by the database's clock.
    pub at: Timestamp,
    /// Who.
    pub actor: String,
    /// How many rows of each table, all times together.
    pub counts: Value,
}

impl Store {
    /// How many rows each table has of the thread.
    pub async fn rows_of_thread(&self, thread: &ThreadId) -> Result<Vec<(&'static str, u64)>, StoreError> {
        let mut counts = Vec::new();
        for table in TABLES_OF_THREADS {
            let sql = format!("SELECT count(*) AS count FROM {table} WHERE {}", of_thread(table));
            let statement =
                sqlx::query(AssertSqlSafe(sql)).bind(bucket(thread)).bind(thread.as_str().to_owned());
            counts.push((table, count(&self.rows(statement).await?)?));
        }
        Ok(counts)
    }

    /// Marks the thread as erased: from now on nothing that comes for it is stored, unless it is named again.
    pub async fn mark_erased(&self, thread: &ThreadId, actor: &str) -> Result<(), StoreError> {
        let statement = sqlx::query(
            "INSERT INTO erased_threads (bucket, thread_id, actor) VALUES ($1, $2, $3)
             ON CONFLICT (bucket, thread_id) DO UPDATE SET erased_at = clock_timestamp(), actor = excluded.actor",
        );
        let statement =
            statement.bind(bucket(thread)).bind(thread.as_str().to_owned()).bind(actor.to_owned());
        self.rows(statement).await.map(drop)
    }

    /// Erases some rows of the thread in one of [`TABLES_OF_THREADS`], counts them in its receipt, and says how many; to be called
    /// until it says none.
    pub async fn erase_rows(&self, thread: &ThreadId, table: &'static str) -> Result<u64, StoreError> {
        let sql = format!(
            "WITH gone AS (
                 DELETE FROM {table} WHERE ctid = ANY (ARRAY(
                     SELECT ctid FROM {table} WHERE {} LIMIT {ROWS_AT_ONCE}))
                 RETURNING 1
             )
             , counted AS (
                 UPDATE erased_threads AS e
                 SET receipt = e.receipt || jsonb_build_object(
                     '{table}', coalesce((e.receipt->>'{table}')::bigint, 0) + (SELECT count(*) FROM gone))
                 WHERE e.bucket = $1 AND e.thread_id = $2
             )
             SELECT count(*) AS count FROM gone",
            of_thread(table)
        );
        let statement = sqlx::query(AssertSqlSafe(sql)).bind(bucket(thread)).bind(thread.as_str().to_owned());
        count(&self.rows(statement).await?)
    }

    /// The receipt of a thread that was erased.
    pub async fn erased(&self, thread: &ThreadId) -> Result<Option<Erased>, StoreError> {
        let statement = sqlx::query(
            "SELECT actor, receipt, (extract(epoch FROM erased_at) * 1000)::bigint AS erased_ms FROM erased_threads
             WHERE bucket = $1 AND thread_id = $2",
        );
        let statement = statement.bind(bucket(thread)).bind(thread.as_str().to_owned());
        let erased = |row: &PgRow| -> Result<Erased, StoreError> {
            let at = Timestamp(row.try_get("erased_ms")?);
            Ok(Erased { at, actor: row.try_get("actor")?, counts: row.try_get("receipt")? })
        };
        self.rows(statement).await?.first().map(erased).transpose()
    }
}

/// Dead entries are in the bucket of their partition.
fn of_thread(table: &str) -> &'static str {
    match table {
        "dead_letters" => {
            "(bucket = $1 OR bucket = mod($1, (SELECT f.partitions FROM fleet AS f))) AND thread_id = $2"
        }
        _ => "bucket = $1 AND thread_id = $2",
    }
}

fn bucket(thread: &ThreadId) -> i16 {
    Bucket::of(thread).get() as i16
}
