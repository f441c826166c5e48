//! Retention of records that are kept for people after use.
//!
//! Every kind has a bound in age and one in bytes. Deleting is idempotent, so every worker may do
//! it.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Row};

use crate::error::StoreError;
use crate::row::count;
use crate::store::Store;

/// Kinds of kept records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// Completed tasks with their texts. Their turns are in the history.
    CompletedTasks,
    /// Failed tasks that were neither retried nor dropped.
    FailedTasks,
    /// Failed turns that were neither retried nor dropped.
    FailedTurns,
    DeadLetters,
    Audit,
    /// Marks of erased threads. A late command for a thread whose mark is deleted creates a new
    /// thread.
    ErasedThreads,
    /// Marks of completely erased tenants. Commands for a tenant whose mark is deleted are accepted
    /// again.
    ErasedTenants,
}

/// The bound that a record exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptBound {
    /// It is older than this.
    Age(Duration),
    /// Newer records of its kind use this many bytes already.
    Bytes(u64),
}

impl Kept {
    pub const ALL: [Self; 7] = [
        Self::CompletedTasks,
        Self::FailedTasks,
        Self::FailedTurns,
        Self::DeadLetters,
        Self::Audit,
        Self::ErasedThreads,
        Self::ErasedTenants,
    ];

    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::CompletedTasks => "completed_tasks",
            Self::FailedTasks => "failed_tasks",
            Self::FailedTurns => "failed_turns",
            Self::DeadLetters => "dead_letters",
            Self::Audit => "audit",
            Self::ErasedThreads => "erased_threads",
            Self::ErasedTenants => "erased_tenants",
        }
    }

    /// The table of a kind. Sizes are those on disk, as far as a row has them.
    fn parts(self) -> KeptTable {
        let plain = |table, at, size| KeptTable { table, at, size, only: "true", rest: "" };
        match self {
            Self::CompletedTasks => KeptTable {
                table: "tasks",
                at: "created_at",
                size: "pg_column_size(t.content) + pg_column_size(t.metadata) + 128",
                only: "EXISTS (SELECT FROM agents AS a WHERE a.bucket = t.bucket AND a.agent_id = t.agent_id
                                   AND a.head_position >= t.position OFFSET 0)
                       AND NOT EXISTS (SELECT FROM failed_tasks AS f WHERE f.bucket = t.bucket AND f.agent_id = t.agent_id
                                       AND f.position = t.position OFFSET 0)",
                rest: "",
            },
            Self::FailedTasks => KeptTable {
                table: "failed_tasks",
                at: "failed_at",
                size: "pg_column_size(t.text) + 128 + coalesce((SELECT pg_column_size(w.content) + pg_column_size(w.metadata) + 128
                           FROM tasks AS w
                           WHERE w.bucket = t.bucket AND w.agent_id = t.agent_id AND w.position = t.position), 0)",
                only: "true",
                // Without its mark a task would count as pending or completed.
                rest: ", tasks_gone AS (DELETE FROM tasks AS w USING gone AS g
                           WHERE w.bucket = g.bucket AND w.agent_id = g.agent_id AND w.position = g.position)
                       , ids_gone AS (DELETE FROM task_ids AS w USING gone AS g
                           WHERE w.bucket = g.bucket AND w.agent_id = g.agent_id AND w.position = g.position)",
            },
            Self::FailedTurns => plain(
                "failed_turns",
                "failed_at",
                "pg_column_size(t.content) + pg_column_size(t.metadata) + pg_column_size(t.text) + 256",
            ),
            Self::DeadLetters => plain(
                "dead_letters",
                "created_at",
                "pg_column_size(t.raw) + pg_column_size(t.detail) + 256",
            ),
            Self::Audit => plain("audit_log", "created_at", "pg_column_size(t.*)"),
            Self::ErasedThreads => plain("erased_threads", "erased_at", "pg_column_size(t.receipt) + 128"),
            Self::ErasedTenants => KeptTable {
                only: "t.erasing IS NULL",
                ..plain("erased_tenants", "erased_at", "pg_column_size(t.*)")
            },
        }
    }
}

struct KeptTable {
    table: &'static str,
    /// The column with the time of writing.
    at: &'static str,
    size: &'static str,
    /// The condition that selects the rows.
    only: &'static str,
    /// CTEs that delete dependent rows.
    rest: &'static str,
}

impl Store {
    /// Deletes at most `limit` rows beyond a bound, the oldest first, and returns how many; call it
    /// until it returns fewer.
    pub async fn delete_beyond(&self, kept: Kept, bound: KeptBound, limit: u32) -> Result<u64, StoreError> {
        let KeptTable { table, at, size, only, rest } = kept.parts();
        let gone = format!(
            ", gone AS (DELETE FROM {table} AS t USING old AS o WHERE t.ctid = o.place RETURNING t.*)
             {rest}
             SELECT count(*) AS count FROM gone"
        );
        let sql = match bound {
            KeptBound::Age(_) => format!(
                "WITH old AS MATERIALIZED (
                     SELECT t.ctid AS place FROM {table} AS t
                     WHERE t.{at} < now() - $1 * interval '1 second' AND {only} ORDER BY t.{at} LIMIT $2
                 ) {gone}"
            ),
            // A table that is smaller than the bound cannot exceed it, so usually nothing is read.
            // The size is in a sub-query because it would otherwise be computed for each row. All
            // rows are summed, but only the oldest are sorted: a row is deleted while it and all
            // newer ones exceed the bound.
            KeptBound::Bytes(_) => format!(
                "WITH total AS MATERIALIZED (
                     SELECT sum({size})::bigint AS bytes FROM {table} AS t
                     WHERE (SELECT pg_table_size('{table}')) > $1 AND {only}
                 )
                 , oldest AS MATERIALIZED (
                     SELECT t.ctid AS place, t.{at} AS written, {size} AS size FROM {table} AS t
                     WHERE (SELECT bytes FROM total) > $1 AND {only}
                     ORDER BY t.{at}, t.ctid LIMIT $2
                 )
                 , old AS MATERIALIZED (
                     SELECT s.place
                     FROM (SELECT place, sum(size) OVER (ORDER BY written, place) - size AS older FROM oldest) AS s, total
                     WHERE total.bytes - s.older > $1
                 ) {gone}"
            ),
        };
        let bound = match bound {
            KeptBound::Age(age) => i64::try_from(age.as_secs()).unwrap_or(i64::MAX),
            KeptBound::Bytes(bytes) => i64::try_from(bytes).unwrap_or(i64::MAX),
        };
        let statement = sqlx::query(AssertSqlSafe(sql)).bind(bound).bind(i64::from(limit));
        count(&self.rows(statement).await?)
    }

    /// The sizes on disk, in bytes, of the tables that hold these kinds.
    pub async fn kept_bytes(&self) -> Result<Vec<(Kept, u64)>, StoreError> {
        let sizes = Kept::ALL.map(|kept| format!("pg_table_size('{}')", kept.parts().table)).join(", ");
        let rows = self.rows(sqlx::query(AssertSqlSafe(format!("SELECT ARRAY[{sizes}] AS sizes")))).await?;
        let sizes: Vec<i64> = rows.first().map_or(Ok(Vec::new()), |row| row.try_get("sizes"))?;
        Ok(Kept::ALL.into_iter().zip(sizes.into_iter().map(i64::unsigned_abs)).collect())
    }
}
