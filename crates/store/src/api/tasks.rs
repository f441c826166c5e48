//! Reads of tasks with their status, which is derived from the head of the queue and the failure
//! marks.

use model::{AgentId, Metadata, Position, TaskId, TaskKind, Timestamp};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::agents::COUNTED_TASKS;
use super::{agent_bucket, timestamp, timestamp_opt};
use crate::error::StoreError;
use crate::row::{count, metadata, parse_column};
use crate::store::Store;

/// The status of a task. There is no status for a task in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskStatus {
    /// The task waits, or its turn is running.
    Pending,
    /// The turn of the task is in the history.
    Completed,
    /// The task has failed for good.
    Failed,
}

impl TaskStatus {
    pub const ALL: [Self; 3] = [Self::Pending, Self::Completed, Self::Failed];

    /// The name in JSON and in the view.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == name)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct TaskRow {
    /// The position in the queue.
    pub position: Position,
    pub task: TaskId,
    pub kind: TaskKind,
    pub status: TaskStatus,
    pub content: String,
    pub metadata: Metadata,
    /// Set when the status is failed.
    pub failure: Option<TaskFailure>,
    /// When it entered the queue (database clock).
    pub created_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskFailure {
    pub code: String,
    pub text: String,
    /// Time of the failure by the database clock.
    pub at: Timestamp,
}

impl Store {
    /// Lists at most `limit` tasks of the agent after `after`, in queue order.
    pub async fn tasks(
        &self,
        agent: &AgentId,
        status: Option<TaskStatus>,
        after: Position,
        limit: u32,
    ) -> Result<Vec<TaskRow>, StoreError> {
        let sql = match status {
            None => include_str!("tasks/all.sql"),
            Some(TaskStatus::Pending) => include_str!("tasks/pending.sql"),
            Some(TaskStatus::Completed) => include_str!("tasks/completed.sql"),
            Some(TaskStatus::Failed) => include_str!("tasks/failed.sql"),
        };
        let statement = sqlx::query(sql)
            .bind(agent_bucket(agent))
            .bind(agent.as_str())
            .bind(after.get())
            .bind(i64::from(limit));
        self.rows(statement).await?.iter().map(task_row).collect()
    }

    pub async fn task(&self, agent: &AgentId, task: &TaskId) -> Result<Option<TaskRow>, StoreError> {
        let statement = sqlx::query(include_str!("tasks/one.sql"))
            .bind(agent_bucket(agent))
            .bind(agent.as_str())
            .bind(task.as_str());
        self.rows(statement).await?.first().map(task_row).transpose()
    }

    /// Number of the agent's pending tasks before this position; counting stops at
    /// [`COUNTED_TASKS`].
    pub async fn tasks_ahead(&self, agent: &AgentId, position: Position) -> Result<u64, StoreError> {
        let statement = sqlx::query(include_str!("tasks/ahead.sql"))
            .bind(agent_bucket(agent))
            .bind(agent.as_str())
            .bind(position.get())
            .bind(COUNTED_TASKS);
        count(&self.rows(statement).await?)
    }

    /// [`model::Task::digest`] of the task with this id.
    pub async fn task_digest(&self, agent: &AgentId, task: &TaskId) -> Result<Option<u64>, StoreError> {
        let statement =
            sqlx::query("SELECT digest FROM task_ids WHERE bucket = $1 AND agent_id = $2 AND task_id = $3")
                .bind(agent_bucket(agent))
                .bind(agent.as_str())
                .bind(task.as_str());
        let rows = self.rows(statement).await?;
        Ok(rows.first().map(|row| row.try_get::<i64, _>("digest")).transpose()?.map(i64::cast_unsigned))
    }
}

fn task_row(row: &PgRow) -> Result<TaskRow, StoreError> {
    let failed_at = timestamp_opt(row, "failed_ms")?;
    let failure = match failed_at {
        Some(at) => {
            Some(TaskFailure { code: row.try_get("failure_code")?, text: row.try_get("failure_text")?, at })
        }
        None => None,
    };
    Ok(TaskRow {
        position: Position::from_stored(row.try_get("position")?),
        task: parse_column(row, "task_id", TaskId::parse)?,
        kind: parse_column(row, "kind", |name| TaskKind::from_name(name).ok_or("no such kind"))?,
        status: parse_column(row, "status", |name| TaskStatus::from_name(name).ok_or("no such status"))?,
        content: row.try_get("content")?,
        metadata: metadata(row)?,
        failure,
        created_at: timestamp(row, "created_ms")?,
    })
}
