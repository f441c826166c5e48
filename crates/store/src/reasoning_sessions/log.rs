//! The discarded log: what compressions have replaced.

use model::{ReasoningSessionId, Timestamp};
use reasoning::{Layer, LayerId, Number, Runs, SessionMessage};
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::calls_of;
use super::values::{bucket, number, role_of, stored};
use crate::error::StoreError;
use crate::row::column_error;
use crate::store::Store;

/// About so many characters of originals are in a page.
const PAGE_CHARS: i64 = 4_000_000;

/// A compression with what it has replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscardedLayer {
    /// The compression, without what it shows: [`Layer::shown`] is empty.
    pub layer: Layer,
    /// What stands for the originals.
    pub summary: String,
    /// What was replaced, in the order in which it was shown.
    pub originals: Vec<SessionMessage>,
    /// By whom,
    pub actor: String,
    /// and when.
    pub at: Timestamp,
    /// Who took it back, and when.
    pub undone: Option<(String, Timestamp)>,
}

impl Store {
    /// The discarded log of a session before a layer, the newest first; fewer than `limit` where originals are long.
    pub async fn discarded_reasoning(
        &self,
        id: &ReasoningSessionId,
        before: Option<LayerId>,
        limit: u32,
    ) -> Result<Vec<DiscardedLayer>, StoreError> {
        let statement = sqlx::query(include_str!("discarded.sql"))
            .bind(bucket(id))
            .bind(id.as_str().to_owned())
            .bind(before.map_or(i64::MAX, stored))
            .bind(i64::from(limit))
            .bind(PAGE_CHARS);
        self.rows(statement).await?.iter().map(discarded).collect()
    }
}

fn discarded(row: &PgRow) -> Result<DiscardedLayer, StoreError> {
    let originals: Value = row.try_get("originals")?;
    let replaced: Vec<i64> = row.try_get("replaced")?;
    let undone: (Option<String>, Option<i64>) = (row.try_get("undone_by")?, row.try_get("undone_ms")?);
    Ok(DiscardedLayer {
        layer: Layer {
            id: number(row.try_get("layer_id")?),
            previous: number(row.try_get("previous_id")?),
            replaced: replaced.into_iter().map(number).collect(),
            summary: number(row.try_get("summary_number")?),
            shown: Runs::default(),
            is_undone: row.try_get("is_undone")?,
        },
        summary: row.try_get("summary")?,
        originals: originals
            .as_array()
            .map_or(&[][..], Vec::as_slice)
            .iter()
            .map(message)
            .collect::<Result<_, _>>()?,
        actor: row.try_get("actor")?,
        at: Timestamp(row.try_get("created_ms")?),
        undone: undone.1.map(|at| (undone.0.unwrap_or_default(), Timestamp(at))),
    })
}

fn message(value: &Value) -> Result<SessionMessage, StoreError> {
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    let number: Number = value["number"].as_u64().ok_or_else(|| column_error("originals", value))?;
    Ok(SessionMessage {
        number,
        in_temp: value["in_temp"].as_bool().unwrap_or_default(),
        role: role_of(value["role"].as_str().unwrap_or_default())?,
        content: text("content").unwrap_or_default(),
        thinking: text("thinking"),
        calls: calls_of(&value["calls"]),
        answers: text("answers"),
        tool: text("tool"),
    })
}
