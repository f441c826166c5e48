//! Compactions: summaries that replace older messages in contexts. The messages themselves stay
//! stored.

use batches::Compaction;
use model::{AgentId, Bucket, Position, TaskId, ThreadId, TurnId};
use sqlx::Row;

use crate::api::TaskStatus;
use crate::error::StoreError;
use crate::store::Store;
use crate::thread_version::ThreadVersion;

/// A task that has not entered its queue after this time was never published.
const LOST_AFTER_MS: i64 = 600_000;

/// A compaction that waits for its summary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingCompaction {
    pub id: Position,
    /// The agent that writes the summary.
    pub agent: AgentId,
    /// The task of that agent.
    pub task: TaskId,
    /// Time since the compaction was added, ms.
    pub waits_ms: i64,
}

/// The state of a summary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// The summary is written.
    Text(String),
    /// The task of the summary waits or runs.
    NotYet,
    /// There will be no summary: its task failed, was dropped, or was never published.
    Never,
}

impl Store {
    /// Writes a compaction; returns false if the thread has changed since it was planned. Three
    /// conditions must hold: the previous compaction is still the newest, the message before the
    /// new id still exists, and the thread still has the version in `planned`. With `pending`, the
    /// compaction waits for its summary.
    pub async fn add_compaction(
        &self,
        thread: &ThreadId,
        compaction: &Compaction,
        planned: ThreadVersion,
        pending: Option<(&AgentId, &TaskId)>,
        actor: &str,
    ) -> Result<bool, StoreError> {
        let provenance = serde_json::to_string(&compaction.provenance);
        let statement = sqlx::query(include_str!("compactions/add.sql"))
            .bind(bucket(thread))
            .bind(thread.as_str().to_owned())
            .bind(compaction.id.get())
            .bind(compaction.through.get())
            .bind(compaction.kept.iter().map(|id| id.get()).collect::<Vec<_>>())
            .bind(compaction.summary.clone())
            .bind(compaction.strategy.name())
            .bind(provenance.unwrap_or_else(|_| "{}".to_owned()))
            .bind(compaction.previous.map(Position::get))
            .bind(actor.to_owned())
            .bind(pending.map(|(agent, _)| agent.as_str().to_owned()))
            .bind(pending.map(|(_, task)| task.as_str().to_owned()))
            .bind(planned.created_us)
            .bind(planned.revision);
        Ok(!self.rows(statement).await?.is_empty())
    }

    /// Finishes a pending compaction with its summary. `None`: there will be no summary, and the
    /// compaction never takes effect. Returns false when another caller has finished it already.
    pub async fn finish_compaction(
        &self,
        thread: &ThreadId,
        id: Position,
        summary: Option<&str>,
    ) -> Result<bool, StoreError> {
        let statement = sqlx::query(include_str!("compactions/finish.sql"))
            .bind(bucket(thread))
            .bind(thread.as_str().to_owned())
            .bind(id.get())
            .bind(summary.map(str::to_owned));
        Ok(!self.rows(statement).await?.is_empty())
    }

    /// Undoes the newest compaction, so that the one before it takes effect again. Returns `None`
    /// when there is no compaction.
    pub async fn undo_compaction(
        &self,
        thread: &ThreadId,
        actor: &str,
    ) -> Result<Option<Position>, StoreError> {
        let statement = sqlx::query(include_str!("compactions/undo.sql"))
            .bind(bucket(thread))
            .bind(thread.as_str().to_owned())
            .bind(actor.to_owned());
        let rows = self.rows(statement).await?;
        let id =
            rows.first().map(|row| row.try_get::<Option<i64>, _>("compaction_id")).transpose()?.flatten();
        Ok(id.map(Position::from_stored))
    }

    /// Finds the state of the summary that a task writes.
    pub async fn find_summary(&self, pending: &PendingCompaction) -> Result<Written, StoreError> {
        let Some(row) = self.task(&pending.agent, &pending.task).await? else {
            let is_lost = pending.waits_ms > LOST_AFTER_MS;
            return Ok(if is_lost { Written::Never } else { Written::NotYet });
        };
        match row.status {
            TaskStatus::Pending => return Ok(Written::NotYet),
            TaskStatus::Failed => return Ok(Written::Never),
            TaskStatus::Completed => {}
        }
        let input = TurnId::of_task(&pending.agent, row.position).input();
        let statement = sqlx::query(include_str!("compactions/find_summary.sql"))
            .bind(Bucket::of_key(pending.agent.as_str()).get() as i16)
            .bind(pending.agent.as_str().to_owned())
            .bind(input.as_str().to_owned());
        let rows = self.rows(statement).await?;
        let text = rows.first().map(|row| row.try_get::<String, _>("content")).transpose()?;
        Ok(text.filter(|text| !text.trim().is_empty()).map_or(Written::Never, Written::Text))
    }
}

fn bucket(thread: &ThreadId) -> i16 {
    thread.bucket().get() as i16
}
