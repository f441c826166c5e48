//! Limits on the age and size of operational records.
//!
//! Each kind of record has one row in [`CleanupKind::rule`], or a statement of its own. Deletion is
//! idempotent, so every worker may run it.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Row};

use crate::error::StoreError;
use crate::row::{count, interval};
use crate::store::Store;

/// A kind of record that is deleted when it is too old, or when its table is too large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CleanupKind {
    /// Completed tasks with their texts. Their turns are in the history.
    CompletedTasks,
    /// Tasks that failed and were neither retried nor dropped.
    FailedTasks,
    /// Turns that failed and were neither retried nor dropped.
    FailedTurns,
    /// Inputs that could not be processed.
    DeadLetters,
    /// The audit log.
    Audit,
    /// Marks of erased threads. After the mark is gone, a message for the thread creates it again.
    ErasedThreads,
    /// Marks of erased tenants of which no data is left. After that the tenant's name can be used
    /// again.
    ErasedTenants,
    /// Erasures that have ended, with their receipts.
    Erasures,
    /// Ids by which repeated tasks are recognized. The ids of pending and failed tasks are kept:
    /// operators name tasks by them, and a pending task must not be queued twice.
    TaskIds,
    /// Idempotency keys of messages.
    IdempotencyKeys,
    /// Failures of messages. The inputs themselves are kept.
    FailedMessages,
    /// Marks of messages that retention has deleted. A message that arrives again is recognized by
    /// its mark.
    ExpiredMessages,
    /// Request fields of responses. The answers are kept with their threads.
    Responses,
    /// Timers that have ended. Timers of a thread with a pending timer are kept, because the
    /// follow-up rules count them.
    Timers,
    /// Facts that agents remember.
    Facts,
    /// Single model calls. Before deletion they are added to the sums of their days.
    ModelCalls,
    /// Sums of model calls by day.
    UsageDays,
    /// Unchanged reasoning sessions, with their part of the audit log.
    ReasoningSessions,
    /// What was said in temporary threads. Their rows are kept for two months more, so that their
    /// model calls have a user.
    TemporaryThreads,
}

/// The limit beyond which records are deleted. For a limit in bytes, the oldest records are deleted
/// first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CleanupLimit {
    /// Maximum age of a record.
    Age(Duration),
    /// Maximum bytes of the records on disk. Kinds that are not [sized](CleanupKind::is_sized) have
    /// no such limit, and nothing of them is deleted.
    Bytes(u64),
}

/// How the records of a kind are deleted.
enum CleanupStatement {
    /// The rows of a table are deleted.
    Table(CleanupTable),
    /// A statement of its own deletes the records: $1 the age, $2 the maximum number of records.
    Own(&'static str),
}

/// A table from which whole rows are deleted.
struct CleanupTable {
    name: &'static str,
    /// The column with the time of a row.
    at: &'static str,
    /// SQL expression for the bytes of the row `t` on disk.
    size: Option<&'static str>,
    /// SQL condition for the rows that may be deleted.
    only: &'static str,
    /// True if a B-tree has the rows in the order of `at`. Without one, ORDER BY would sort all
    /// rows.
    is_ordered: bool,
    /// SQL that deletes the rows that belong to the deleted records, which are named `gone`.
    rest: &'static str,
}

impl CleanupTable {
    const fn new(name: &'static str, at: &'static str) -> Self {
        Self { name, at, size: None, only: "true", is_ordered: true, rest: "" }
    }

    const fn sized(name: &'static str, at: &'static str, size: &'static str) -> Self {
        Self { size: Some(size), ..Self::new(name, at) }
    }
}

impl CleanupKind {
    /// Every kind, in the order of their names in the manual.
    pub const ALL: [Self; 19] = [
        Self::CompletedTasks,
        Self::FailedTasks,
        Self::FailedTurns,
        Self::DeadLetters,
        Self::Audit,
        Self::ErasedThreads,
        Self::ErasedTenants,
        Self::Erasures,
        Self::TaskIds,
        Self::IdempotencyKeys,
        Self::FailedMessages,
        Self::ExpiredMessages,
        Self::Responses,
        Self::Timers,
        Self::Facts,
        Self::ModelCalls,
        Self::UsageDays,
        Self::ReasoningSessions,
        Self::TemporaryThreads,
    ];

    /// True if the kind can also have a limit in bytes.
    pub fn is_sized(self) -> bool {
        matches!(self.rule(), CleanupStatement::Table(CleanupTable { size: Some(_), .. }))
    }

    /// The name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::CompletedTasks => "completed_tasks",
            Self::FailedTasks => "failed_tasks",
            Self::FailedTurns => "failed_turns",
            Self::DeadLetters => "dead_letters",
            Self::Audit => "audit",
            Self::ErasedThreads => "erased_threads",
            Self::ErasedTenants => "erased_tenants",
            Self::Erasures => "erasures",
            Self::TaskIds => "task_ids",
            Self::IdempotencyKeys => "idempotency_keys",
            Self::FailedMessages => "failed_messages",
            Self::ExpiredMessages => "expired_messages",
            Self::Responses => "responses",
            Self::Timers => "timers",
            Self::Facts => "facts",
            Self::ModelCalls => "model_calls",
            Self::UsageDays => "usage_days",
            Self::ReasoningSessions => "reasoning_sessions",
            Self::TemporaryThreads => "temporary_threads",
        }
    }

    /// Maximum number of rows that one statement deletes. The statement timeout is 5 s.
    pub fn batch(self) -> u32 {
        match self {
            // A session is deleted with all its messages.
            Self::ReasoningSessions => 1,
            // So is a thread, which may have a long history.
            Self::TemporaryThreads => 5,
            kind if kind.is_sized() => 20_000,
            _ => 5_000,
        }
    }

    fn rule(self) -> CleanupStatement {
        let table = match self {
            Self::CompletedTasks => CleanupTable {
                only: "EXISTS (SELECT FROM agents AS a WHERE a.bucket = t.bucket AND a.agent_id = t.agent_id
                                   AND a.head_position >= t.position OFFSET 0)
                       AND NOT EXISTS (SELECT FROM failed_tasks AS f WHERE f.bucket = t.bucket AND f.agent_id = t.agent_id
                                       AND f.position = t.position OFFSET 0)",
                is_ordered: false,
                ..CleanupTable::sized(
                    "tasks",
                    "created_at",
                    "pg_column_size(t.content) + pg_column_size(t.metadata) + 128",
                )
            },
            Self::FailedTasks => CleanupTable {
                // The tasks go with their failure marks: a task that lost its mark would be pending
                // or completed.
                rest: ", tasks_gone AS (DELETE FROM tasks AS w USING gone AS g
                           WHERE w.bucket = g.bucket AND w.agent_id = g.agent_id AND w.position = g.position)
                       , ids_gone AS (DELETE FROM task_ids AS w USING gone AS g
                           WHERE w.bucket = g.bucket AND w.agent_id = g.agent_id AND w.position = g.position)",
                ..CleanupTable::sized(
                    "failed_tasks",
                    "failed_at",
                    "pg_column_size(t.text) + 128 + coalesce((SELECT pg_column_size(w.content) + pg_column_size(w.metadata) + 128
                         FROM tasks AS w
                         WHERE w.bucket = t.bucket AND w.agent_id = t.agent_id AND w.position = t.position), 0)",
                )
            },
            Self::FailedTurns => CleanupTable {
                // The title of a thread without messages is the text of its failed turn.
                rest: ", unlisted AS (DELETE FROM thread_list AS l USING gone AS g
                           WHERE l.bucket = g.bucket AND l.thread_id = g.thread_id AND l.active_at <= g.failed_at
                             AND NOT EXISTS (SELECT FROM threads AS h WHERE h.bucket = l.bucket AND h.thread_id = l.thread_id OFFSET 0))
                       , untitled AS (UPDATE thread_list AS l SET title = NULL, title_by = NULL FROM gone AS g
                           WHERE l.bucket = g.bucket AND l.thread_id = g.thread_id AND l.title_by = 'input'
                             AND EXISTS (SELECT FROM threads AS h WHERE h.bucket = l.bucket AND h.thread_id = l.thread_id
                                         AND h.head_position IS NULL OFFSET 0))",
                ..CleanupTable::sized(
                    "failed_turns",
                    "failed_at",
                    "pg_column_size(t.content) + pg_column_size(t.metadata) + pg_column_size(t.text) + 256",
                )
            },
            Self::DeadLetters => CleanupTable::sized(
                "dead_letters",
                "created_at",
                "pg_column_size(t.raw) + pg_column_size(t.detail) + 256",
            ),
            Self::Audit => CleanupTable {
                is_ordered: false,
                ..CleanupTable::sized("audit_log", "created_at", "pg_column_size(t.*)")
            },
            Self::ErasedThreads => {
                CleanupTable::sized("erased_threads", "erased_at", "pg_column_size(t.receipt) + 128")
            }
            Self::ErasedTenants => CleanupTable {
                only: "t.erasing IS NULL",
                ..CleanupTable::sized("erased_tenants", "erased_at", "pg_column_size(t.*)")
            },
            Self::Erasures => CleanupTable {
                only: "t.ended_at IS NOT NULL",
                ..CleanupTable::sized("erasures", "ended_at", "pg_column_size(t.*)")
            },
            Self::TaskIds => CleanupTable {
                only: "EXISTS (SELECT FROM agents AS a
                               WHERE a.bucket = t.bucket AND a.agent_id = t.agent_id AND a.head_position >= t.position OFFSET 0)
                       AND NOT EXISTS (SELECT FROM failed_tasks AS f
                               WHERE f.bucket = t.bucket AND f.agent_id = t.agent_id AND f.position = t.position OFFSET 0)",
                ..CleanupTable::new("task_ids", "created_at")
            },
            Self::IdempotencyKeys => CleanupTable::new("idempotency_keys", "created_at"),
            Self::FailedMessages => CleanupTable::new("failed_messages", "created_at"),
            Self::ExpiredMessages => CleanupTable::new("expired_messages", "expired_at"),
            Self::Responses => CleanupTable::new("responses", "created_at"),
            Self::Timers => CleanupTable {
                only: "NOT EXISTS (SELECT FROM timers AS w
                                   WHERE w.bucket = t.bucket AND w.thread_id = t.thread_id AND w.state = 'pending' OFFSET 0)",
                ..CleanupTable::new("timers", "ended_at")
            },
            Self::Facts => CleanupTable { is_ordered: false, ..CleanupTable::new("facts", "created_at") },
            Self::UsageDays => CleanupTable { is_ordered: false, ..CleanupTable::new("usage_days", "day_at") },
            Self::ModelCalls => return CleanupStatement::Own(include_str!("api/usage/roll_up.sql")),
            Self::ReasoningSessions => {
                return CleanupStatement::Own(include_str!("reasoning_sessions/purge.sql"));
            }
            Self::TemporaryThreads => {
                return CleanupStatement::Own(include_str!("cleanup/temporary_threads.sql"));
            }
        };
        CleanupStatement::Table(table)
    }
}

impl Store {
    /// Deletes at most `most` records beyond a limit and returns their number. If it is below
    /// `most`, no such records are left.
    ///
    /// # Errors
    /// The database does not answer, or refuses the statement.
    pub async fn clean_up(
        &self,
        kind: CleanupKind,
        limit: CleanupLimit,
        most: u32,
    ) -> Result<u64, StoreError> {
        let (sql, age) = match (kind.rule(), limit) {
            (CleanupStatement::Table(table), CleanupLimit::Age(age)) => (by_age(&table), age),
            (CleanupStatement::Own(sql), CleanupLimit::Age(age)) => (sql.to_owned(), age),
            (CleanupStatement::Table(table), CleanupLimit::Bytes(bytes)) => {
                let Some(sql) = by_bytes(&table) else { return Ok(0) };
                let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
                let statement = sqlx::query(AssertSqlSafe(sql)).bind(bytes).bind(i64::from(most));
                return count(&self.rows(statement).await?);
            }
            (CleanupStatement::Own(_), CleanupLimit::Bytes(_)) => return Ok(0),
        };
        let statement = sqlx::query(AssertSqlSafe(sql)).bind(interval(age));
        count(&self.rows(statement.bind(i64::from(most))).await?)
    }

    /// The bytes on disk of the tables whose kinds have a limit in bytes.
    ///
    /// # Errors
    /// The database does not answer, or refuses the statement.
    pub async fn cleanup_bytes(&self) -> Result<Vec<(CleanupKind, u64)>, StoreError> {
        let sized = CleanupKind::ALL.into_iter().filter_map(|kind| match kind.rule() {
            CleanupStatement::Table(table) if table.size.is_some() => Some((kind, table.name)),
            CleanupStatement::Table(_) | CleanupStatement::Own(_) => None,
        });
        let (kinds, tables): (Vec<_>, Vec<_>) = sized.unzip();
        let sizes: Vec<String> = tables.iter().map(|name| format!("pg_table_size('{name}')")).collect();
        let sql = format!("SELECT ARRAY[{}] AS sizes", sizes.join(", "));
        let rows = self.rows(sqlx::query(AssertSqlSafe(sql))).await?;
        let sizes: Vec<i64> = rows.first().map_or(Ok(Vec::new()), |row| row.try_get("sizes"))?;
        Ok(kinds.into_iter().zip(sizes.into_iter().map(i64::unsigned_abs)).collect())
    }
}

/// Deletes by age: $1 the age, $2 the maximum number of rows.
fn by_age(table: &CleanupTable) -> String {
    let CleanupTable { name, at, only, .. } = table;
    let order = if table.is_ordered { format!("ORDER BY t.{at}") } else { String::new() };
    // now(), not clock_timestamp(): an index scan needs a constant time. SKIP LOCKED: a row that is
    // being changed is deleted later, and several workers share the work.
    format!(
        "WITH old AS MATERIALIZED (
             SELECT t.ctid AS place FROM {name} AS t
             WHERE t.{at} < now() - $1 AND {only} {order} LIMIT $2 FOR UPDATE OF t SKIP LOCKED
         ) {}",
        gone(table)
    )
}

/// Deletes by size: $1 the bytes, $2 the maximum number of rows.
fn by_bytes(table: &CleanupTable) -> Option<String> {
    let (CleanupTable { name, at, only, .. }, size) = (table, table.size?);
    // If the table is not larger than the limit, nothing is deleted and mostly nothing is read. The
    // table size is asked for once, in a sub-SELECT; in the outer WHERE it would be computed for
    // each row.
    //
    // All row sizes are added up, but only the oldest rows are sorted. A row is deleted if it and
    // all newer rows together exceed the limit.
    Some(format!(
        "WITH total AS MATERIALIZED (
             SELECT sum({size})::bigint AS bytes FROM {name} AS t
             WHERE (SELECT pg_table_size('{name}')) > $1 AND {only}
         )
         , oldest AS MATERIALIZED (
             SELECT t.ctid AS place, t.{at} AS written, {size} AS size FROM {name} AS t
             WHERE (SELECT bytes FROM total) > $1 AND {only}
             ORDER BY t.{at}, t.ctid LIMIT $2
         )
         , old AS MATERIALIZED (
             SELECT s.place
             FROM (SELECT place, sum(size) OVER (ORDER BY written, place) - size AS older FROM oldest) AS s, total
             WHERE total.bytes - s.older > $1
         ) {}",
        gone(table)
    ))
}

fn gone(table: &CleanupTable) -> String {
    let CleanupTable { name, rest, .. } = table;
    format!(
        ", gone AS (DELETE FROM {name} AS t USING old AS o WHERE t.ctid = o.place RETURNING t.*) {rest}
         SELECT count(*) AS count FROM gone"
    )
}
