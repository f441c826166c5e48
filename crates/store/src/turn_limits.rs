//! What is used of the limits of turns, by all workers together.

use std::time::Duration;

use scheduling::turn_limits::TurnLimit;

use crate::error::StoreError;
use crate::row::interval;
use crate::store::Store;

/// A limit of whose key nothing has begun for so long is as one that was never used.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);

/// What a worker runs of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldTurns {
    /// [`TurnLimit::key`].
    pub key: String,
    /// Turns that run now.
    pub running: u64,
    /// Tokens that turns have used that have ended since this was said last.
    pub tokens: u64,
}

impl Store {
    /// Lets a turn begin that comes under these limits, in the order of their keys, and counts it for `worker`, as long as that says within
    /// `held_for` what it runs. `Some`: it may not begin, and may be tried again in so long, ms; where it waits for another turn to end: `busy`.
    pub async fn admit_turn(
        &self,
        worker: &str,
        limits: &[TurnLimit],
        held_for: Duration,
        busy: Duration,
    ) -> Result<Option<i64>, StoreError> {
        let column = |number: fn(&TurnLimit) -> Option<u32>| -> Vec<Option<i64>> {
            limits.iter().map(|limit| number(limit).map(i64::from)).collect()
        };
        let statement = sqlx::query("SELECT antiphon_admit_turn($1, $2, $3, $4, $5, $6, $7) AS wait_ms")
            .bind(worker.to_owned())
            .bind(interval(held_for))
            .bind(limits.iter().map(|limit| limit.key.clone()).collect::<Vec<_>>())
            .bind(column(|limit| limit.limit.turns_at_once))
            .bind(column(|limit| limit.limit.turns_per_minute))
            .bind(column(|limit| limit.limit.tokens_per_minute))
            .bind(i64::try_from(busy.as_millis()).unwrap_or(i64::MAX));
        let rows = self.rows(statement).await?;
        let row = rows.first().ok_or_else(|| StoreError::Row("no answer about limits".to_owned()))?;
        Ok(sqlx::Row::try_get(row, "wait_ms")?)
    }

    /// Says what `worker` runs, in the place of what it said before and of what [`Store::admit_turn`] has counted since. A repetition after an
    /// unknown outcome may count tokens twice.
    pub async fn hold_turns(
        &self,
        worker: &str,
        held: &[HeldTurns],
        held_for: Duration,
    ) -> Result<(), StoreError> {
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let statement = sqlx::query(include_str!("turn_limits/hold.sql"))
            .bind(worker.to_owned())
            .bind(interval(held_for))
            .bind(held.iter().map(|held| held.key.clone()).collect::<Vec<_>>())
            .bind(held.iter().map(|held| number(held.running)).collect::<Vec<_>>())
            .bind(held.iter().map(|held| number(held.tokens)).collect::<Vec<_>>());
        self.rows(statement).await.map(drop)
    }

    /// Deletes what is known of limits that nothing has come under for an hour.
    pub async fn forget_unused_limits(&self) -> Result<(), StoreError> {
        let sql = "DELETE FROM turn_limits WHERE refilled_at < clock_timestamp() - $1 AND tokens_left >= 0";
        self.rows(sqlx::query(sql).bind(interval(FORGOTTEN_AFTER))).await.map(drop)
    }
}
