//! Changes the number of partitions while no worker owns any of them.
//!
//! Entry points, in order: [`Store::begin_partition_change`], [`Store::set_stream_ends`],
//! [`Store::apply_partition_change`], [`Store::end_partition_change`]. Each is one idempotent
//! statement, so that an interrupted change can be continued.

use std::time::Duration;

use model::{PartitionCount, PartitionId, Seq};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use tokio::time::Instant;

use crate::connect;
use crate::error::StoreError;
use crate::row::unsigned;
use crate::store::Store;

/// The owner of all partitions while their number is changed.
const OWNER: &str = "antiphon partitions change";

/// Key of the advisory lock that one run at a time holds: "partitio" as a number.
const LOCK: i64 = 0x7061_7274_6974_696f;
/// More than ten seconds: the lock of a run is released about ten seconds after its machine has
/// vanished.
const LOCK_TIMEOUT: Duration = Duration::from_secs(12);
const LOCK_INTERVAL: Duration = Duration::from_millis(200);

/// The lock of the run that may change the number of partitions; dropping it releases the lock.
#[derive(Debug)]
pub struct ChangeLock {
    /// The session that owns the lock.
    _connection: PgConnection,
}

/// The configuration of partition streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamLimits {
    pub replicas: u8,
    /// Maximum bytes of a stream.
    pub max_bytes: i64,
    /// Maximum bytes of an entry.
    pub max_message_bytes: i32,
}

/// A change of the number of partitions in progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionChange {
    pub from: PartitionCount,
    pub to: PartitionCount,
    /// The configuration of the streams before the change.
    pub limits: StreamLimits,
    /// The last sequence of each stream, by partition, before anything was moved; `None`: the
    /// streams are not closed yet.
    pub ends: Option<Vec<Seq>>,
    /// True if `partitions` already has the rows of the new number.
    pub is_moved: bool,
    /// Time since the change began, in ms by the database clock.
    pub age_ms: i64,
}

/// The outcome of [`Store::begin_partition_change`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BeginChange {
    /// The change is in progress, and no worker owns a partition.
    Begun,
    /// A worker owns a partition.
    Held {
        partition: PartitionId,
        owner: String,
        /// Time left in the worker's lease, ms.
        left_ms: i64,
    },
    /// Another change is in progress, or the requested number is already in use.
    Refused,
}

/// The stream of a partition after the change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamEnd {
    pub partition: PartitionId,
    /// The new checkpoint.
    pub end: Seq,
    pub incarnation: String,
    /// When the stream stored the entry at `end`, in ns of Unix time; `None` when it has no entry
    /// there.
    pub stored_at_ns: Option<i64>,
}

impl PartitionChange {
    /// The error for a process that needs the partitions during the change.
    pub fn refusal(&self) -> StoreError {
        StoreError::PartitionsChanging { from: self.from.get(), to: self.to.get() }
    }

    pub(crate) async fn read(connection: &mut PgConnection) -> Result<Option<Self>, StoreError> {
        let rows = sqlx::query(include_str!("partition_change/read.sql")).fetch_all(connection).await?;
        rows.first().map(change).transpose()
    }
}

impl Store {
    /// Takes the lock that excludes other runs. `None`: another run has it.
    pub async fn lock_partition_change(&self) -> Result<Option<ChangeLock>, StoreError> {
        let mut connection = connect::wait(&connect::options(self.config())?).await?;
        let give_up_at = Instant::now() + LOCK_TIMEOUT;
        loop {
            let row = sqlx::query("SELECT pg_try_advisory_lock($1) AS is_held")
                .bind(LOCK)
                .fetch_one(&mut connection)
                .await?;
            if row.try_get("is_held")? {
                return Ok(Some(ChangeLock { _connection: connection }));
            }
            if Instant::now() > give_up_at {
                return Ok(None);
            }
            tokio::time::sleep(LOCK_INTERVAL).await;
        }
    }

    /// The change in progress, if any.
    pub async fn partition_change(&self) -> Result<Option<PartitionChange>, StoreError> {
        let rows = self.rows(sqlx::query(include_str!("partition_change/read.sql"))).await?;
        rows.first().map(change).transpose()
    }

    /// Marks the installation as being changed and takes all partitions with new epochs. Does
    /// neither if a worker owns a partition.
    pub async fn begin_partition_change(
        &self,
        to: PartitionCount,
        limits: StreamLimits,
    ) -> Result<BeginChange, StoreError> {
        let statement = sqlx::query(include_str!("partition_change/begin.sql"))
            .bind(i32::from(to.get()))
            .bind(i16::from(limits.replicas))
            .bind(limits.max_bytes)
            .bind(limits.max_message_bytes)
            .bind(OWNER);
        let rows = self.rows(statement).await?;
        let Some(row) = rows.first() else { return Ok(BeginChange::Refused) };
        if let Some(owner) = row.try_get("owner")? {
            let partition = PartitionId(row.try_get::<i16, _>("partition_id")?.unsigned_abs());
            return Ok(BeginChange::Held { partition, owner, left_ms: row.try_get("left_ms")? });
        }
        Ok(if row.try_get("has_begun")? { BeginChange::Begun } else { BeginChange::Refused })
    }

    /// Stores the ends of the streams, unless they are stored already.
    pub async fn set_stream_ends(&self, ends: &[Seq]) -> Result<(), StoreError> {
        let statement = sqlx::query("UPDATE partition_change SET ends = $1 WHERE ends IS NULL");
        let ends: Vec<i64> = ends.iter().map(|end| end.0.cast_signed()).collect();
        self.rows(statement.bind(ends)).await.map(drop)
    }

    /// Raises the epochs of all partitions, which the change owns. Called once per run.
    pub async fn raise_epochs_of_change(&self) -> Result<(), StoreError> {
        let statement =
            sqlx::query("UPDATE partitions SET epoch = antiphon_next_epoch(epoch) WHERE owner = $1");
        self.rows(statement.bind(OWNER)).await.map(drop)
    }

    /// Moves all rows that depend on the number of partitions, in one transaction. `streams` has an
    /// entry for each new partition.
    pub async fn apply_partition_change(&self, streams: &[StreamEnd]) -> Result<(), StoreError> {
        let ids: Vec<i16> = streams.iter().map(|stream| stream.partition.0.cast_signed()).collect();
        let statement = sqlx::query(include_str!("partition_change/apply.sql"))
            .bind(ids)
            .bind(streams.iter().map(|stream| stream.end.0.cast_signed()).collect::<Vec<_>>())
            .bind(streams.iter().map(|stream| stream.incarnation.clone()).collect::<Vec<_>>())
            .bind(streams.iter().map(|stream| stream.stored_at_ns).collect::<Vec<_>>())
            .bind(OWNER);
        self.rows(statement).await.map(drop)
    }

    /// Ends a change whose rows have been moved: workers may take the partitions.
    pub async fn end_partition_change(&self) -> Result<(), StoreError> {
        self.rows(sqlx::query(include_str!("partition_change/end.sql"))).await.map(drop)
    }
}

fn change(row: &PgRow) -> Result<PartitionChange, StoreError> {
    let number = |column| {
        let count = PartitionCount::new(unsigned(row, column)?);
        count.map_err(|error| StoreError::Row(error.to_string()))
    };
    let ends = row.try_get::<Option<Vec<i64>>, _>("ends")?;
    Ok(PartitionChange {
        from: number("from_count")?,
        to: number("to_count")?,
        limits: StreamLimits {
            replicas: u8::try_from(row.try_get::<i16, _>("replicas")?).unwrap_or(1),
            max_bytes: row.try_get("max_bytes")?,
            max_message_bytes: row.try_get("max_message_bytes")?,
        },
        ends: ends.map(|ends| ends.into_iter().map(|end| Seq(end.unsigned_abs())).collect()),
        is_moved: row.try_get("is_moved")?,
        age_ms: row.try_get("age_ms")?,
    })
}
