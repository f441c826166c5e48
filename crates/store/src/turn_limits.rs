//! Usage of the limits on turns, shared by all workers.

use std::collections::BTreeMap;
use std::time::Duration;

use model::TurnId;
use scheduling::turn_limits::TurnLimit;

use crate::error::StoreError;
use crate::row::interval;
use crate::store::Store;

/// If no turn has begun under the key of a limit for this time, the limit is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);

/// Time without a report after which a worker counts as gone and its turns are no longer continued.
const GONE_AFTER: Duration = Duration::from_secs(600);

/// The key of a limit, and a turn that counts for it.
pub type LimitedTurn = (String, TurnId);

/// Changes of turns at a worker since its last report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeldTurns {
    /// Running turns that the worker has taken over without asking for admission.
    pub entered: Vec<LimitedTurn>,
    /// Turns that no longer run, as far as they are counted for this worker.
    pub ended: Vec<LimitedTurn>,
    /// Turns whose ends the worker has committed, including turns admitted by another worker.
    pub finished: Vec<TurnId>,
    /// Tokens used by ended turns, by key.
    pub tokens: BTreeMap<String, u64>,
}

impl Store {
    /// Admits a turn under these limits, in the order of their keys, and counts it for `worker`.
    /// The count stays valid while the worker reports within `held_for`. A turn that was counted
    /// for another worker is then counted for this one.
    ///
    /// `Some`: the turn must not begin yet; try again after this many ms. The value is `busy` if
    /// the turn waits for another turn to end.
    pub async fn admit_turn(
        &self,
        worker: &str,
        turn: &TurnId,
        limits: &[TurnLimit],
        held_for: Duration,
        busy: Duration,
    ) -> Result<Option<i64>, StoreError> {
        let column = |number: fn(&TurnLimit) -> Option<u32>| -> Vec<Option<i64>> {
            limits.iter().map(|limit| number(limit).map(i64::from)).collect()
        };
        let statement = sqlx::query("SELECT antiphon_admit_turn($1, $2, $3, $4, $5, $6, $7, $8) AS wait_ms")
            .bind(worker.to_owned())
            .bind(interval(held_for))
            .bind(turn.as_str().to_owned())
            .bind(limits.iter().map(|limit| limit.key.clone()).collect::<Vec<_>>())
            .bind(column(|limit| limit.limit.turns_at_once))
            .bind(column(|limit| limit.limit.turns_per_minute))
            .bind(column(|limit| limit.limit.tokens_per_minute))
            .bind(i64::try_from(busy.as_millis()).unwrap_or(i64::MAX));
        let rows = self.rows(statement).await?;
        let row = rows.first().ok_or_else(|| StoreError::Row("no answer about limits".to_owned()))?;
        Ok(sqlx::Row::try_get(row, "wait_ms")?)
    }

    /// Reports that `worker` is alive, with its changes. Repeated after an unknown outcome, it may
    /// count tokens twice.
    pub async fn hold_turns(
        &self,
        worker: &str,
        held: &HeldTurns,
        held_for: Duration,
    ) -> Result<(), StoreError> {
        let columns = |turns: &[LimitedTurn]| -> (Vec<String>, Vec<String>) {
            turns.iter().map(|(key, turn)| (key.clone(), turn.as_str().to_owned())).unzip()
        };
        let (entered, ended) = (columns(&held.entered), columns(&held.ended));
        let tokens = held.tokens.values().map(|tokens| i64::try_from(*tokens).unwrap_or(i64::MAX));
        let statement = sqlx::query(include_str!("turn_limits/hold.sql"))
            .bind(worker.to_owned())
            .bind(interval(held_for))
            .bind(entered.0)
            .bind(entered.1)
            .bind(ended.0)
            .bind(ended.1)
            .bind(held.tokens.keys().cloned().collect::<Vec<_>>())
            .bind(tokens.collect::<Vec<_>>())
            .bind(held.finished.iter().map(|turn| turn.as_str().to_owned()).collect::<Vec<_>>());
        self.rows(statement).await.map(drop)
    }

    /// Deletes limits unused for an hour, workers that are gone, and all turns of `worker` except
    /// these.
    pub async fn forget_unused_limits(&self, worker: &str, turns: &[TurnId]) -> Result<(), StoreError> {
        let statement = sqlx::query(include_str!("turn_limits/forget.sql"))
            .bind(interval(FORGOTTEN_AFTER))
            .bind(interval(GONE_AFTER))
            .bind(worker.to_owned())
            .bind(turns.iter().map(|turn| turn.as_str().to_owned()).collect::<Vec<_>>());
        self.rows(statement).await.map(drop)
    }
}
