//! The messages of a thread that viewers are shown: bare ones, and the answers of turns.

use model::{MessageId, Metadata, Position, Role, ThreadId, Timestamp};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::{at, thread_bucket};
use crate::row::{message_id, metadata, role, unsigned};
use crate::{Store, StoreError};

/// A message as its viewers saw it while it was streamed: the answer of a turn holds the text of all its steps.
#[derive(Debug, Clone, PartialEq)]
pub struct ShownMessage {
    /// Its place in the thread.
    pub position: Position,
    /// Its id.
    pub message_id: MessageId,
    /// Who speaks.
    pub role: Role,
    /// Its whole text.
    pub content: String,
    /// The final chunk's metadata.
    pub metadata: Metadata,
    /// The attempt that produced it.
    pub attempt: u32,
}

impl Store {
    /// At most `limit` messages of the thread after `after` that viewers are shown, in the order of their positions.
    pub async fn shown_after(
        &self,
        thread: &ThreadId,
        after: Position,
        limit: u32,
    ) -> Result<Vec<ShownMessage>, StoreError> {
        let statement = sqlx::query(include_str!("messages/shown.sql"))
            .bind(thread_bucket(thread))
            .bind(thread.as_str())
            .bind(after.get())
            .bind(i64::from(limit));
        self.rows(statement).await?.iter().map(shown).collect()
    }

    /// The position of the last message of the thread that viewers are shown.
    pub async fn last_shown(&self, thread: &ThreadId) -> Result<Option<Position>, StoreError> {
        let statement = sqlx::query(include_str!("messages/last_shown.sql"))
            .bind(thread_bucket(thread))
            .bind(thread.as_str());
        let rows = self.rows(statement).await?;
        Ok(rows.first().map(|row| row.try_get("position")).transpose()?.map(Position::from_stored))
    }

    /// The last answer to a person in the thread, and when it was written.
    pub async fn last_answer(&self, thread: &ThreadId) -> Result<Option<(MessageId, Timestamp)>, StoreError> {
        let statement = sqlx::query(include_str!("messages/last_answer.sql"))
            .bind(thread_bucket(thread))
            .bind(thread.as_str());
        let rows = self.rows(statement).await?;
        rows.first().map(|row| Ok((message_id(row)?, at(row, "created_ms")?))).transpose()
    }
}

fn shown(row: &PgRow) -> Result<ShownMessage, StoreError> {
    Ok(ShownMessage {
        position: Position::from_stored(row.try_get("position")?),
        message_id: message_id(row)?,
        role: role(row)?,
        content: row.try_get("content")?,
        metadata: metadata(row)?,
        attempt: unsigned(row, "attempt")?,
    })
}
