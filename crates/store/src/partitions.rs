//! The state of all partitions, for operators.

use model::{Mark, PartitionId, Seq, Timestamp};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::StoreError;
use crate::leases::mark;
use crate::row::partition_id;
use crate::row::unsigned;
use crate::store::Store;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionStatus {
    pub partition: PartitionId,
    /// The epoch of the partition's last lease.
    pub epoch: u64,
    /// The number of commits of the partition.
    pub commits: u64,
    /// The worker that owns the partition; `None` when it is free.
    pub owner: Option<String>,
    /// Time left in the lease, in ms by the database clock; negative when it has expired, `None`
    /// before the first lease.
    pub lease_left_ms: Option<i64>,
    /// All stream entries up to this one have been processed.
    pub checkpoint: Seq,
    /// The stream to which the checkpoint belongs.
    pub incarnation: Option<String>,
    /// The last entry that the owner had read when it decided the newest commit.
    pub read: Option<Mark>,
    /// The highest millisecond used in a position.
    pub position_high_water: Timestamp,
}

impl Store {
    /// All partitions, ordered by id.
    pub async fn partitions_status(&self) -> Result<Vec<PartitionStatus>, StoreError> {
        let statement = sqlx::query(
            "SELECT *, (extract(epoch FROM lease_until - clock_timestamp()) * 1000)::bigint AS lease_left_ms
             FROM partitions ORDER BY partition_id",
        );
        self.rows(statement).await?.iter().map(status).collect()
    }
}

fn status(row: &PgRow) -> Result<PartitionStatus, StoreError> {
    Ok(PartitionStatus {
        partition: partition_id(row)?,
        epoch: unsigned(row, "epoch")?,
        commits: unsigned(row, "commits")?,
        owner: row.try_get("owner")?,
        lease_left_ms: row.try_get("lease_left_ms")?,
        checkpoint: Seq(unsigned(row, "checkpoint")?),
        incarnation: row.try_get("incarnation")?,
        read: mark(row)?,
        position_high_water: Timestamp(row.try_get("position_ms")?),
    })
}
