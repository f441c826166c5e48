//! Loads the state from which a new owner starts.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::{
    AgentId, BUCKETS, Chunk, MessageKey, ModelCall, PartitionCount, PartitionId, Position, Seq, TokenKey,
    TokenKeys, TurnOpened,
};
use partition::{OpenTurn, OutboxBatch, SavedAgent, SpilledMessage, Takeover};
use sqlx::postgres::PgRow;
use sqlx::{Row, ValueRef};

use crate::api::TURN_TOKENS_OVERLAP;
use crate::error::StoreError;
use crate::leases::Grant;
use crate::outbox;
use crate::row::{column_error, count, interval, key, opened, parse_column, queued, role, unsigned};
use crate::store::Store;
use crate::store::count_of;
use crate::unreadable_tasks::UnreadableTask;

/// Number of buckets whose queues one statement reads. Even with a million agents in a partition,
/// the statement stays below the timeout.
const BUCKETS_AT_ONCE: usize = 16;

/// Maximum number of outbox batches loaded at once.
const OUTBOX_AT_ONCE: usize = 1_000;

/// Maximum number of timers loaded at once; see [`Store::load_timers`].
const TIMERS_AT_ONCE: usize = 4_096;

impl Store {
    /// Loads the saved state of the partition: open messages and inputs, queues with their first
    /// `window` tasks each, the oldest 1,000 batches of the outbox, and the next timers.
    /// [`Store::outbox`] and [`Store::load_timers`] read the rest. Ages and waits are computed with
    /// the current time of the database clock.
    ///
    /// Call it once per grant, before the first commit under the grant. Nothing can change in
    /// between, because every other writer is fenced.
    ///
    /// # Errors
    /// [`StoreError::NotOwner`] when another grant was given before everything was read.
    pub async fn load(&self, grant: &Grant, window: usize) -> Result<Takeover, StoreError> {
        let (count, token_keys) = self.laid_out().await?;
        let buckets = buckets_of(grant.partition, count);
        let spilled_messages =
            sqlx::query(include_str!("takeover/spilled_messages.sql")).bind(i32::from(grant.partition.0));
        let (partition, epoch, checkpoint) = (grant.partition, grant.epoch, grant.checkpoint);
        let outbox = self.outbox(partition, None, OUTBOX_AT_ONCE).await?;
        let outbox_beyond = match outbox.last() {
            Some(last) if outbox.len() == OUTBOX_AT_ONCE => self.outbox_after(partition, last.id).await?,
            _ => 0,
        };
        let takeover = Takeover {
            spilled_messages: spilled_messages_of(&self.rows(spilled_messages).await?)?,
            agents: self.queues(&buckets, window).await?,
            open_turns: self.open_turns(&buckets, grant.incarnation.as_deref()).await?,
            outbox,
            outbox_beyond,
            timers: self.next_timers(&buckets, None, TIMERS_AT_ONCE).await?,
            ..Takeover::bare(
                partition,
                epoch,
                checkpoint,
                grant.position_high_water,
                grant.granted_at,
                token_keys,
            )
        };
        self.check_owner_of(partition, epoch).await?;
        Ok(takeover)
    }

    /// The valid keys of turn tokens.
    pub async fn token_keys(&self) -> Result<TokenKeys, StoreError> {
        Ok(self.laid_out().await?.1)
    }

    async fn laid_out(&self) -> Result<(PartitionCount, TokenKeys), StoreError> {
        let statement = sqlx::query(
            "SELECT partitions, token_key, token_key_version,
                    CASE WHEN token_key_changed_at > clock_timestamp() - $1 THEN previous_token_key END AS previous_token_key
             FROM installation",
        );
        let rows = self.rows(statement.bind(interval(TURN_TOKENS_OVERLAP))).await?;
        let row = rows.first().ok_or_else(|| StoreError::Row("the database is not migrated".to_owned()))?;
        let key = |column: &str, bytes: Vec<u8>| {
            TokenKey::new(&bytes).map_err(|error| column_error(column, &error))
        };
        let previous: Option<Vec<u8>> = row.try_get("previous_token_key")?;
        let previous = previous.map(|bytes| key("previous_token_key", bytes)).transpose()?;
        let version: i32 = row.try_get("token_key_version")?;
        let keys =
            TokenKeys::new(version.unsigned_abs(), key("token_key", row.try_get("token_key")?)?, previous);
        Ok((count_of(row)?, keys))
    }

    async fn queues(&self, buckets: &[i16], window: usize) -> Result<Vec<SavedAgent>, StoreError> {
        let mut agents = Vec::new();
        for buckets in buckets.chunks(BUCKETS_AT_ONCE) {
            let statement = sqlx::query(include_str!("takeover/queues.sql"))
                .bind(buckets.to_vec())
                .bind(limit_beyond(window));
            let unreadable = append_queues(&mut agents, &self.rows(statement).await?, window)?;
            self.fail_unreadable(&unreadable).await?;
        }
        Ok(agents)
    }

    async fn open_turns(
        &self,
        buckets: &[i16],
        incarnation: Option<&str>,
    ) -> Result<Vec<OpenTurn>, StoreError> {
        let statement = sqlx::query(include_str!("takeover/spilled_turns.sql"))
            .bind(buckets.to_vec())
            .bind(incarnation.unwrap_or_default().to_owned());
        let open = |row: &PgRow| {
            let actor = row.try_get::<Option<String>, _>("actor")?.map(Into::into);
            let opened = TurnOpened { actor, ..opened(row)? };
            Ok(OpenTurn { opened, seq: Seq(unsigned(row, "stream_seq")?), age_ms: row.try_get("age_ms")? })
        };
        self.rows(statement).await?.iter().map(open).collect()
    }

    /// At most `limit` unpublished batches of the partition's outbox after `after`, oldest first.
    pub async fn outbox(
        &self,
        partition: PartitionId,
        after: Option<Position>,
        limit: usize,
    ) -> Result<Vec<OutboxBatch>, StoreError> {
        let statement = sqlx::query(
            "SELECT position, entries::text FROM outbox WHERE bucket = $1 AND position > $2 ORDER BY position LIMIT $3",
        )
        .bind(i16::try_from(partition.0).unwrap_or(i16::MAX))
        .bind(after.map_or(i64::MIN, Position::get))
        .bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let batch = |row: &PgRow| {
            let id = Position::from_stored(row.try_get("position")?);
            let outgoing = parse_column(row, "entries", outbox::decoded).unwrap_or_else(|error| {
                // An unreadable batch must not block later ones, so it is skipped and not
                // published.
                tracing::error!(%partition, batch = %id, %error, "a batch of the outbox cannot be read: nothing of it is sent");
                Vec::new()
            });
            Ok(OutboxBatch { id, outgoing })
        };
        self.rows(statement).await?.iter().map(batch).collect()
    }

    /// The number of batches after this one.
    async fn outbox_after(&self, partition: PartitionId, after: Position) -> Result<usize, StoreError> {
        let statement = sqlx::query("SELECT count(*) FROM outbox WHERE bucket = $1 AND position > $2")
            .bind(i16::try_from(partition.0).unwrap_or(i16::MAX))
            .bind(after.get());
        Ok(usize::try_from(count(&self.rows(statement).await?)?).unwrap_or(usize::MAX))
    }
}

pub(crate) fn buckets_of(partition: PartitionId, count: PartitionCount) -> Vec<i16> {
    let buckets = (partition.0..BUCKETS).step_by(usize::from(count.get()));
    buckets.map(|bucket| i16::try_from(bucket).unwrap_or(i16::MAX)).collect()
}

/// One more than requested: the extra row shows whether there are more.
pub(crate) fn limit_beyond(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1)
}

/// Appends rows that are grouped by agent: one row per task, or one row without a task for an agent
/// that has none. Returns the tasks that cannot be read.
fn append_queues(
    agents: &mut Vec<SavedAgent>,
    rows: &[PgRow],
    window: usize,
) -> Result<Vec<UnreadableTask>, StoreError> {
    let (mut unreadable, mut seen) = (Vec::new(), 0);
    for row in rows {
        let id: &str = row.try_get("agent_id")?;
        if agents.last().is_none_or(|last| last.agent.as_str() != id) {
            agents.push(agent(row)?);
            seen = 0;
        }
        let Some(last) = agents.last_mut().filter(|_| !is_null(row, "position")) else { continue };
        seen += 1;
        if seen > window {
            last.more = true;
            continue;
        }
        match queued(row, &last.agent) {
            Ok(task) => last.tasks.push(task),
            Err(error) => unreadable.push(UnreadableTask::of(row, &last.agent, &error)?),
        }
    }
    Ok(unreadable)
}

fn agent(row: &PgRow) -> Result<SavedAgent, StoreError> {
    Ok(SavedAgent {
        agent: parse_column(row, "agent_id", AgentId::parse)?,
        head: Position::from_stored(row.try_get("head_position")?),
        run: row.try_get::<i32, _>("head_run")?.unsigned_abs(),
        failures: row.try_get::<i32, _>("backoff_attempt_count")?.unsigned_abs(),
        wait_ms: row.try_get("wait_ms")?,
        paused: row.try_get("paused")?,
        tasks: Vec::new(),
        more: false,
    })
}

pub(crate) fn is_null(row: &PgRow, column: &str) -> bool {
    row.try_get_raw(column).is_ok_and(|value| value.is_null())
}

/// Reads rows that are grouped by message: one row per part, in the order of the parts. Parts of
/// lower attempts come last and are ignored.
fn spilled_messages_of(rows: &[PgRow]) -> Result<Vec<SpilledMessage>, StoreError> {
    let mut spilled_messages: Vec<SpilledMessage> = Vec::new();
    for row in rows {
        let (key, attempt) = (key(row)?, unsigned(row, "attempt")?);
        let (mut chunks, part) = (Vec::new(), readable_chunks(row, &key));
        if let Some(last) = spilled_messages.last_mut().filter(|last| last.key == key) {
            if last.attempt != attempt {
                continue;
            }
            // When an earlier part was saved, a chunk of it may have been waiting. Since then it
            // may have been released and joined with others.
            let again: BTreeSet<u32> = part.iter().map(|chunk| chunk.id).collect();
            chunks.extend(last.chunks.drain(..).filter(|chunk| !again.contains(&chunk.id)));
            spilled_messages.pop();
        }
        chunks.extend(part);
        spilled_messages.push(SpilledMessage {
            key,
            attempt,
            first_chunk: 0,
            role: role(row)?,
            first_seq: Seq(unsigned(row, "first_seq")?),
            open_ms: row.try_get("open_ms")?,
            gap_ms: row.try_get("gap_ms")?,
            idle_ms: row.try_get("idle_ms")?,
            chunks,
            earlier_calls: earlier_calls(row)?,
        });
    }
    Ok(spilled_messages)
}

fn earlier_calls(row: &PgRow) -> Result<Vec<ModelCall>, StoreError> {
    match row.try_get::<Option<&str>, _>("earlier_calls")? {
        None => Ok(Vec::new()),
        Some(_) => parse_column(row, "earlier_calls", ModelCall::parse_list),
    }
}

/// The chunks of a part, or none if they are unreadable. One unreadable message must not block its
/// partition: it continues without the part, and fails because of the gap.
fn readable_chunks(row: &PgRow, key: &MessageKey) -> Vec<Arc<Chunk>> {
    saved_chunks(row).unwrap_or_else(|error| {
        tracing::error!(%key, %error, "a saved part of a message cannot be read; the message goes on without it");
        Vec::new()
    })
}

fn saved_chunks(row: &PgRow) -> Result<Vec<Arc<Chunk>>, StoreError> {
    let chunks: Vec<Chunk> =
        serde_json::from_slice(row.try_get("chunks")?).map_err(|error| column_error("chunks", &error))?;
    Ok(chunks.into_iter().map(Arc::new).collect())
}
