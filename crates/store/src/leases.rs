//! Leases: which worker owns which partition, and for how long.
//!
//! A lease is only a hint to other workers about when they may take a partition. Safety comes from
//! the fence of every write of an owner. The fence consists of the epoch, which rises with every
//! grant, and the numbers of commits and saves, which rise with every write. All rows are locked in
//! the order of their ids, so statements cannot deadlock.

use std::time::Duration;

use model::{Mark, PartitionCount, PartitionId, Seq, Timestamp};
use partition::{Incident, IncidentKind, StreamPlace};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::StoreError;
use crate::incidents::BY_ITSELF;
use crate::row::{interval, partition_id, unsigned};
use crate::store::Store;

/// The live workers at the time of a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveWorkers {
    /// Sorted ids of the live workers, including the caller.
    pub workers: Vec<String>,
    /// The caller's index among them.
    pub rank: usize,
}

impl LiveWorkers {
    /// The number of partitions that the caller should own, out of `count`. Shares of workers
    /// differ by at most one and add up to `count`.
    pub fn share(&self, count: PartitionCount) -> usize {
        let (count, workers) = (usize::from(count.get()), self.workers.len().max(1));
        count / workers + usize::from(self.rank < count % workers)
    }
}

/// A lease that was just granted, with a new epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pub partition: PartitionId,
    pub epoch: u64,
    /// The number of commits of the partition.
    pub commits: u64,
    /// All stream entries up to this one have been processed.
    pub checkpoint: Seq,
    /// The stream that the checkpoint belongs to; `None` before the first [`Store::rebase`].
    pub incarnation: Option<String>,
    /// The highest millisecond used in a position.
    pub position_high_water: Timestamp,
    /// The database time of the grant.
    pub granted_at: Timestamp,
    /// The last entry that the owner had read when it decided the newest commit.
    pub read: Option<Mark>,
}

/// The state that the store has acknowledged to the owner of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied {
    pub partition: PartitionId,
    /// The epoch of the grant.
    pub epoch: u64,
    /// The number of commits of the partition.
    pub commits: u64,
    /// The minimum number of saves of the partition: see [`Store::saves`].
    pub saves: u64,
    /// The checkpoint of the last commit.
    pub checkpoint: Seq,
    /// The highest millisecond that the owner may have used in a position.
    pub position_high_water: Timestamp,
}

impl From<&Grant> for Applied {
    fn from(grant: &Grant) -> Self {
        Self {
            partition: grant.partition,
            epoch: grant.epoch,
            commits: grant.commits,
            saves: 0,
            checkpoint: grant.checkpoint,
            position_high_water: grant.position_high_water,
        }
    }
}

/// A renewed lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renewed {
    pub partition: PartitionId,
    /// The number of unacknowledged incidents of the partition.
    pub incidents: u64,
}

/// The caller's lease under a new epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reclaimed {
    /// The state to start from.
    pub grant: Grant,
    /// True if the store had less than it had acknowledged to the owner, or had a lower epoch than
    /// others know of. An incident records this.
    pub stepped_back: bool,
}

impl Store {
    /// Keeps the worker registered for another `ttl`, and returns the live workers.
    pub async fn heartbeat(&self, worker: &str, ttl: Duration) -> Result<LiveWorkers, StoreError> {
        let statement = sqlx::query(include_str!("leases/heartbeat.sql")).bind(worker).bind(interval(ttl));
        live_workers(worker, &self.rows(statement).await?)
    }

    /// Returns the live workers without sending a heartbeat. The caller counts as live.
    pub async fn live_workers(&self, worker: &str) -> Result<LiveWorkers, StoreError> {
        let others =
            "SELECT worker_id FROM workers WHERE lease_until > clock_timestamp() AND worker_id <> $1";
        live_workers(worker, &self.rows(sqlx::query(others).bind(worker)).await?)
    }

    /// Ends the worker's heartbeats, so that others do not wait until they expire. The leases of
    /// the worker do not change.
    pub async fn deregister(&self, worker: &str) -> Result<(), StoreError> {
        self.rows(sqlx::query("DELETE FROM workers WHERE worker_id = $1").bind(worker)).await.map(drop)
    }

    /// Takes at most `max` partitions that are free or have an expired lease, each with a new
    /// epoch.
    ///
    /// A partition whose row is locked, for example by a commit in flight, is skipped; the caller
    /// should try again.
    pub async fn acquire(&self, worker: &str, ttl: Duration, max: usize) -> Result<Vec<Grant>, StoreError> {
        let statement = sqlx::query(include_str!("leases/acquire.sql"))
            .bind(worker)
            .bind(interval(ttl))
            .bind(i64::try_from(max).unwrap_or(i64::MAX));
        self.rows(statement).await?.iter().map(grant).collect()
    }

    /// The number of partitions without an owner or with an expired lease.
    pub async fn unowned_partitions(&self) -> Result<u64, StoreError> {
        let statement = "SELECT count(*) AS unowned FROM partitions
             WHERE owner IS NULL OR lease_until IS NULL OR lease_until <= clock_timestamp()";
        let rows = self.rows(sqlx::query(statement)).await?;
        rows.first().map_or(Ok(0), |row| unsigned(row, "unowned"))
    }

    /// Renews leases to `ttl` from now. Returns the leases that the worker still holds, in a store
    /// that has not gone back in time, ordered by id.
    pub async fn renew(
        &self,
        worker: &str,
        ttl: Duration,
        held: &[Applied],
    ) -> Result<Vec<Renewed>, StoreError> {
        if held.is_empty() {
            return Ok(Vec::new());
        }
        let statement = sqlx::query(include_str!("leases/renew.sql"))
            .bind(worker)
            .bind(interval(ttl))
            .bind(held.iter().map(|it| it.partition.0 as i16).collect::<Vec<_>>())
            .bind(held.iter().map(|it| it.epoch as i64).collect::<Vec<_>>())
            .bind(held.iter().map(|it| it.commits as i64).collect::<Vec<_>>())
            .bind(held.iter().map(|it| it.saves as i64).collect::<Vec<_>>());
        let mut still = self.rows(statement).await?.iter().map(renewed).collect::<Result<Vec<_>, _>>()?;
        still.sort_unstable_by_key(|renewed| renewed.partition);
        Ok(still)
    }

    /// Releases a partition, so that another worker may take it at once. Returns false when the
    /// lease was lost already.
    pub async fn release(
        &self,
        worker: &str,
        partition: PartitionId,
        epoch: u64,
    ) -> Result<bool, StoreError> {
        let statement = sqlx::query(
            "UPDATE partitions SET owner = NULL, lease_until = clock_timestamp(), updated_at = clock_timestamp()
             WHERE partition_id = $1 AND epoch = $2 AND owner = $3
             RETURNING partition_id",
        );
        let statement = statement.bind(partition.0 as i16).bind(epoch as i64).bind(worker);
        Ok(!self.rows(statement).await?.is_empty())
    }

    /// Raises the epoch of a partition that the worker owns. Call it after a commit with an
    /// uncertain outcome, a lease that was not renewed, or notice of a higher epoch.
    ///
    /// A doubtful statement that is running holds the row's lock, and this function waits for it.
    /// One that has not started is fenced. Afterwards the state of the store is authoritative:
    /// rebuild the partition from this grant. Returns `None` when the lease is lost. A wait longer
    /// than the lock timeout is an error; try again.
    ///
    /// `seen_epoch` is the highest epoch of the partition that others know of, or 0. The new epoch
    /// is above it. A store with only lower epochs has gone back in time.
    pub async fn reclaim(
        &self,
        worker: &str,
        known: &Applied,
        seen_epoch: u64,
        ttl: Duration,
    ) -> Result<Option<Reclaimed>, StoreError> {
        let statement = sqlx::query(include_str!("leases/reclaim.sql"))
            .bind(worker)
            .bind(interval(ttl))
            .bind(known.partition.0 as i16)
            .bind(known.epoch as i64)
            .bind(known.commits as i64)
            .bind(known.checkpoint.0 as i64)
            .bind(known.position_high_water.0)
            .bind(BY_ITSELF)
            .bind(seen_epoch.max(known.epoch) as i64)
            .bind(known.saves as i64);
        let reclaimed =
            |row: &PgRow| Ok(Reclaimed { grant: grant(row)?, stepped_back: row.try_get("stepped_back")? });
        self.rows(statement).await?.first().map(reclaimed).transpose()
    }

    /// Sets the checkpoint for a stream that has changed, possibly to a lower sequence. Also stores
    /// the identity of that stream and records the loss. Returns the resulting grant. Returns
    /// `None` when the lease is lost or the store has gone back in time.
    pub async fn rebase(
        &self,
        worker: &str,
        grant: &Grant,
        place: &StreamPlace,
        incarnation: &str,
    ) -> Result<Option<Grant>, StoreError> {
        let incidents = &place.incidents;
        let statement = sqlx::query(include_str!("leases/rebase.sql"))
            .bind(worker)
            .bind(grant.partition.0 as i16)
            .bind(grant.epoch as i64)
            .bind(grant.commits as i64)
            .bind(place.checkpoint.0 as i64)
            .bind(incarnation)
            .bind(place.read.map_or(0, |mark| mark.seq.0 as i64))
            .bind(place.read.map(|mark| mark.stored_at_ns))
            .bind(incidents.iter().map(|it| it.incarnation.clone()).collect::<Vec<_>>())
            .bind(incidents.iter().map(|it| it.first.0 as i64).collect::<Vec<_>>())
            .bind(incidents.iter().map(|it| it.kind.name()).collect::<Vec<_>>())
            .bind(incidents.iter().map(|it| it.last.map(|last| last.0 as i64)).collect::<Vec<_>>())
            .bind(incidents.iter().map(detail).collect::<Vec<_>>());
        let is_moved = !self.rows(statement).await?.is_empty();
        Ok(is_moved.then(|| Grant {
            commits: grant.commits + 1,
            checkpoint: place.checkpoint,
            incarnation: Some(incarnation.to_owned()),
            read: place.read,
            ..grant.clone()
        }))
    }
}

/// The description of a stream incident for operators.
fn detail(incident: &Incident) -> &'static str {
    match incident.kind {
        IncidentKind::StoreSteppedBack => "Postgres went back in time",
        IncidentKind::StreamRenewed => {
            "the stream was created again: what the old one had from here on and was not committed is lost; the new one is read from its beginning"
        }
        IncidentKind::StreamParted => {
            "the stream lost its end: what it had from here on and was not committed is lost; what it has now is read from its beginning"
        }
        IncidentKind::EntriesGone => "the store needs these entries and the stream has purged or lost them",
    }
}

fn live_workers(worker: &str, others: &[PgRow]) -> Result<LiveWorkers, StoreError> {
    let mut workers =
        others.iter().map(|row| row.try_get("worker_id")).collect::<Result<Vec<String>, _>>()?;
    workers.push(worker.to_owned());
    workers.sort_unstable();
    let rank = workers.iter().position(|id| id == worker).unwrap_or_default();
    Ok(LiveWorkers { workers, rank })
}

fn grant(row: &PgRow) -> Result<Grant, StoreError> {
    Ok(Grant {
        partition: partition_id(row)?,
        epoch: unsigned(row, "epoch")?,
        commits: unsigned(row, "commits")?,
        checkpoint: Seq(unsigned(row, "checkpoint")?),
        incarnation: row.try_get("incarnation")?,
        position_high_water: Timestamp(row.try_get("position_ms")?),
        granted_at: Timestamp(row.try_get("granted_at_ms")?),
        read: mark(row)?,
    })
}

pub(crate) fn mark(row: &PgRow) -> Result<Option<Mark>, StoreError> {
    let seq = Seq(unsigned(row, "read_seq")?);
    let stored_at_ns: Option<i64> = row.try_get("read_at_ns")?;
    Ok(stored_at_ns.map(|stored_at_ns| Mark { seq, stored_at_ns }))
}

fn renewed(row: &PgRow) -> Result<Renewed, StoreError> {
    Ok(Renewed { partition: partition_id(row)?, incidents: unsigned(row, "incidents")? })
}
