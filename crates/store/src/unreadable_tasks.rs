//! Marks tasks with unreadable rows as failed, so that their queues continue after them.

use model::{AgentId, Bucket, Position};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::StoreError;
use crate::store::Store;

#[derive(Debug)]
pub(crate) struct UnreadableTask {
    agent: AgentId,
    position: Position,
    /// Describes why the row is unreadable.
    text: String,
}

impl UnreadableTask {
    pub(crate) fn of(row: &PgRow, agent: &AgentId, error: &StoreError) -> Result<Self, StoreError> {
        let position = Position::from_stored(row.try_get("position")?);
        Ok(Self { agent: agent.clone(), position, text: error.to_string() })
    }
}

impl Store {
    /// Marks unreadable tasks as failed, so that their queues continue after them.
    pub(crate) async fn fail_unreadable(&self, tasks: &[UnreadableTask]) -> Result<(), StoreError> {
        if tasks.is_empty() {
            return Ok(());
        }
        for UnreadableTask { agent, position, text } in tasks {
            tracing::error!(%agent, %position, text, "a task cannot be read and is marked failed");
        }
        let statement = sqlx::query(include_str!("unreadable_tasks/fail.sql"))
            .bind(
                tasks.iter().map(|task| Bucket::of_key(task.agent.as_str()).get() as i16).collect::<Vec<_>>(),
            )
            .bind(tasks.iter().map(|task| task.agent.to_string()).collect::<Vec<_>>())
            .bind(tasks.iter().map(|task| task.position.get()).collect::<Vec<_>>())
            .bind(tasks.iter().map(|task| task.text.replace('\0', "\u{fffd}")).collect::<Vec<_>>());
        self.rows(statement).await.map(drop)
    }
}
