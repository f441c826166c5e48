//! The services that the chunk benchmarks run on.

use anyhow::Result;
use devservices::{
    services::{NatsOptions, NatsProcess, Postgres, PostgresOptions},
    tools,
};
use model::PartitionId;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use testkit::{fleet::FleetOptions, services::TestDatabase};

/// The only partition of a drained backlog.
pub(super) const PARTITION: PartitionId = PartitionId(0);

/// Maximum bytes of all partition streams. The server refuses to reserve more than its disk has.
const STREAMS_BYTES: u64 = 8 << 30;

/// The worker's setting that prevents a purge of the stream, because every round reads it from its
/// beginning.
const NO_PURGE: &str = "10000000";

/// The services of one measurement.
pub(super) struct ChunkEnvironment {
    pub(super) nats: NatsProcess,
    pub(super) postgres: Postgres,
    partitions: u16,
}

impl ChunkEnvironment {
    /// Starts the services. Commits reach the disk; the stream's file has the server's own sync
    /// interval.
    pub(super) fn start(partitions: u16) -> Result<Self> {
        Self::start_with(partitions, &[])
    }

    /// Like [`Self::start`], with more Postgres settings.
    pub(super) fn start_with(partitions: u16, settings: &[(&str, &str)]) -> Result<Self> {
        let nats = NatsProcess::start(None, &NatsOptions::new(tools::nats_server()?.path))?;
        let mut options = PostgresOptions::new(tools::postgres()?.path);
        options.fsync = true;
        let own = [("max_wal_size", "4GB")].into_iter().chain(settings.iter().copied());
        options.settings.extend(own.map(|(name, value)| (name.to_owned(), value.to_owned())));
        Ok(Self { nats, postgres: Postgres::start(None, &options)?, partitions })
    }

    pub(super) async fn database(&self) -> Result<TestDatabase> {
        TestDatabase::create_on(&self.postgres.url()).await
    }

    pub(super) fn fleet(&self, database_url: &str, workers: usize, gateways: usize) -> FleetOptions {
        let mut options = FleetOptions::new(&self.nats.url(), database_url)
            .with_env("ANTIPHON_STREAM_RETAIN_SECONDS", NO_PURGE)
            .with_env("ANTIPHON_STREAM_MAX_BYTES", STREAMS_BYTES / u64::from(self.partitions));
        (options.workers, options.gateways, options.partitions) = (workers, gateways, self.partitions);
        options
    }

    pub(super) fn processes(&self) -> Vec<(&'static str, u32)> {
        let nats = self.nats.pid().map(|pid| ("nats-server", pid));
        let postgres = self.postgres.pid().map(|pid| ("postgres", pid));
        [nats, postgres].into_iter().flatten().collect()
    }
}

/// Number of pages that all connections to a database have accessed. Open connections report their
/// pages when they end.
pub(super) async fn pages(database_url: &str) -> Result<i64> {
    counted(database_url, "blks_hit + blks_read").await
}

/// Number of transactions that all connections to a database have committed, reported as in
/// [`pages`]. Each statement of a worker is one transaction.
pub(super) async fn transactions(database_url: &str) -> Result<i64> {
    counted(database_url, "xact_commit").await
}

async fn counted(database_url: &str, what: &str) -> Result<i64> {
    let mut connection = PgConnection::connect(database_url).await?;
    let count = format!("SELECT {what} FROM pg_stat_database WHERE datname = current_database()");
    let count = sqlx::query_scalar(AssertSqlSafe(count)).fetch_one(&mut connection).await?;
    connection.close().await?;
    Ok(count)
}
