//! `cargo xtask bench chunks`: the shipped binary beside what NATS and Postgres can do at most, in one run and one table.
//!
//! Entry: [`run`]. Every figure of the product stands beside its limit, measured minutes apart on the same streams and the
//! same cluster; rounds alternate, and medians count. `CHUNKS.md` has the last figures and what they mean.
#![allow(
    clippy::disallowed_methods,
    reason = "tooling at the edge: it reads the environment and spawns what it likes"
)]

mod backlog;
pub mod context;
mod drain;
mod insert;
mod latency;
mod read;
mod reorder_rate;
mod report;
pub mod sse;
mod table;
pub mod tasks;
mod usage;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use clap::Parser;
use devservices::{
    services::{NatsOptions, NatsProcess, Postgres, PostgresOptions},
    tools,
};
use model::PartitionId;

use self::{
    backlog::{Backlog, Shape},
    drain::Drain,
    read::Reading,
    table::Table,
};
use testkit::{fleet::FleetOptions, services::TestDatabase};

/// The one partition of a drained backlog.
const PARTITION: PartitionId = PartitionId(0);
/// Partitions of the fleet whose latency is measured: the default.
const LATENCY_PARTITIONS: u16 = 8;
/// What all partition streams may hold; the server refuses to promise more than its disk has.
const STREAMS_BYTES: u64 = 8 << 30;
/// The stream must not be purged: every round reads it from its beginning.
const NO_PURGE: &str = "10000000";

/// Measures the path of a chunk beside its limits and prints one table.
#[derive(Debug, Clone, Parser)]
pub struct Options {
    /// Chunks of a backlog; the one of short messages has a quarter of it.
    #[arg(long, default_value_t = 1_000_000)]
    pub chunks: u64,
    /// How long latency is measured.
    #[arg(long, default_value_t = 20)]
    pub seconds: u64,
    /// Concurrent streams of the latency measurement.
    #[arg(long, default_value_t = 1_000)]
    pub streams: usize,
    /// Chunks per second of each of them.
    #[arg(long, default_value_t = 30.0)]
    pub rate: f64,
    /// Rounds of reading and drain.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Parts to measure: a limits, b worker, c latency, d processor and memory (of b and c), e reorder buffer.
    #[arg(long, value_delimiter = ',', default_value = "a,b,c,d,e")]
    pub rows: Vec<char>,
    /// Where the figures go as JSON.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

impl Options {
    fn has(&self, part: char) -> bool {
        self.rows.contains(&part)
    }
}

/// Measures, prints the table, and tells whether every goal was met. `allocations`: how many the calling thread made.
pub async fn run(options: &Options, allocations: fn() -> u64) -> Result<bool> {
    let mut table = Table::default();
    if options.has('e') {
        table.rows.extend(report::ordering(allocations));
    }
    if options.has('a') || options.has('b') {
        let single = compare(options, &long("single-chunk frames", options, 1)).await?;
        let sixteen = compare(options, &long("16-chunk frames", options, 16)).await?;
        let short = compare(options, &short(options)).await?;
        table.rows.extend(report::backlogs(&single, &sixteen, &short));
    }
    if options.has('c') {
        let load = latency::Load {
            streams: options.streams,
            rate: options.rate,
            duration: Duration::from_secs(options.seconds),
        };
        let environment = Environment::start(LATENCY_PARTITIONS)?;
        eprintln!("==> latency: {} streams", load.streams);
        table.rows.extend(report::latency(&latency::measure(&environment, load).await?));
    }
    table.rows.retain(|row| options.has(row.part));
    table.rows.sort_by_key(|row| row.part);
    println!("\n{table}");
    if let Some(path) = &options.json {
        let json = serde_json::to_vec_pretty(&table)?;
        std::fs::write(path, json).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(table.is_met())
}

fn long(name: &'static str, options: &Options, frame: usize) -> Shape {
    Shape { name, chunks: options.chunks, lengths: 50..=500, frame }
}

fn short(options: &Options) -> Shape {
    Shape { name: "short messages", chunks: options.chunks / 4, lengths: 1..=4, frame: 1 }
}

/// A backlog's rounds: the limits and the worker in turn.
#[derive(Debug)]
struct Rounds {
    backlog: Backlog,
    readings: Vec<Reading>,
    /// Turns per second over one connection and over two, inserted only.
    inserts: Vec<[f64; 2]>,
    drains: Vec<Drain>,
}

async fn compare(options: &Options, shape: &Shape) -> Result<Rounds> {
    let environment = Environment::start(1)?;
    let backlog = Backlog::plan(shape)?;
    let database = environment.database().await?;
    testkit::fleet::Fleet::prepare(environment.fleet(database.url(), 0, 0))?.migrate().await?;
    let client = async_nats::connect(environment.nats.url()).await?;
    eprintln!("==> {}: {} chunks in {} messages", shape.name, backlog.chunks, backlog.messages.len());
    backlog.publish(&client, PARTITION).await?;
    let mut rounds = Rounds { backlog, readings: Vec::new(), inserts: Vec::new(), drains: Vec::new() };
    for number in 1..=options.rounds {
        if options.has('a') {
            rounds.readings.push(read::read(&environment, &rounds.backlog).await?);
            let one = insert::insert(database.url(), &rounds.backlog, 1).await?;
            let two = insert::insert(database.url(), &rounds.backlog, 2).await?;
            rounds.inserts.push([one, two]);
        }
        if options.has('b') {
            rounds.drains.push(drain::drain(&environment, &rounds.backlog).await?);
        }
        eprintln!("    round {number}: {}", report::progress(&rounds));
    }
    Ok(rounds)
}

/// The services of one measurement, with their process ids.
struct Environment {
    nats: NatsProcess,
    postgres: Postgres,
    partitions: u16,
}

impl Environment {
    /// Commits reach the disk; the stream's file has the server's own sync interval.
    fn start(partitions: u16) -> Result<Self> {
        let nats = NatsProcess::start(None, &NatsOptions::new(tools::nats_server()?.path))?;
        let mut options = PostgresOptions::new(tools::postgres()?.path);
        options.fsync = true;
        options.settings.push(("max_wal_size".to_owned(), "4GB".to_owned()));
        Ok(Self { nats, postgres: Postgres::start(None, &options)?, partitions })
    }

    async fn database(&self) -> Result<TestDatabase> {
        TestDatabase::create_on(&self.postgres.url()).await
    }

    fn fleet(&self, database_url: &str, workers: usize, gateways: usize) -> FleetOptions {
        let mut options = FleetOptions::new(&self.nats.url(), database_url)
            .with_env("ANTIPHON_STREAM_RETAIN_SECONDS", NO_PURGE)
            .with_env("ANTIPHON_STREAM_MAX_BYTES", STREAMS_BYTES / u64::from(self.partitions));
        (options.workers, options.gateways, options.partitions) = (workers, gateways, self.partitions);
        options
    }

    fn processes(&self) -> Vec<(&'static str, u32)> {
        let nats = self.nats.pid().map(|pid| ("nats-server", pid));
        let postgres = self.postgres.pid().map(|pid| ("postgres", pid));
        [nats, postgres].into_iter().flatten().collect()
    }
}
