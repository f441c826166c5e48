//! Who owns which partition, and for how long.
//!
//! A lease is courtesy: it says when others may take a partition. Safety is the epoch alone, which rises with every
//! grant and is checked inside every commit. All rows are locked in the order of their ids, so that nobody waits in a
//! circle.

use std::time::Duration;

use model::{PartitionCount, PartitionId, Seq, Timestamp};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::row::{interval, unsigned};
use crate::{Store, StoreError};

/// The live workers, as of one heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fleet {
    /// Ids of the live workers in order, the caller among them.
    pub workers: Vec<String>,
    /// The caller's place among them, from 0.
    pub rank: usize,
}

impl Fleet {
    /// How many of `count` partitions the caller should own: shares differ by at most one and add up to `count`.
    pub fn share(&self, count: PartitionCount) -> usize {
        let (count, workers) = (usize::from(count.get()), self.workers.len().max(1));
        count / workers + usize::from(self.rank < count % workers)
    }
}

/// A lease just granted, under a new epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The partition.
    pub partition: PartitionId,
    /// The new epoch.
    pub epoch: u64,
    /// Everything in the stream up to here has been used.
    pub checkpoint: Seq,
    /// The stream that the checkpoint counts in; `None` before the first [`Store::rebase`].
    pub incarnation: Option<String>,
    /// The highest millisecond used in a position.
    pub position_high_water: Timestamp,
}

impl Store {
    /// Says that the worker lives for another `ttl`, and asks who else does.
    pub async fn heartbeat(&self, worker: &str, ttl: Duration) -> Result<Fleet, StoreError> {
        let statement = sqlx::query(include_str!("leases/heartbeat.sql")).bind(worker).bind(interval(ttl));
        fleet(worker, &self.rows(statement).await?)
    }

    /// Asks who lives, without saying anything of the worker, which counts as one of them.
    pub async fn fleet(&self, worker: &str) -> Result<Fleet, StoreError> {
        let others =
            "SELECT worker_id FROM workers WHERE lease_until > clock_timestamp() AND worker_id <> $1";
        fleet(worker, &self.rows(sqlx::query(others).bind(worker)).await?)
    }

    /// Ends the worker's heartbeats, so that others need not wait for them to run out. Its leases are not touched.
    pub async fn retire(&self, worker: &str) -> Result<(), StoreError> {
        self.rows(sqlx::query("DELETE FROM workers WHERE worker_id = $1").bind(worker)).await.map(drop)
    }

    /// Takes at most `max` partitions that are free or whose lease has run out, each under a new epoch.
    ///
    /// A partition whose row is locked, by a commit under way say, is passed over: ask again.
    pub async fn acquire(&self, worker: &str, ttl: Duration, max: usize) -> Result<Vec<Grant>, StoreError> {
        let statement = sqlx::query(include_str!("leases/acquire.sql"))
            .bind(worker)
            .bind(interval(ttl))
            .bind(i64::try_from(max).unwrap_or(i64::MAX));
        self.rows(statement).await?.iter().map(grant).collect()
    }

    /// Prolongs leases to `ttl` from now, and says which of them are still held, in order of their ids.
    pub async fn renew(
        &self,
        worker: &str,
        ttl: Duration,
        held: &[(PartitionId, u64)],
    ) -> Result<Vec<PartitionId>, StoreError> {
        if held.is_empty() {
            return Ok(Vec::new());
        }
        let statement = sqlx::query(include_str!("leases/renew.sql"))
            .bind(worker)
            .bind(interval(ttl))
            .bind(held.iter().map(|(partition, _)| partition.0 as i16).collect::<Vec<_>>())
            .bind(held.iter().map(|(_, epoch)| *epoch as i64).collect::<Vec<_>>());
        let mut still =
            self.rows(statement).await?.iter().map(partition_id).collect::<Result<Vec<_>, _>>()?;
        still.sort_unstable();
        Ok(still)
    }

    /// Gives a partition back; the next one may have it at once. False when the lease was gone already.
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

    /// After a commit with an unknown outcome: raises the own epoch.
    ///
    /// This waits for the doubtful statement, which holds the row's lock while it runs, and fences it when it has not
    /// come so far. Afterwards the store tells the truth: build the partition anew from this grant. `None` when the
    /// lease is gone. A wait longer than the lock timeout is an error to be tried again.
    pub async fn reclaim(
        &self,
        worker: &str,
        partition: PartitionId,
        epoch: u64,
        ttl: Duration,
    ) -> Result<Option<Grant>, StoreError> {
        let statement = sqlx::query(
            "UPDATE partitions
             SET epoch = epoch + 1, lease_until = clock_timestamp() + $4, updated_at = clock_timestamp()
             WHERE partition_id = $1 AND epoch = $2 AND owner = $3
             RETURNING partition_id, epoch, checkpoint, incarnation, position_ms",
        );
        let statement =
            statement.bind(partition.0 as i16).bind(epoch as i64).bind(worker).bind(interval(ttl));
        self.rows(statement).await?.first().map(grant).transpose()
    }

    /// Sets the checkpoint, backwards too, for a stream that was created anew or set back, and names that stream.
    /// False when the lease is gone.
    pub async fn rebase(
        &self,
        worker: &str,
        partition: PartitionId,
        epoch: u64,
        checkpoint: Seq,
        incarnation: &str,
    ) -> Result<bool, StoreError> {
        let statement = sqlx::query(
            "UPDATE partitions SET checkpoint = $4, incarnation = $5, updated_at = clock_timestamp()
             WHERE partition_id = $1 AND epoch = $2 AND owner = $3
             RETURNING partition_id",
        );
        let statement = statement.bind(partition.0 as i16).bind(epoch as i64).bind(worker);
        Ok(!self.rows(statement.bind(checkpoint.0 as i64).bind(incarnation)).await?.is_empty())
    }
}

fn fleet(worker: &str, others: &[PgRow]) -> Result<Fleet, StoreError> {
    let mut workers =
        others.iter().map(|row| row.try_get("worker_id")).collect::<Result<Vec<String>, _>>()?;
    workers.push(worker.to_owned());
    workers.sort_unstable();
    let rank = workers.iter().position(|id| id == worker).unwrap_or_default();
    Ok(Fleet { workers, rank })
}

fn grant(row: &PgRow) -> Result<Grant, StoreError> {
    Ok(Grant {
        partition: partition_id(row)?,
        epoch: unsigned(row, "epoch")?,
        checkpoint: Seq(unsigned(row, "checkpoint")?),
        incarnation: row.try_get("incarnation")?,
        position_high_water: Timestamp(row.try_get("position_ms")?),
    })
}

pub(crate) fn partition_id(row: &PgRow) -> Result<PartitionId, StoreError> {
    let id: i16 = row.try_get("partition_id")?;
    Ok(PartitionId(id.unsigned_abs()))
}
