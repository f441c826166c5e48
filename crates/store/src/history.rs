//! Reads the messages of a thread.

use batches::Item;
use model::{Position, ThreadId, Timestamp};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::StoreError;
use crate::row::{batch_type, message_id, metadata, role};
use crate::store::Store;

/// A range of a thread; both ends are exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Range {
    /// Only messages after this position.
    pub after: Option<Position>,
    /// Only messages before this position.
    pub before: Option<Position>,
    /// Includes synthetic messages (`synthetic: true` in the metadata), which are hidden from
    /// people.
    pub with_synthetic: bool,
}

/// A stored message and its predecessor.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredMessage {
    /// The message; invalid metadata is read as empty.
    pub item: Item,
    /// The position of the message's predecessor in the thread; `None` for the first message.
    pub parent: Option<Position>,
}

impl std::ops::Deref for StoredMessage {
    type Target = Item;

    fn deref(&self) -> &Item {
        &self.item
    }
}

impl From<StoredMessage> for Item {
    fn from(message: StoredMessage) -> Self {
        message.item
    }
}

impl Store {
    /// Reads at most `limit` messages of the thread within `range`, ordered by position. Returns
    /// `None` when the thread does not exist.
    ///
    /// With `before` alone, reads the last messages before it; otherwise the first messages after
    /// `after`.
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
        // For a thread without such messages, the statement returns one row without a message.
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
    let created_at = Timestamp(row.try_get("created_ms")?);
    let started_after_ms: Option<i32> = row.try_get("started_after_ms")?;
    let item = Item {
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
        metadata: metadata(row).unwrap_or_default(),
        token_count: row.try_get::<Option<i64>, _>("token_count")?.and_then(|count| count.try_into().ok()),
        created_at,
        started_at: started_after_ms.map(|ms| created_at.plus_ms(ms.into())),
    };
    let parent = row.try_get::<Option<i64>, _>("parent_id")?.map(Position::from_stored);
    Ok(Some(StoredMessage { item, parent }))
}
