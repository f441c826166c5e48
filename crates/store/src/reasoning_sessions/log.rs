//! The discarded log: pages of messages that compressions have replaced, and single messages in
//! full.

use std::fmt;
use std::str::FromStr;

use model::{ReasoningSessionId, Timestamp};
use reasoning::{DISCARDED_SHOWN_CHARS, Layer, LayerId, Number, Runs, SUMMARY_SHOWN_CHARS, SessionMessage};
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::calls_of;
use super::values::{bucket, number, role_of, stored};
use crate::error::StoreError;
use crate::row::column_error;
use crate::store::Store;

/// Maximum number of originals per page, so that a page is short whatever was compressed.
const PAGE_ORIGINALS: u64 = 100;
/// Maximum number of calls listed per original.
const PAGE_CALLS: usize = 16;

/// The start of a page of the discarded log: `<layer>.<number of its originals on earlier pages>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiscardedCursor {
    /// The newest compression of the page.
    pub layer: LayerId,
    /// The number of its originals on earlier pages.
    pub skipped: u64,
}

/// The text is not a cursor of the discarded log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it must be `next` of the page before, two numbers with a dot between them")]
pub struct InvalidDiscardedCursor;

impl FromStr for DiscardedCursor {
    type Err = InvalidDiscardedCursor;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| {
            let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u32>().ok().filter(|_| is_decimal).map(u64::from)
        };
        let (layer, skipped) = text.split_once('.').ok_or(InvalidDiscardedCursor)?;
        let (layer, skipped) = number(layer).zip(number(skipped)).ok_or(InvalidDiscardedCursor)?;
        Ok(Self { layer, skipped })
    }
}

impl fmt::Display for DiscardedCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.layer, self.skipped)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscardedPage {
    /// Compressions, newest first. The first and the last one may have only part of their
    /// originals.
    pub layers: Vec<DiscardedLayer>,
    /// Where the next page begins; `None` on the last one.
    pub next: Option<DiscardedCursor>,
}

/// A compression with what it has replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscardedLayer {
    /// The compression. [`Layer::replaced`] has only the numbers of the originals on this page, and
    /// [`Layer::shown`] is empty.
    pub layer: Layer,
    /// The text that replaces the originals: at most [`SUMMARY_SHOWN_CHARS`] characters of it.
    pub summary: String,
    /// Number of characters of the whole summary.
    pub summary_chars: u32,
    /// The number of replaced messages.
    pub count: u64,
    /// The number of these messages on earlier pages.
    pub skipped: u64,
    /// The replaced messages on this page, in their original order.
    pub originals: Vec<DiscardedMessage>,
    pub actor: String,
    /// When the messages were compressed.
    pub at: Timestamp,
    /// The actor and time of the undo.
    pub undone: Option<(String, Timestamp)>,
}

/// A replaced message in the form that a page shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscardedMessage {
    /// The message, with at most [`DISCARDED_SHOWN_CHARS`] characters of its texts, and without
    /// arguments and signatures.
    pub message: SessionMessage,
    /// Number of characters of its whole content.
    pub chars: u32,
}

/// One message of a session, if it exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadReasoningMessage {
    /// The highest number in the session.
    pub last_number: Number,
    /// The message with the requested number, whether visible or compressed.
    pub message: Option<SessionMessage>,
}

impl Store {
    /// A page of the discarded log of a session: at most `limit` compressions, newest first.
    pub async fn discarded_reasoning(
        &self,
        id: &ReasoningSessionId,
        from: Option<DiscardedCursor>,
        limit: u32,
    ) -> Result<DiscardedPage, StoreError> {
        let statement = sqlx::query(include_str!("discarded.sql"))
            .bind(bucket(id))
            .bind(id.as_str().to_owned())
            .bind(from.map_or(i64::MAX, |from| stored(from.layer)))
            .bind(from.map_or(0, |from| i32::try_from(from.skipped).unwrap_or(i32::MAX)))
            .bind(i64::from(limit))
            .bind(stored(PAGE_ORIGINALS))
            .bind(DISCARDED_SHOWN_CHARS as i32)
            .bind(SUMMARY_SHOWN_CHARS as i32);
        let layers =
            self.rows(statement).await?.iter().map(discarded).collect::<Result<Vec<DiscardedLayer>, _>>()?;
        let next = layers.last().and_then(|last| {
            let (layer, seen) = (last.layer.id, last.skipped + last.originals.len() as u64);
            if seen < last.count {
                return Some(DiscardedCursor { layer, skipped: seen });
            }
            (layer > 1).then(|| DiscardedCursor { layer: layer - 1, skipped: 0 })
        });
        Ok(DiscardedPage { layers, next })
    }

    /// A message of a session in full, whether visible or compressed; `None` if the session does
    /// not exist.
    pub async fn reasoning_message(
        &self,
        id: &ReasoningSessionId,
        number: Number,
    ) -> Result<Option<ReadReasoningMessage>, StoreError> {
        let statement = sqlx::query(include_str!("message.sql"))
            .bind(bucket(id))
            .bind(id.as_str().to_owned())
            .bind(stored(number));
        let rows = self.rows(statement).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let last_number = row.try_get::<i64, _>("last_number")?.unsigned_abs();
        let is_there = row.try_get::<Option<i64>, _>("number")?.is_some();
        let message = is_there.then(|| whole(row, number)).transpose()?;
        Ok(Some(ReadReasoningMessage { last_number, message }))
    }
}

fn discarded(row: &PgRow) -> Result<DiscardedLayer, StoreError> {
    let originals: Value = row.try_get("originals")?;
    let originals = originals.as_array().map_or(&[][..], Vec::as_slice).iter().map(original);
    let originals = originals.collect::<Result<Vec<_>, _>>()?;
    let undone: (Option<String>, Option<i64>) = (row.try_get("undone_by")?, row.try_get("undone_ms")?);
    Ok(DiscardedLayer {
        layer: Layer {
            id: number(row.try_get("layer_id")?),
            previous: number(row.try_get("previous_id")?),
            replaced: originals.iter().map(|original| original.message.number).collect(),
            summary: number(row.try_get("summary_number")?),
            shown: Runs::default(),
            is_undone: row.try_get("is_undone")?,
        },
        summary: row.try_get("summary")?,
        summary_chars: row.try_get::<i32, _>("summary_chars")?.unsigned_abs(),
        count: number(row.try_get("size")?),
        skipped: number(row.try_get("skipped")?),
        originals,
        actor: row.try_get("actor")?,
        at: Timestamp(row.try_get("created_ms")?),
        undone: undone.1.map(|at| (undone.0.unwrap_or_default(), Timestamp(at))),
    })
}

fn original(value: &Value) -> Result<DiscardedMessage, StoreError> {
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    let count = |key: &str| value[key].as_u64().ok_or_else(|| column_error("originals", value));
    let mut calls = calls_of(&value["calls"], &Value::Null);
    calls.truncate(PAGE_CALLS);
    let message = SessionMessage {
        number: count("number")?,
        in_temp: value["in_temp"].as_bool().unwrap_or_default(),
        role: role_of(value["role"].as_str().unwrap_or_default())?,
        content: text("content").unwrap_or_default(),
        thinking: text("thinking"),
        signature: None,
        calls,
        answers: text("answers"),
        tool: text("tool"),
    };
    Ok(DiscardedMessage { message, chars: u32::try_from(count("chars")?).unwrap_or(u32::MAX) })
}

fn whole(row: &PgRow, number: Number) -> Result<SessionMessage, StoreError> {
    let json =
        |column: &str| Ok::<_, StoreError>(row.try_get::<Option<Value>, _>(column)?.unwrap_or_default());
    Ok(SessionMessage {
        number,
        in_temp: row.try_get("in_temp")?,
        role: role_of(row.try_get("role")?)?,
        content: row.try_get("content")?,
        thinking: row.try_get("thinking")?,
        signature: row.try_get("signature")?,
        calls: calls_of(&json("calls")?, &json("call_details")?),
        answers: row.try_get("answers")?,
        tool: row.try_get("tool")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_read_as_they_are_written() {
        let cursor = DiscardedCursor { layer: 12, skipped: 100 };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        for wrong in ["", "1", "1.", ".1", "1.2.3", "+1.2", "a.b", "99999999999.0", "1. 2"] {
            assert_eq!(wrong.parse::<DiscardedCursor>(), Err(InvalidDiscardedCursor), "{wrong:?}");
        }
    }
}
