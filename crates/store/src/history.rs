//! Reading a thread.

use model::{BatchType, MessageId, Position, Role, ThreadId, Timestamp};
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::StoreError;
use crate::row::{batch_type, message_id, role, unsigned};
use crate::store::Store;

/// Which part of a thread to read; both ends are left out of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Range {
    /// Only messages after this position.
    pub after: Option<Position>,
    /// Only messages before this position.
    pub before: Option<Position>,
    /// Also those that the system made up (`synthetic: true` in the metadata), which people do not see.
    pub with_synthetic: bool,
}

/// A message as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredMessage {
    /// Its place in the thread.
    pub position: Position,
    /// Its id.
    pub message_id: MessageId,
    /// The position of the batch's first message.
    pub batch_id: Position,
    /// Its number in the thread, which never changes; `None` until it is given one.
    pub number: Option<u64>,
    /// Its number in the batch, from 0.
    pub sequence_num: i32,
    /// What the batch began with.
    pub batch_type: BatchType,
    /// Who speaks.
    pub role: Role,
    /// Its text.
    pub content: String,
    /// Calls of an assistant message, as a JSON array.
    pub tool_calls: Option<Value>,
    /// Which call a tool message answers.
    pub tool_call_id: Option<String>,
    /// The final chunk's metadata; always an object.
    pub metadata: Value,
    /// Tokens used, if known.
    pub token_count: Option<i64>,
    /// The position of its predecessor in the thread; `None` for the first message.
    pub parent: Option<Position>,
    /// The attempt that produced it.
    pub attempt: u32,
    /// When it was written, by the database's clock.
    pub created_at: Timestamp,
}

impl Store {
    /// At most `limit` messages of the thread within `range`, in the order of their positions; `None` when there is no
    /// such thread.
    ///
    /// With `before` alone these are the last ones before it; otherwise the first ones after `after`.
    pub async fn history(
        &self,
        thread: &ThreadId,
        range: Range,
        limit: u32,
    ) -> Result<Option<Vec<StoredMessage>>, StoreError> {
        let backwards = range.before.is_some() && range.after.is_none();
        let sql = if backwards {
            include_str!("history/backwards.sql")
        } else {
            include_str!("history/forwards.sql")
        };
        let statement = sqlx::query(sql)
            .bind(thread.bucket().get() as i16)
            .bind(thread.as_str())
            .bind(range.after.map_or(i64::MIN, Position::get))
            .bind(range.before.map_or(i64::MAX, Position::get))
            .bind(i64::from(limit))
            .bind(range.with_synthetic);
        let rows = self.rows(statement).await?;
        if rows.is_empty() {
            return Ok(None);
        }
        // A thread without such messages has one row without a message.
        let mut messages =
            rows.iter().filter_map(|row| message(row).transpose()).collect::<Result<Vec<_>, _>>()?;
        if backwards {
            messages.reverse();
        }
        Ok(Some(messages))
    }
}

/// The message of a row; `None` when its position is NULL.
pub(crate) fn message(row: &PgRow) -> Result<Option<StoredMessage>, StoreError> {
    let Some(position) = row.try_get::<Option<i64>, _>("position")? else { return Ok(None) };
    Ok(Some(StoredMessage {
        position: Position::from_stored(position),
        message_id: message_id(row)?,
        batch_id: Position::from_stored(row.try_get("batch_id")?),
        number: row.try_get::<Option<i32>, _>("number")?.map(|number| number.unsigned_abs().into()),
        sequence_num: row.try_get("sequence_num")?,
        batch_type: batch_type(row)?,
        role: role(row)?,
        content: row.try_get("content")?,
        tool_calls: row.try_get("tool_calls")?,
        tool_call_id: row.try_get("tool_call_id")?,
        metadata: row.try_get("metadata")?,
        token_count: row.try_get("token_count")?,
        parent: row.try_get::<Option<i64>, _>("parent_id")?.map(Position::from_stored),
        attempt: unsigned(row, "attempt")?,
        created_at: Timestamp(row.try_get("created_ms")?),
    }))
}
