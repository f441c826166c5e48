//! A standby that answers reads which may be slightly stale.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sqlx::Row;
use tokio::time::{Instant, sleep};

use crate::config::{StoreConfig, TenantScope};
use crate::error::StoreError;
use crate::store::Store;

/// How often the lag of the standby is measured.
const MEASURED_EVERY: Duration = Duration::from_millis(250);

/// A standby of the database, used while its lag is known to be small enough. Cheap to clone.
///
/// The lag is measured without clocks: the primary reports how much it has written, and the standby
/// how much of that it has replayed. If the standby has replayed everything that the primary had
/// written at a moment, its data is at most as old as that moment.
#[derive(Debug, Clone, Default)]
pub struct Replica {
    store: Arc<OnceLock<Store>>,
    is_near: Arc<AtomicBool>,
}

/// The state of a standby.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplicaState {
    /// The standby is used; the maximum age of its data.
    Behind(Duration),
    /// The standby is not used, for this reason.
    Unusable(String),
}

impl Replica {
    /// The standby with the scope of `primary`, if its lag is small enough.
    pub fn near(&self, primary: &Store) -> Option<Store> {
        let store = self.store.get().filter(|_| self.is_near.load(Ordering::Relaxed))?;
        Some(store.seeing_as(primary))
    }

    /// Stops using the standby after an error, until its lag has been measured again.
    pub fn avoid(&self) {
        self.is_near.store(false, Ordering::Relaxed);
    }

    /// Connects to the standby and measures it forever. `report` receives each measurement.
    pub async fn follow(
        self,
        config: StoreConfig,
        primary: Store,
        max_lag: Duration,
        mut report: impl FnMut(ReplicaState),
    ) {
        let mut written = VecDeque::new();
        loop {
            let state = match self.standby(&config).await {
                Ok(standby) => measure(&primary, standby, &mut written, max_lag).await,
                Err(error) => Err(error),
            };
            let state = state.unwrap_or_else(|error| ReplicaState::Unusable(error.to_string()));
            self.is_near.store(matches!(state, ReplicaState::Behind(_)), Ordering::Relaxed);
            report(state);
            sleep(MEASURED_EVERY).await;
        }
    }

    async fn standby(&self, config: &StoreConfig) -> Result<&Store, StoreError> {
        if let Some(store) = self.store.get() {
            return Ok(store);
        }
        let store = Store::connect(config).await?;
        // The role at the standby may differ from the one at the primary.
        if config.tenant_scope != TenantScope::All && store.bypasses_rls().await? {
            tracing::warn!(
                "the role of the standby passes row-level security: only the gateway separates tenants there"
            );
        }
        Ok(self.store.get_or_init(|| store))
    }
}

/// A moment, and the log position of the primary at that moment, in bytes.
type WritePosition = (Instant, i64);

async fn measure(
    primary: &Store,
    standby: &Store,
    written: &mut VecDeque<WritePosition>,
    max_lag: Duration,
) -> Result<ReplicaState, StoreError> {
    let asked_at = Instant::now();
    let (cluster, position) = primary.write_position().await?;
    written.push_back((asked_at, position));
    let (standby_cluster, replayed) = standby.replay_position().await?;
    if cluster != standby_cluster {
        return Ok(ReplicaState::Unusable("it is no standby of the database of DATABASE_URL".to_owned()));
    }
    let Some(replayed) = replayed else {
        return Ok(ReplicaState::Unusable("it is a primary".to_owned()));
    };
    let now = Instant::now();
    Ok(match lag(written, replayed, max_lag, now) {
        Some(lag) => ReplicaState::Behind(lag),
        None => ReplicaState::Unusable(format!("it is more than {} ms behind", max_lag.as_millis())),
    })
}

/// The maximum age of the replayed data; `None`: older than `max_lag`. Removes measurements that
/// are older.
fn lag(
    written: &mut VecDeque<WritePosition>,
    replayed: i64,
    max_lag: Duration,
    now: Instant,
) -> Option<Duration> {
    while written.front().is_some_and(|(at, _)| now - *at > max_lag) {
        written.pop_front();
    }
    let (at, _) = written.iter().rev().find(|(_, position)| *position <= replayed)?;
    Some(now - *at)
}

impl Store {
    /// The cluster id and the write position of a primary.
    async fn write_position(&self) -> Result<(i64, i64), StoreError> {
        let sql = "SELECT system_identifier, (pg_current_wal_lsn() - '0/0')::bigint AS position FROM pg_control_system()";
        let rows = self.rows(sqlx::query(sql)).await?;
        let row = rows.first().ok_or_else(|| StoreError::Row("no position".to_owned()))?;
        Ok((row.try_get("system_identifier")?, row.try_get("position")?))
    }

    /// The cluster id of a standby and its replay position. The position is `None` if the server is
    /// not a standby.
    async fn replay_position(&self) -> Result<(i64, Option<i64>), StoreError> {
        let sql = "SELECT system_identifier,
                   CASE WHEN pg_is_in_recovery() THEN (pg_last_wal_replay_lsn() - '0/0')::bigint END AS position
            FROM pg_control_system()";
        let rows = self.rows(sqlx::query(sql)).await?;
        let row = rows.first().ok_or_else(|| StoreError::Row("no position".to_owned()))?;
        Ok((row.try_get("system_identifier")?, row.try_get("position")?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_is_the_age_of_the_newest_position_that_is_replayed() {
        let begun = Instant::now();
        let at = |ms: u64| begun + Duration::from_millis(ms);
        let written = || VecDeque::from([(at(0), 10), (at(250), 20), (at(500), 20), (at(750), 30)]);
        let lag = |replayed: i64, max_ms: u64, now_ms: u64| {
            let max_lag = Duration::from_millis(max_ms);
            super::lag(&mut written(), replayed, max_lag, at(now_ms)).map(|lag| lag.as_millis())
        };
        assert_eq!(lag(30, 1_000, 760), Some(10));
        assert_eq!(
            lag(29, 1_000, 760),
            Some(260),
            "of two moments with the same position the later one counts"
        );
        assert_eq!(lag(19, 1_000, 760), Some(760));
        assert_eq!(lag(19, 700, 760), None, "too old");
        assert_eq!(lag(9, 1_000, 760), None);
        let mut old = written();
        super::lag(&mut old, 30, Duration::from_millis(300), at(800));
        assert_eq!(old.len(), 2, "what is too old is forgotten");
    }
}
