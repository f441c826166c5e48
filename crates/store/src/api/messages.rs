//! Ends of the messages of a thread that subscribers see. An end is an answer of a turn, a message
//! without a turn, or a failed message.

use std::time::Duration;

use model::{BatchType, IdRange, MessageId, Metadata, Position, Role, ThreadId, Timestamp};
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::{thread_bucket, timestamp};
use crate::error::StoreError;
use crate::row::{batch_type, message_id, metadata, missing, role, unsigned};
use crate::store::Store;

/// A row that belongs to an end: the message itself, the input that it answers, an earlier step of
/// an answer, a tool result, or a failure.
#[derive(Debug, Clone, PartialEq)]
pub struct EndRow {
    pub position: Position,
    pub message_id: MessageId,
    /// The type of its batch.
    pub batch_type: BatchType,
    pub role: Role,
    /// The attempt that produced it.
    pub attempt: u32,
    pub said: EndContent,
}

/// The content of an [`EndRow`].
#[derive(Debug, Clone, PartialEq)]
pub enum EndContent {
    /// A persisted message.
    Message {
        content: String,
        /// Calls of an assistant message, as a JSON array.
        tool_calls: Option<Value>,
        /// The call that a tool message answers.
        tool_call_id: Option<String>,
        /// The metadata of the final chunk.
        metadata: Metadata,
        /// Time of the message.
        created_at: Timestamp,
    },
    /// A message that failed for good.
    Failure {
        /// See [`model::MessageFailure::code`].
        code: String,
        text: String,
        /// Ids of chunks that never arrived.
        missing: Vec<IdRange>,
        is_retryable: bool,
    },
}

/// Upper bound for the difference between positions of ends that are stored at the same time.
/// Positions differ because clocks differ, and because an owner may be paused after it has assigned
/// positions.
const CLOCK_SKEW: Duration = Duration::from_secs(60);

/// Rows of the messages of a thread that ended after a position.
#[derive(Debug, Clone, PartialEq)]
pub struct EndRows {
    /// True if a message is stored at the position itself, or the position is 0. False when the
    /// message was deleted or the store has gone back in time.
    pub has_after: bool,
    /// Ordered by position. The rows of an answer are adjacent: its input comes first, the answer
    /// last.
    pub rows: Vec<EndRow>,
}

impl Store {
    /// Reads at most `limit` rows of the messages that ended in the thread after `after` and up to
    /// `through`.
    pub async fn ends(
        &self,
        thread: &ThreadId,
        after: Position,
        through: Position,
        limit: u32,
    ) -> Result<EndRows, StoreError> {
        let statement = sqlx::query(include_str!("messages/ends.sql"))
            .bind(thread_bucket(thread))
            .bind(thread.as_str())
            .bind(after.get())
            .bind(through.get())
            .bind(i64::from(limit) + 1);
        let mut rows: Vec<EndRow> =
            self.rows(statement).await?.iter().map(end_row).collect::<Result<_, _>>()?;
        let has_after = rows.first().is_some_and(|first| first.position == after);
        rows.drain(..usize::from(has_after));
        rows.truncate(limit as usize);
        Ok(EndRows { has_after: has_after || after.get() == 0, rows })
    }

    /// The position at which a subscriber that has seen everything up to `place` must resume, if
    /// nothing is stored at `place`. This is the last end that is older by more than the clock
    /// skew, or 0 without such an end.
    ///
    /// Returns `None` if the store has not gone back in time: retention deletes messages of the
    /// thread, or the failure at `place` is no longer kept.
    pub async fn end_to_go_back_to(
        &self,
        thread: &ThreadId,
        place: Position,
    ) -> Result<Option<Position>, StoreError> {
        let statement = sqlx::query(include_str!("messages/is_lost.sql"))
            .bind(thread_bucket(thread))
            .bind(thread.as_str())
            .bind(place.get())
            .bind(place.timestamp().0);
        let rows = self.rows(statement).await?;
        let is_lost = rows.first().map(|row| row.try_get("is_lost")).transpose()?;
        if is_lost != Some(true) {
            return Ok(None);
        }
        let end = self.last_end(thread, place.before(CLOCK_SKEW)).await?;
        Ok(Some(end.unwrap_or(Position::from_stored(0))))
    }

    /// The position of the thread's last end up to `through`.
    pub async fn last_end(
        &self,
        thread: &ThreadId,
        through: Position,
    ) -> Result<Option<Position>, StoreError> {
        let statement = sqlx::query(include_str!("messages/last_end.sql"))
            .bind(thread_bucket(thread))
            .bind(thread.as_str())
            .bind(through.get());
        let rows = self.rows(statement).await?;
        let position = rows.first().map(|row| row.try_get::<Option<i64>, _>("position")).transpose()?;
        Ok(position.flatten().map(Position::from_stored))
    }

    /// The position at which a message of the thread ended; `None` if no end of it is stored.
    pub async fn end_of(
        &self,
        thread: &ThreadId,
        message: &MessageId,
    ) -> Result<Option<Position>, StoreError> {
        let statement = sqlx::query(
            "SELECT position FROM messages WHERE bucket = $1 AND thread_id = $2 AND message_id = $3
             UNION ALL
             SELECT position FROM failed_messages WHERE bucket = $1 AND thread_id = $2 AND message_id = $3
             LIMIT 1",
        )
        .bind(thread_bucket(thread))
        .bind(thread.as_str())
        .bind(message.as_str());
        let rows = self.rows(statement).await?;
        Ok(rows.first().map(|row| row.try_get("position")).transpose()?.map(Position::from_stored))
    }

    /// The last answer in the thread to an input that a client has sent, and when it was written.
    /// Answers of follow-ups and continuations are not considered.
    pub async fn last_answer(
        &self,
        thread: &ThreadId,
        with_continuations: bool,
    ) -> Result<Option<(MessageId, Timestamp)>, StoreError> {
        let statement = sqlx::query(include_str!("messages/last_answer.sql"))
            .bind(thread_bucket(thread))
            .bind(thread.as_str())
            .bind(with_continuations);
        let rows = self.rows(statement).await?;
        rows.first().map(|row| Ok((message_id(row)?, timestamp(row, "created_ms")?))).transpose()
    }
}

fn end_row(row: &PgRow) -> Result<EndRow, StoreError> {
    let said = match row.try_get::<Option<String>, _>("code")? {
        None => EndContent::Message {
            content: row.try_get("content")?,
            tool_calls: row.try_get("tool_calls")?,
            tool_call_id: row.try_get("tool_call_id")?,
            metadata: metadata(row)?,
            created_at: timestamp(row, "created_ms")?,
        },
        Some(code) => EndContent::Failure {
            code,
            text: row.try_get("text")?,
            missing: missing(&row.try_get("missing")?),
            is_retryable: row.try_get("is_retryable")?,
        },
    };
    Ok(EndRow {
        position: Position::from_stored(row.try_get("position")?),
        message_id: message_id(row)?,
        batch_type: batch_type(row)?,
        role: role(row)?,
        attempt: unsigned(row, "attempt")?,
        said,
    })
}
