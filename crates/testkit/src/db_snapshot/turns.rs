//! The tables of turns, tasks and agents.

use anyhow::Result;
use serde_json::Value;
use sqlx::PgPool;

use crate::from_row;

from_row! {
    /// A message of a thread, with the columns that show where it came from.
    #[derive(Debug, Clone)]
    pub struct TurnMessage {
        pub thread_id: String,
        /// Unique within the thread.
        pub message_id: String,
        pub position: i64,
        /// The position of the previous message in the thread.
        pub parent_id: Option<i64>,
        /// The position of its batch's first message.
        pub batch_id: i64,
        /// Number within the batch.
        pub sequence_num: i32,
        /// The kind of input that the batch began with.
        pub batch_type: String,
        pub role: String,
        pub content: String,
        /// The calls of an assistant message.
        pub tool_calls: Option<Value>,
        /// The call that a tool message answers.
        pub tool_call_id: Option<String>,
        pub metadata: Value,
        /// The attempt that produced it.
        pub attempt: i64,
        /// The transaction that wrote it.
        pub transaction: i64,
    }
}

from_row! {
    /// An agent's queue.
    #[derive(Debug, Clone)]
    pub struct StoredAgent {
        pub agent_id: String,
        /// All tasks up to this position are done or marked failed.
        pub head_position: i64,
        /// How often the task after the head has failed.
        pub head_run: i32,
        /// Failures since the last success.
        pub backoff_attempt_count: i32,
        /// When the backoff ends, ms since 1970 by the database's clock.
        pub next_run_ms: Option<f64>,
        /// Remaining backoff, ms by the database's clock.
        pub left_ms: Option<f64>,
        /// Length of the backoff when it began, ms since the failure.
        pub delay_ms: Option<f64>,
        /// If true, no task starts.
        pub paused: bool,
        /// Code of the last failure of the head.
        pub error_code: Option<String>,
        /// The transaction that last wrote it.
        pub transaction: i64,
    }
}

from_row! {
    /// A task with its status, from the view.
    #[derive(Debug, Clone)]
    pub struct StoredTask {
        pub agent_id: String,
        /// Position in the queue.
        pub position: i64,
        pub task_id: String,
        /// `task`, `work_request` or `memory`.
        pub kind: String,
        /// `pending`, `completed` or `failed`.
        pub status: String,
        pub content: String,
        pub metadata: Value,
        /// Why it failed.
        pub failure_code: Option<String>,
    }
}

from_row! {
    /// The input of a failed turn.
    #[derive(Debug, Clone)]
    pub struct StoredFailedTurn {
        pub thread_id: String,
        pub turn_id: String,
        pub agent_id: String,
        /// The run that failed.
        pub run: i32,
        /// The text of the input.
        pub content: String,
        pub code: String,
        /// Failure text for people.
        pub text: String,
        /// Whether a retry may help.
        pub is_retryable: bool,
    }
}

from_row! {
    /// An entry of the audit.
    #[derive(Debug, Clone)]
    pub struct StoredAct {
        /// The agent or thread that was concerned.
        pub subject_id: String,
        /// The actor of the action.
        pub actor: String,
        pub action: String,
        /// The task or turn.
        pub target: Option<String>,
        /// Why the action was not executed; `None` if it was.
        pub error: Option<String>,
        /// Age of the entry, ms by the database's clock.
        pub age_ms: f64,
    }
}

const MESSAGES: &str =
    "SELECT thread_id, message_id, position, parent_id, batch_id, sequence_num, batch_type, role, content, tool_calls,
            tool_call_id, metadata, attempt, xmin::text::bigint AS transaction
     FROM messages";

/// The messages of a thread, by position.
pub async fn of_thread(pool: &PgPool, thread: &str) -> Result<Vec<TurnMessage>> {
    let sql = sqlx::AssertSqlSafe(format!("{MESSAGES} WHERE thread_id = $1 ORDER BY position"));
    Ok(sqlx::query_as(sql).bind(thread).fetch_all(pool).await?)
}

/// The messages of all threads, by thread and position.
pub async fn messages(pool: &PgPool) -> Result<Vec<TurnMessage>> {
    let sql = sqlx::AssertSqlSafe(format!("{MESSAGES} ORDER BY thread_id, position"));
    Ok(sqlx::query_as(sql).fetch_all(pool).await?)
}

/// One agent's queue; `None` if it has none.
pub async fn agent(pool: &PgPool, agent: &str) -> Result<Option<StoredAgent>> {
    Ok(agents(pool).await?.into_iter().find(|row| row.agent_id == agent))
}

pub async fn agents(pool: &PgPool) -> Result<Vec<StoredAgent>> {
    let rows = sqlx::query_as(
        "SELECT agent_id, head_position, head_run, backoff_attempt_count, paused, error_code,
                extract(epoch FROM backoff_next_run_at)::float8 * 1000 AS next_run_ms,
                extract(epoch FROM backoff_next_run_at - clock_timestamp())::float8 * 1000 AS left_ms,
                extract(epoch FROM backoff_next_run_at - error_at)::float8 * 1000 AS delay_ms,
                xmin::text::bigint AS transaction
         FROM agents ORDER BY agent_id",
    );
    Ok(rows.fetch_all(pool).await?)
}

/// All tasks, by agent and position.
pub async fn tasks(pool: &PgPool) -> Result<Vec<StoredTask>> {
    let rows = sqlx::query_as(
        "SELECT agent_id, position, task_id, kind, status, content, metadata, failure_code
         FROM agent_tasks ORDER BY agent_id, position",
    );
    Ok(rows.fetch_all(pool).await?)
}

/// The tasks of one agent, by position.
pub async fn tasks_of(pool: &PgPool, agent: &str) -> Result<Vec<StoredTask>> {
    Ok(tasks(pool).await?.into_iter().filter(|task| task.agent_id == agent).collect())
}

pub async fn failed_turns(pool: &PgPool) -> Result<Vec<StoredFailedTurn>> {
    let rows = sqlx::query_as(
        "SELECT thread_id, turn_id, agent_id, run, content, code, text, is_retryable
         FROM failed_turns ORDER BY thread_id, turn_id",
    );
    Ok(rows.fetch_all(pool).await?)
}

/// The audit of a subject, oldest first.
pub async fn acts(pool: &PgPool, subject: &str) -> Result<Vec<StoredAct>> {
    let rows = sqlx::query_as(
        "SELECT subject_id, actor, action, target, error,
                extract(epoch FROM clock_timestamp() - created_at)::float8 * 1000 AS age_ms
         FROM audit_log WHERE subject_id = $1 ORDER BY created_at",
    );
    Ok(rows.bind(subject).fetch_all(pool).await?)
}

/// Number of entries in the audit.
pub async fn count_acts(pool: &PgPool) -> Result<usize> {
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM audit_log").fetch_one(pool).await?;
    Ok(usize::try_from(count)?)
}

from_row! {
    /// The usage of one model call.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct StoredUsage {
        pub thread_id: String,
        /// The answer, or the id that it would have had.
        pub message_id: String,
        pub output_tokens: i64,
        /// The answer did not complete.
        pub is_partial: bool,
    }
}

/// The ledger, by thread, answer and call.
pub async fn usage(pool: &PgPool) -> Result<Vec<StoredUsage>> {
    let rows = sqlx::query_as("SELECT * FROM usage ORDER BY thread_id, message_id, call");
    Ok(rows.fetch_all(pool).await?)
}

/// Counts of rows that wait for something: saved inputs, and batches of the outbox.
pub async fn unsettled(pool: &PgPool) -> Result<(i64, i64)> {
    let row = sqlx::query_as("SELECT (SELECT count(*) FROM spilled_turns), (SELECT count(*) FROM outbox)");
    Ok(row.fetch_one(pool).await?)
}
