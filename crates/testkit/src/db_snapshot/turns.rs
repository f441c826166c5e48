//! The tables of turns, tasks and agents.

use anyhow::Result;
use serde_json::Value;
use sqlx::PgPool;

use crate::from_row;

from_row! {
    /// A message of a thread with what shows how it came there.
    #[derive(Debug, Clone)]
    pub struct TurnMessage {
        /// Its thread.
        pub thread_id: String,
        /// Its id in the thread.
        pub message_id: String,
        /// Its place.
        pub position: i64,
        /// The position of its predecessor.
        pub parent_id: Option<i64>,
        /// The position of its batch's first message.
        pub batch_id: i64,
        /// Its number in the batch.
        pub sequence_num: i32,
        /// Why the batch began.
        pub batch_type: String,
        /// Who speaks.
        pub role: String,
        /// Its text.
        pub content: String,
        /// The calls of an assistant.
        pub tool_calls: Option<Value>,
        /// The call that a tool's message answers.
        pub tool_call_id: Option<String>,
        /// Its metadata.
        pub metadata: Value,
        /// The attempt that it comes from.
        pub attempt: i64,
        /// The transaction that wrote it.
        pub transaction: i64,
    }
}

from_row! {
    /// An agent's queue.
    #[derive(Debug, Clone)]
    pub struct StoredAgent {
        /// Which.
        pub agent_id: String,
        /// All tasks up to here are done or marked failed.
        pub head_position: i64,
        /// How often the task after the head has failed.
        pub head_run: i32,
        /// Failures since the last success.
        pub backoff_attempt_count: i32,
        /// When the backoff ends, ms since 1970 by the database's clock.
        pub next_run_ms: Option<f64>,
        /// For how long it lasts still, ms by the database's clock.
        pub left_ms: Option<f64>,
        /// How long it was when it began, ms: from the failure on.
        pub delay_ms: Option<f64>,
        /// Tasks do not start.
        pub paused: bool,
        /// Why the head failed last.
        pub error_code: Option<String>,
        /// The transaction that wrote it last.
        pub transaction: i64,
    }
}

from_row! {
    /// A task with its status, as the view shows it.
    #[derive(Debug, Clone)]
    pub struct StoredTask {
        /// Whose.
        pub agent_id: String,
        /// Its place in the queue.
        pub position: i64,
        /// Its id.
        pub task_id: String,
        /// `task`, `work_request` or `memory`.
        pub kind: String,
        /// `pending`, `completed` or `failed`.
        pub status: String,
        /// Its text.
        pub content: String,
        /// Its metadata.
        pub metadata: Value,
        /// Why it failed.
        pub failure_code: Option<String>,
    }
}

from_row! {
    /// The input of a turn that failed.
    #[derive(Debug, Clone)]
    pub struct StoredFailedTurn {
        /// Where.
        pub thread_id: String,
        /// Which.
        pub turn_id: String,
        /// Whose.
        pub agent_id: String,
        /// The run that failed.
        pub run: i32,
        /// The text of the input.
        pub content: String,
        /// Why.
        pub code: String,
        /// Why, for people.
        pub text: String,
        /// Whether trying again may help.
        pub is_retryable: bool,
    }
}

from_row! {
    /// An act in the audit.
    #[derive(Debug, Clone)]
    pub struct StoredAct {
        /// Whom it concerned.
        pub subject_id: String,
        /// Who did it.
        pub actor: String,
        /// What.
        pub action: String,
        /// The task or turn.
        pub target: Option<String>,
        /// Why it was not done.
        pub error: Option<String>,
        /// How long ago, ms by the database's clock.
        pub age_ms: f64,
    }
}

const MESSAGES: &str =
    "SELECT thread_id, message_id, position, parent_id, batch_id, sequence_num, batch_type, role, content, tool_calls,
            tool_call_id, metadata, attempt, xmin::text::bigint AS transaction
     FROM messages";

/// The messages of a thread in their order.
pub async fn of_thread(pool: &PgPool, thread: &str) -> Result<Vec<TurnMessage>> {
    let sql = sqlx::AssertSqlSafe(format!("{MESSAGES} WHERE thread_id = $1 ORDER BY position"));
    Ok(sqlx::query_as(sql).bind(thread).fetch_all(pool).await?)
}

/// The messages of all threads, by thread and position.
pub async fn messages(pool: &PgPool) -> Result<Vec<TurnMessage>> {
    let sql = sqlx::AssertSqlSafe(format!("{MESSAGES} ORDER BY thread_id, position"));
    Ok(sqlx::query_as(sql).fetch_all(pool).await?)
}

/// One agent's queue; `None` while it has none.
pub async fn agent(pool: &PgPool, agent: &str) -> Result<Option<StoredAgent>> {
    Ok(agents(pool).await?.into_iter().find(|row| row.agent_id == agent))
}

/// All queues.
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

/// The tasks of one agent in their order.
pub async fn tasks_of(pool: &PgPool, agent: &str) -> Result<Vec<StoredTask>> {
    Ok(tasks(pool).await?.into_iter().filter(|task| task.agent_id == agent).collect())
}

/// All failed turns.
pub async fn failed_turns(pool: &PgPool) -> Result<Vec<StoredFailedTurn>> {
    let rows = sqlx::query_as(
        "SELECT thread_id, turn_id, agent_id, run, content, code, text, is_retryable
         FROM failed_turns ORDER BY thread_id, turn_id",
    );
    Ok(rows.fetch_all(pool).await?)
}

/// The acts on a subject, oldest first.
pub async fn acts(pool: &PgPool, subject: &str) -> Result<Vec<StoredAct>> {
    let rows = sqlx::query_as(
        "SELECT subject_id, actor, action, target, error,
                extract(epoch FROM clock_timestamp() - created_at)::float8 * 1000 AS age_ms
         FROM audit_log WHERE subject_id = $1 ORDER BY created_at",
    );
    Ok(rows.bind(subject).fetch_all(pool).await?)
}

/// How many acts the audit has.
pub async fn count_acts(pool: &PgPool) -> Result<usize> {
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM audit_log").fetch_one(pool).await?;
    Ok(usize::try_from(count)?)
}

from_row! {
    /// What one call of a model has used.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct StoredUsage {
        /// The thread of the answer.
        pub thread_id: String,
        /// The answer, or what would have been it.
        pub message_id: String,
        /// Tokens that were written.
        pub output_tokens: i64,
        /// The answer did not come to its end.
        pub is_partial: bool,
    }
}

/// The ledger, by thread, answer and call.
pub async fn usage(pool: &PgPool) -> Result<Vec<StoredUsage>> {
    let rows = sqlx::query_as("SELECT * FROM usage ORDER BY thread_id, message_id, call");
    Ok(rows.fetch_all(pool).await?)
}

/// Rows that wait for something: saved inputs and batches of the outbox.
pub async fn unsettled(pool: &PgPool) -> Result<(i64, i64)> {
    let row = sqlx::query_as("SELECT (SELECT count(*) FROM spilled_turns), (SELECT count(*) FROM outbox)");
    Ok(row.fetch_one(pool).await?)
}
