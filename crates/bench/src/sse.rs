//! `cargo xtask bench sse`: event streams of the shipped binary beside those of other servers, in one run and one table.
//!
//! Entry: [`run`]. All servers have one core and everything that loads them has another. The same viewers, plain sockets in this
//! process, read all of them; what they are sent carries when it was sent and its number, so that latency needs no second clock,
//! and a loss or a repeat shows. Each measurement starts its server afresh, rounds alternate between the servers, and medians count.

mod cores;
mod counters;
mod goals;
mod measure;
mod publisher;
mod report;
mod servers;
mod stream;
mod subscribers;
mod target;
mod timestamped_payload;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use serde::Serialize;

use self::{measure::Stream, servers::Servers, target::Kind};
use super::table::{Row, Table};

/// Of our fleet: the default.
const PARTITIONS: u16 = 8;
/// Above this the machine is not quiet, and figures say less.
const QUIET_LOAD: f64 = 0.5;
/// Slow viewers must have time to fall behind so far that they are cut.
const SLOW_SECONDS: f64 = 12.0;
/// More than one heartbeat.
const IDLE_SECONDS: f64 = 16.0;

/// Measures event streams of several servers and prints one table.
#[derive(Debug, Clone, Parser)]
pub struct Options {
    /// How long each measurement lasts, after its warm-up.
    #[arg(long, default_value_t = 10.0)]
    pub seconds: f64,
    /// Rounds of each server.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Parts to measure: 1 fan-out, 2 many threads, 3 resume storm, 4 idle connections, 5 slow viewers.
    #[arg(long, value_delimiter = ',', default_value = "1,2,3,4,5")]
    pub rows: Vec<char>,
    /// Only servers whose names contain one of these.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// One round of three seconds with fewer threads and connections: whether it works at all. Ends with 0 unless something is lost.
    #[arg(long)]
    pub short: bool,
    /// Where the figures go as JSON.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

impl Options {
    fn resolved(&self) -> Self {
        let mut options = self.clone();
        if options.short {
            (options.seconds, options.rounds) = (3.0, 1);
        }
        options
    }

    fn wants(&self, kind: Kind) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| kind.name().contains(part))
    }

    /// All measurements of the wanted parts.
    fn shapes(&self) -> Vec<Shape> {
        let least = |full: usize, short: usize| if self.short { short } else { full };
        let stream = |threads, viewers, rate, burst, bytes| Stream {
            threads,
            viewers,
            slow_every: None,
            rate,
            burst,
            bytes,
            warm_up: Duration::from_secs_f64((self.seconds / 3.0).clamp(1.0, 4.0)),
            duration: Duration::from_secs_f64(self.seconds),
        };
        let long = |load: Stream, seconds: f64| {
            let duration = if self.short { seconds } else { self.seconds.max(seconds) };
            Stream { duration: Duration::from_secs_f64(duration), ..load }
        };
        let mut shapes = Vec::new();
        for viewers in [100, 1_000] {
            for burst in [1, 4] {
                shapes.push(Shape::Fanout(stream(1, viewers, 50.0, burst, 256)));
            }
        }
        let threads = least(1_000, 200);
        for rate in [10.0, 30.0] {
            shapes.push(Shape::Threads(stream(threads, threads * 3 / 2, rate, 1, 100)));
        }
        let viewers = least(1_000, 200);
        shapes.extend([1, viewers].map(|threads| Shape::Storm { threads, viewers }));
        let idle = if self.short { IDLE_SECONDS } else { self.seconds.max(2.0 * IDLE_SECONDS) };
        let idle = |connections: usize, threads| {
            let duration = Duration::from_secs_f64(idle);
            Shape::Idle { threads, connections, duration }
        };
        let connections = least(10_000, 1_000);
        shapes.push(idle(connections, connections / 100));
        // One server has a file for each thread and one for each connection, and a process may often have 20,000.
        let connections = least(9_000, 1_000);
        shapes.push(idle(connections, connections));
        let alone = long(stream(1, 90, 200.0, 1, 1_024), SLOW_SECONDS);
        shapes.push(Shape::Slow(alone));
        shapes.push(Shape::Slow(Stream { viewers: 100, slow_every: Some(10), ..alone }));
        shapes.retain(|shape| self.rows.contains(&shape.part()));
        shapes
    }
}

/// One measurement, whichever server it is made on.
#[derive(Debug, Clone, Copy)]
enum Shape {
    Fanout(Stream),
    Threads(Stream),
    Storm { threads: usize, viewers: usize },
    Idle { threads: usize, connections: usize, duration: Duration },
    Slow(Stream),
}

impl Shape {
    fn part(self) -> char {
        match self {
            Self::Fanout(_) => '1',
            Self::Threads(_) => '2',
            Self::Storm { .. } => '3',
            Self::Idle { .. } => '4',
            Self::Slow(_) => '5',
        }
    }

    fn name(self) -> String {
        match self {
            Self::Fanout(Stream { viewers, burst: 1, .. }) => {
                format!("1 thread, {viewers} viewers, single events")
            }
            Self::Fanout(Stream { viewers, burst, .. }) => {
                format!("1 thread, {viewers} viewers, bursts of {burst}")
            }
            Self::Threads(Stream { threads, viewers, rate, .. }) => {
                format!("{threads} threads, {viewers} viewers, {rate:.0} events/s each")
            }
            Self::Storm { threads: 1, viewers } => format!("storm of {viewers} viewers of 1 thread"),
            Self::Storm { threads, viewers } => format!("storm of {viewers} viewers of {threads} threads"),
            Self::Idle { threads, connections, .. } => {
                format!("{connections} idle connections, {threads} threads")
            }
            Self::Slow(Stream { viewers, slow_every: None, .. }) => format!("{viewers} viewers"),
            Self::Slow(Stream { viewers, slow_every: Some(every), .. }) => {
                format!("{viewers} viewers, {} read 1 KB/s", viewers / every)
            }
        }
    }

    async fn round(self, servers: &mut Servers, kind: Kind) -> Result<Round> {
        match self {
            Self::Fanout(load) | Self::Threads(load) | Self::Slow(load) => {
                measure::stream(servers, kind, load).await
            }
            Self::Storm { threads, viewers } => measure::storm(servers, kind, threads, viewers).await,
            Self::Idle { threads, connections, duration } => {
                measure::idle(servers, kind, threads, connections, duration).await
            }
        }
    }
}

/// One round of one server. What a measurement does not have is 0.
#[derive(Debug, Clone, Default, Serialize)]
struct Round {
    /// Delivered while it was measured, to all viewers.
    events: u64,
    /// Published per second, in fact.
    rate: f64,
    /// Processor time of what serves the viewers, for each delivered event.
    server_us: f64,
    /// Processor time of what else takes part, for each published event.
    ingest_us: Vec<(&'static str, f64)>,
    /// From before an event was sent until its viewer had read it.
    p50_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
    /// Events that one read of a viewer brought, which is what one write has brought unless several wait.
    events_per_read: f64,
    /// On the connection.
    bytes_per_event: f64,
    /// Resident memory of the server, above what it had before anybody came.
    resident_per_viewer: f64,
    /// Of the kernel, both ends of the connection.
    kernel_per_viewer: Option<f64>,
    /// Processor time of a server with nothing to do but heartbeats.
    idle_cores: f64,
    /// Of a storm: until half of the viewers had everything, and until all had.
    half_ms: f64,
    whole_ms: f64,
    lost: u64,
    repeated: u64,
    /// Connections of viewers that keep up which the server has ended.
    ends: u64,
    /// Connections of slow viewers which the server has ended.
    cuts: u64,
    /// Resident memory while it was measured: bytes a second, and at most above the beginning.
    memory_slope: f64,
    memory_grown: u64,
    /// How much of the machine was used by others.
    foreign_cores: f64,
}

/// A server in one shape, with its rounds.
#[derive(Debug)]
struct Entry {
    shape: Shape,
    kind: Kind,
    rounds: Vec<Round>,
    /// What went wrong; then it is left alone.
    failure: Option<String>,
}

/// Measures, prints the table, and tells whether every server did what it should and every goal was met. Needs a runtime of one
/// thread, which it moves to the core of the viewers.
pub async fn run(options: &Options) -> Result<bool> {
    let options = options.resolved();
    ensure!(options.rounds > 0 && options.seconds > 0.0, "nothing to measure");
    cores::move_to(cores::CLIENTS)?;
    if let Some(load) = cores::load_average().filter(|load| *load > QUIET_LOAD) {
        eprintln!("==> the machine is not quiet (load {load:.1}): these figures are for trying out");
    }
    let mut table = Table::default();
    let mut kinds: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| options.wants(*kind)).collect();
    kinds.retain(|kind| match servers::missing(*kind) {
        None => true,
        Some(why) => {
            table.rows.push(Row::new('0', kind.name(), "not measured").note(why));
            false
        }
    });
    let mut servers = Servers::default();
    let mut all = Vec::new();
    for shape in options.shapes() {
        all.extend(measured(&options, &mut servers, shape, &kinds).await);
    }
    drop(servers);
    table.rows.extend(all.iter().flat_map(report::rows));
    table.rows.extend(goals::rows(&all));
    table.rows.sort_by_key(|row| row.part);
    println!(
        "\nservers on core {}, publishers and viewers on core {}\n\n{table}",
        cores::SERVERS,
        cores::CLIENTS
    );
    if let Some(path) = &options.json {
        let json = serde_json::to_vec_pretty(&table)?;
        std::fs::write(path, json).with_context(|| format!("writing {}", path.display()))?;
    }
    let is_whole = all.iter().all(|entry| entry.failure.is_none()) && goals::is_nothing_lost(&all);
    Ok(is_whole && (options.short || table.is_met()))
}

/// All rounds of one shape, every server once in each.
async fn measured(options: &Options, servers: &mut Servers, shape: Shape, kinds: &[Kind]) -> Vec<Entry> {
    let entry = |kind: &Kind| Entry { shape, kind: *kind, rounds: Vec::new(), failure: None };
    let mut entries: Vec<Entry> = kinds.iter().map(entry).collect();
    for number in 1..=options.rounds {
        for entry in entries.iter_mut().filter(|entry| entry.failure.is_none()) {
            let name =
                format!("    {} round {number}, {}: {}", shape.part(), entry.kind.name(), shape.name());
            match shape.round(servers, entry.kind).await {
                Ok(round) => {
                    eprintln!("{name}: {}", report::progress(shape, &round));
                    entry.rounds.push(round);
                }
                Err(error) => {
                    eprintln!("{name} failed: {error:#}");
                    if entry.kind == Kind::Antiphon {
                        eprintln!("{}", servers.log_tails());
                    }
                    entry.failure = Some(format!("{error:#}"));
                }
            }
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_can_be_chosen() {
        let shapes = |arguments: &[&str]| Options::parse_from(arguments).resolved().shapes();
        assert_eq!(shapes(&["bench"]).len(), 12);
        let storms = shapes(&["bench", "--rows", "3", "--short"]);
        let names: Vec<String> = storms.iter().map(|shape| shape.name()).collect();
        assert_eq!(names, ["storm of 200 viewers of 1 thread", "storm of 200 viewers of 200 threads"]);
    }

    #[test]
    fn the_short_form_is_one_round() {
        let options = Options::parse_from(["bench", "--short", "--rounds", "9"]).resolved();
        assert_eq!((options.rounds, options.seconds), (1, 3.0));
        assert!(
            options.wants(Kind::Nchan) && !Options::parse_from(["b", "--only", "anti"]).wants(Kind::Nchan)
        );
    }
}
