//! The servers that all contenders share, and their costs.

use anyhow::{Context as _, Result};
use devservices::{
    services::{NatsOptions, NatsProcess, Postgres},
    tools,
};
use serde::Serialize;
use sqlx::{Connection as _, PgConnection};

use super::super::{postgres, usage::Meter};
use testkit::services::TestDatabase;

const POSTGRES: &str = "postgres";
const NATS: &str = "nats-server";

/// One Postgres whose commits reach the disk, and one nats-server.
pub(super) struct TaskEnvironment {
    nats: NatsProcess,
    postgres: Postgres,
    /// The connection for measurements. It is kept for the whole run, so that measuring opens no
    /// other one.
    admin: PgConnection,
}

impl TaskEnvironment {
    /// Starts both servers. Rounds contain no checkpoints except explicit ones.
    pub(super) async fn start() -> Result<Self> {
        Self::start_with(&[]).await
    }

    /// Does the same with more Postgres settings.
    pub(super) async fn start_with(further: &[(&str, &str)]) -> Result<Self> {
        let nats = NatsProcess::start(None, &NatsOptions::new(tools::nats_server()?.path))?;
        let mut options = postgres::without_checkpoints(tools::postgres()?.path);
        options.max_connections = 400;
        options
            .settings
            .extend(further.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let postgres = Postgres::start(None, &options)?;
        let admin = PgConnection::connect(&postgres.url()).await.context("connecting to Postgres")?;
        Ok(Self { nats, postgres, admin })
    }

    pub(super) fn nats_url(&self) -> String {
        self.nats.url()
    }

    pub(super) fn postgres_url(&self) -> String {
        self.postgres.url()
    }

    /// The processes of both servers.
    pub(super) fn processes(&self) -> Vec<(&'static str, u32)> {
        let postgres = self.postgres.pid().map(|pid| (POSTGRES, pid));
        let nats = self.nats.pid().map(|pid| (NATS, pid));
        [postgres, nats].into_iter().flatten().collect()
    }

    /// Creates an empty database after a checkpoint, so that writes to it include no full page
    /// images.
    pub(super) async fn database(&mut self) -> Result<TestDatabase> {
        let database = TestDatabase::create_on(&self.postgres.url()).await?;
        sqlx::query("CHECKPOINT").execute(&mut self.admin).await?;
        Ok(database)
    }

    /// Begins to measure. `clients` are the contender's own processes.
    pub(super) async fn gauge(&mut self, clients: &[u32]) -> Result<Gauge> {
        let mut processes = self.processes();
        processes.extend(clients.iter().map(|pid| ("client", *pid)));
        let wal = self.wal().await?;
        Ok(Gauge { meter: Meter::start(&processes), wal })
    }

    /// The cost since the start of the measurement, divided by `tasks`.
    pub(super) async fn cost(&mut self, gauge: &Gauge, tasks: u64) -> Result<Cost> {
        let used = gauge.meter.used();
        let written = self.wal().await? - gauge.wal;
        let of = |name: &str| {
            let times =
                used.processes.iter().filter(|(it, _)| *it == name).map(|(_, time)| time.as_secs_f64());
            times.sum::<f64>() * 1e6 / tasks as f64
        };
        Ok(Cost {
            seconds: used.seconds,
            server_us: of(POSTGRES),
            nats_us: of(NATS),
            client_us: of("client"),
            wal_bytes: written as f64 / tasks as f64,
            foreign_cores: used.foreign_cores,
        })
    }

    async fn wal(&mut self) -> Result<i64> {
        let place = sqlx::query_scalar("SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint");
        Ok(place.fetch_one(&mut self.admin).await?)
    }
}

/// Brings tables into the state of a long-running server: with statistics, and nothing left to
/// vacuum.
pub(super) async fn settle(database: &TestDatabase) -> Result<()> {
    let mut connection = PgConnection::connect(database.url()).await?;
    sqlx::query("VACUUM (ANALYZE)").execute(&mut connection).await?;
    Ok(connection.close().await?)
}

/// The usage at the start of a measurement.
#[derive(Debug)]
pub(super) struct Gauge {
    meter: Meter,
    wal: i64,
}

/// The cost per task.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct Cost {
    /// Total duration in seconds.
    pub(super) seconds: f64,
    /// Processor time of the postmaster and all its children, including those that have ended.
    pub(super) server_us: f64,
    /// Processor time of the nats-server.
    pub(super) nats_us: f64,
    /// Processor time of the contender.
    pub(super) client_us: f64,
    /// Bytes of WAL.
    pub(super) wal_bytes: f64,
    /// Load of other processes, in cores.
    pub(super) foreign_cores: f64,
}
