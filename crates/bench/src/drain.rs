//! Drains a backlog with the shipped worker. Measures from its lease until the checkpoint is at the
//! stream's end.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sqlx::PgPool;
use tokio::time::sleep;

use crate::{
    backlog::Backlog,
    environment::{ChunkEnvironment, pages},
    usage::{self, Meter, Used},
};
use testkit::{
    db_snapshot,
    fleet::Fleet,
    services::{self, TestDatabase},
};

const POLL: Duration = Duration::from_millis(10);
const LIMIT: Duration = Duration::from_secs(600);
/// Resident memory is sampled at these fractions of the drain.
const MEMORY_AT: [f64; 3] = [0.25, 0.6, 1.0];

/// One drain of the whole stream.
#[derive(Debug, Clone)]
pub(super) struct Drain {
    pub(super) rate: f64,
    /// Messages made durable per second.
    pub(super) turns: f64,
    /// Processor time of `worker`, `nats-server` and `postgres`.
    pub(super) used: Used,
    /// The worker's resident bytes at [`MEMORY_AT`].
    pub(super) memory: [u64; 3],
    /// Number of entries that the worker has read, relative to the entries in the stream.
    pub(super) reads: f64,
    /// Pages that Postgres has accessed.
    pub(super) buffers: i64,
    /// Bytes of WAL.
    pub(super) wal_bytes: i64,
}

/// Starts a worker on a new database and waits until it has made the whole backlog durable.
pub(super) async fn drain(environment: &ChunkEnvironment, backlog: &Backlog) -> Result<Drain> {
    let database = environment.database().await?;
    Fleet::prepare(environment.fleet(database.url(), 0, 0))?.migrate_and_adopt().await?;
    drain_into(environment, &database, backlog).await
}

/// Like [`drain`], on a migrated database that may contain rows.
pub(super) async fn drain_into(
    environment: &ChunkEnvironment,
    database: &TestDatabase,
    backlog: &Backlog,
) -> Result<Drain> {
    let mut fleet = Fleet::prepare(environment.fleet(database.url(), 1, 0))?;
    let pool = services::pool(database.url()).await?;
    let stored_before = db_snapshot::ended(&pool).await?.0;
    let pages_before = pages(database.url()).await?;
    fleet.spawn()?;
    let outcome = watch(environment, backlog, &fleet, &pool).await;
    let mut drain = outcome.inspect_err(|_| eprintln!("{}", fleet.log_tails()))?;
    let (messages, dead_letters) = db_snapshot::ended(&pool).await?;
    let expected = stored_before + backlog.messages.len() as i64;
    ensure!(
        messages == expected && dead_letters == 0,
        "{messages} messages of {expected}, {dead_letters} dead"
    );
    for worker in &mut fleet.workers {
        worker.terminate();
        worker.ended(LIMIT).await?;
    }
    pool.close().await;
    drain.buffers = pages(database.url()).await? - pages_before;
    Ok(drain)
}

async fn watch(
    environment: &ChunkEnvironment,
    backlog: &Backlog,
    fleet: &Fleet,
    pool: &PgPool,
) -> Result<Drain> {
    let begun = Instant::now();
    while !checkpoints(pool).await?.0 {
        ensure!(begun.elapsed() < LIMIT, "the worker takes no lease");
        sleep(POLL).await;
    }
    let worker = fleet.workers.first().and_then(testkit::fleet::Process::pid).unwrap_or_default();
    let mut processes = environment.processes();
    processes.push(("worker", worker));
    let meter = Meter::start(&processes);
    let (started, wal) = (Instant::now(), wal(pool).await?);
    let mut memory = Vec::new();
    while memory.len() < MEMORY_AT.len() {
        ensure!(started.elapsed() < LIMIT, "the backlog is not drained after {LIMIT:?}");
        sleep(POLL).await;
        let progress = checkpoints(pool).await?.1 as f64 / backlog.entries as f64;
        while MEMORY_AT.get(memory.len()).is_some_and(|part| progress >= *part) {
            memory.push(usage::resident(worker));
        }
    }
    let (seconds, used) = (started.elapsed().as_secs_f64(), meter.used());
    Ok(Drain {
        rate: backlog.chunks as f64 / seconds,
        turns: backlog.messages.len() as f64 / seconds,
        used,
        memory: [memory[0], memory[1], memory[2]],
        wal_bytes: self::wal(pool).await? - wal,
        buffers: 0,
        reads: entries_read(backlog, fleet).await? / backlog.entries as f64,
    })
}

/// The number of entries read. The worker adds to its counter only from time to time, so this
/// waits.
async fn entries_read(backlog: &Backlog, fleet: &Fleet) -> Result<f64> {
    let begun = Instant::now();
    loop {
        let metrics = fleet.workers.first().context("no worker runs")?.metrics().await?;
        let read = metrics.sum("antiphon_worker_entries_total");
        if read >= backlog.entries as f64 {
            return Ok(read);
        }
        ensure!(
            begun.elapsed() < LIMIT,
            "the worker says that it has read {read} entries of {}",
            backlog.entries
        );
        sleep(POLL).await;
    }
}

/// Whether each partition has an owner, and the sum of all checkpoints.
async fn checkpoints(pool: &PgPool) -> Result<(bool, i64)> {
    let row = "SELECT bool_and(owner IS NOT NULL), sum(checkpoint)::bigint FROM partitions";
    Ok(sqlx::query_as(row).fetch_one(pool).await?)
}

pub(super) async fn wal(pool: &PgPool) -> Result<i64> {
    let place = "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint";
    Ok(sqlx::query_scalar(place).fetch_one(pool).await?)
}
