//! `cargo xtask bench chunks`: the shipped binary compared with the limits of NATS and Postgres, in
//! one run and one table.
//!
//! Entry point: [`run`]. Every figure of the product is next to its limit. Both are measured
//! minutes apart on the same streams and the same cluster. Rounds alternate, and medians are used.
//! `CHUNKS.md` has the last figures and their meaning.
#![allow(
    clippy::disallowed_methods,
    reason = "tooling at the edge: it reads the environment and spawns what it likes"
)]

mod acks;
mod backlog;
pub mod context;
mod drain;
mod environment;
mod event_rate;
pub mod growth;
mod insert;
mod latency;
pub mod memory;
mod postgres;
mod read;
pub mod reasoning;
mod reorder_rate;
mod report;
mod rounds;
pub mod sse;
mod table;
pub mod tasks;
pub mod threads;
mod timing;
mod unit_cost;
mod usage;

use std::{path::PathBuf, time::Duration};

use anyhow::Result;
use clap::Parser;
use model::PartitionCount;

use self::{
    backlog::{Backlog, BacklogShape, INTERLEAVED},
    environment::ChunkEnvironment,
    rounds::BacklogRounds,
    table::Table,
};

/// Measures the path of a chunk and its limits, and prints one table.
#[derive(Debug, Clone, Parser)]
pub struct ChunkBenchOptions {
    /// Number of chunks of a backlog; the backlog of short messages has a quarter of it.
    #[arg(long, default_value_t = 1_000_000)]
    pub chunks: u64,
    /// Duration of each latency measurement, in seconds.
    #[arg(long, default_value_t = 20)]
    pub seconds: u64,
    /// Numbers of concurrent threads; latency is measured with each.
    #[arg(long, value_delimiter = ',', default_value = "300,600,1000")]
    pub streams: Vec<usize>,
    /// Chunks per second of each thread.
    #[arg(long, default_value_t = 30.0)]
    pub rate: f64,
    /// Number of rounds of reading and draining.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Parts to measure: a limits, b worker, c latency, d processor and memory (of b and c), e
    /// reorder buffer, f events.
    #[arg(long, value_delimiter = ',', default_value = "a,b,c,d,e,f")]
    pub rows: Vec<char>,
    /// File to which the figures are written as JSON.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

impl ChunkBenchOptions {
    fn has(&self, part: char) -> bool {
        self.rows.contains(&part)
    }
}

/// Measures, prints the table, and returns whether every goal was met. `allocations` returns the
/// calling thread's count.
pub async fn run(options: &ChunkBenchOptions, allocations: fn() -> u64) -> Result<bool> {
    let mut table = Table::default();
    if options.has('e') {
        table.rows.extend(report::ordering(allocations));
    }
    if options.has('f') {
        table.rows.extend(report::events(allocations)?);
    }
    if options.has('a') || options.has('b') {
        let single = compare(options, &long("single-chunk frames", options, 1)).await?;
        let sixteen = compare(options, &long("16-chunk frames", options, 16)).await?;
        let short = compare(options, &short(options)).await?;
        table.rows.extend(report::backlogs(&single, &sixteen, &short));
    }
    let loads = options.streams.iter().filter(|_| options.has('c'));
    for streams in loads.copied() {
        let duration = Duration::from_secs(options.seconds);
        let load = latency::load::LatencyLoad { streams, rate: options.rate, duration };
        let environment = ChunkEnvironment::start(latency::load::PARTITIONS)?;
        eprintln!("==> latency: {streams} streams");
        table.rows.extend(report::latency(load, &latency::measure(&environment, load).await?));
    }
    table.rows.retain(|row| options.has(row.part));
    table.rows.sort_by_key(|row| row.part);
    println!("\n{table}");
    table.write_json(options.json.as_deref())?;
    Ok(table.is_met())
}

fn long(name: &'static str, options: &ChunkBenchOptions, frame: usize) -> BacklogShape {
    BacklogShape { name, chunks: options.chunks, lengths: 50..=500, frame, open: INTERLEAVED, threads: None }
}

fn short(options: &ChunkBenchOptions) -> BacklogShape {
    let chunks = options.chunks / 4;
    BacklogShape {
        name: "short messages",
        chunks,
        lengths: 1..=4,
        frame: 1,
        open: INTERLEAVED,
        threads: None,
    }
}

async fn compare(options: &ChunkBenchOptions, shape: &BacklogShape) -> Result<BacklogRounds> {
    let environment = ChunkEnvironment::start(1)?;
    let backlog = Backlog::plan(shape)?;
    let database = environment.database().await?;
    testkit::fleet::Fleet::prepare(environment.fleet(database.url(), 0, 0))?.migrate_and_adopt().await?;
    let client = async_nats::connect(environment.nats.url()).await?;
    eprintln!("==> {}: {} chunks in {} messages", shape.name, backlog.chunks, backlog.messages.len());
    backlog.publish(&client, PartitionCount::new(1)?).await?;
    let mut rounds = BacklogRounds { backlog, readings: Vec::new(), inserts: Vec::new(), drains: Vec::new() };
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
