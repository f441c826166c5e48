//! What a new owner starts from.

use std::sync::Arc;

use model::{Chunk, ChunkKind, Seq, TokenKey};
use partition::{Straggler, Takeover};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::row::{key, metadata, parsed, role, unsigned};
use crate::{Grant, Store, StoreError};

impl Store {
    /// Loads what was saved of the partition's open messages. Ages are as of now, by the database's clock.
    ///
    /// To be called once per grant and before the first commit under it: nothing can change in between, because
    /// every other writer is fenced.
    pub async fn load(&self, grant: &Grant) -> Result<Takeover, StoreError> {
        let statement = sqlx::query(include_str!("takeover/stragglers.sql")).bind(grant.partition.0 as i32);
        let rows = self.rows(statement).await?;
        let key = self.rows(sqlx::query("SELECT token_key FROM fleet")).await?;
        let key: Vec<u8> = key.first().map(|row| row.try_get("token_key")).transpose()?.unwrap_or_default();
        let key = TokenKey::new(&key).map_err(|error| StoreError::Row(error.to_string()))?;
        let (partition, epoch, checkpoint) = (grant.partition, grant.epoch, grant.checkpoint);
        Ok(Takeover {
            stragglers: stragglers(&rows)?,
            ..Takeover::bare(partition, epoch, checkpoint, grant.position_high_water, key)
        })
    }
}

/// Rows come grouped by message, one per chunk, and one without a chunk for a message that has none.
fn stragglers(rows: &[PgRow]) -> Result<Vec<Straggler>, StoreError> {
    let mut stragglers: Vec<Straggler> = Vec::new();
    for row in rows {
        let key = key(row)?;
        if stragglers.last().is_none_or(|last| last.key != key) {
            stragglers.push(Straggler {
                key,
                attempt: unsigned(row, "attempt")?,
                role: role(row)?,
                first_seq: Seq(unsigned(row, "first_seq")?),
                open_ms: row.try_get("open_ms")?,
                gap_ms: row.try_get("gap_ms")?,
                idle_ms: row.try_get("idle_ms")?,
                chunks: Vec::new(),
            });
        }
        if let (Some(chunk), Some(last)) = (chunk(row)?, stragglers.last_mut()) {
            last.chunks.push(Arc::new(chunk));
        }
    }
    Ok(stragglers)
}

fn chunk(row: &PgRow) -> Result<Option<Chunk>, StoreError> {
    let Some(id) = row.try_get::<Option<i32>, _>("chunk_id")? else { return Ok(None) };
    Ok(Some(Chunk {
        id: id.unsigned_abs(),
        kind: parsed(row, "chunk_type", |name| ChunkKind::from_name(name).ok_or("no such chunk type"))?,
        is_final: row.try_get("is_final")?,
        text: row.try_get::<String, _>("chunk")?.into(),
        metadata: metadata(row)?,
        timestamp: row.try_get::<Option<String>, _>("timestamp")?.map(Into::into),
        correlation_id: row.try_get::<Option<String>, _>("correlation_id")?.map(Into::into),
    }))
}
