//! `cargo xtask bench tasks`: queues of tasks on the same Postgres, in turn, in one run and one table.
//!
//! Entry: [`run`]. Every contender gets a fresh database for every round, its tasks are there before the clock starts, and
//! the clock stops when the database has the last completion, whatever the contender believes. Rounds of all contenders
//! alternate, and medians count. Peers, and our worker alone, are programs in `peers/`; they only do what they are told and
//! note what their handlers saw, and everything is measured and judged here, by the same code for all. The whole path
//! is the shipped binary.

mod antiphon_runs;
mod echo_workflow;
mod end_to_end;
mod environment;
mod goals;
mod idle;
mod order;
mod peer;
mod raw_insert;
mod report;
mod responder;
mod statements;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use serde::Serialize;

use self::{
    end_to_end::EndToEnd, environment::Environment, peer::Peer, raw_insert::Raw, responder::Responder,
};
use super::table::{Row, Table};

/// Agents of the partition that is taken over, and the tasks of each.
const TAKEN_OVER: (u32, u32) = (6_250, 10);
/// How much longer queues are where a snapshot is held: what cannot be cleaned up needs time to pile up.
const LONGER: u32 = 5;

/// Measures queues of tasks beside each other and prints one table.
#[derive(Debug, Clone, Parser)]
pub struct Options {
    /// How many agents, each with a queue of its own.
    #[arg(long, default_value_t = 1_000)]
    pub agents: u32,
    /// How many tasks each of them has.
    #[arg(long, default_value_t = 20)]
    pub tasks: u32,
    /// Rounds of each contender; a very slow one has only the first.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Tasks a second, of all agents together, where latency is measured.
    #[arg(long, default_value_t = 50.0)]
    pub rate: f64,
    /// How long latency is measured.
    #[arg(long, default_value_t = 20.0)]
    pub seconds: f64,
    /// Seconds after which a round is cut and counts as far as it came.
    #[arg(long, default_value_t = 120.0)]
    pub limit: f64,
    /// 100 agents with 5 tasks, one round, two seconds of latency, a limit of ten: whether it works at all.
    #[arg(long)]
    pub quick: bool,
    /// Parts to measure: a queue alone with a handler that does nothing, b with a workflow behind NATS, c latency, d beside
    /// a snapshot that is held, e takeover of a large partition, f an idle fleet, g round trips.
    #[arg(long, value_delimiter = ',', default_value = "a,b,c,d,e,f,g")]
    pub rows: Vec<char>,
    /// Only contenders whose names contain one of these.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// Where the figures go as JSON.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

impl Options {
    fn resolved(&self) -> Self {
        let mut options = self.clone();
        if options.quick {
            (options.agents, options.tasks, options.rounds) = (100, 5, 1);
            (options.seconds, options.limit) = (2.0, 10.0);
        }
        options
    }

    fn load(&self, part: char) -> Load {
        let limit = Duration::from_secs_f64(self.limit);
        let load = Load { agents: self.agents, tasks: self.tasks, rate: None, limit };
        match part {
            'c' => {
                let total = (self.rate * self.seconds) as u32;
                Load { tasks: (total / self.agents).max(1), rate: Some(self.rate), ..load }
            }
            'd' => Load { tasks: self.tasks * LONGER, ..load },
            'e' if !self.quick => Load { agents: TAKEN_OVER.0, tasks: TAKEN_OVER.1, ..load },
            _ => load,
        }
    }

    fn wants(&self, contender: &Contender) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| contender.name().contains(part))
    }
}

/// What is to be done in a round.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Load {
    pub(super) agents: u32,
    /// Of each agent.
    pub(super) tasks: u32,
    /// Tasks a second that arrive while the queue works; without it all of them are there before.
    pub(super) rate: Option<f64>,
    /// When the round is cut.
    #[serde(skip)]
    pub(super) limit: Duration,
}

impl Load {
    fn total(self) -> u64 {
        u64::from(self.agents) * u64::from(self.tasks)
    }
}

/// What is compared.
#[derive(Debug)]
enum Contender {
    /// Another queue, as a program of its own.
    Peer(Box<Peer>),
    /// The limit: the messages of the turns, inserted only.
    Raw(Raw),
    /// The shipped binary and a workflow outside.
    EndToEnd(Box<EndToEnd>),
}

impl Contender {
    fn name(&self) -> &str {
        match self {
            Self::Peer(peer) => peer.name(),
            Self::Raw(raw) => raw.name(),
            Self::EndToEnd(path) => path.name(),
        }
    }

    /// So slow that one round is all that anybody waits for.
    fn is_slow(&self) -> bool {
        matches!(self, Self::Peer(peer) if peer.is_slow())
    }

    /// Why it cannot be measured here.
    fn missing(&self) -> Option<String> {
        match self {
            Self::Peer(peer) => peer.missing(),
            Self::Raw(_) | Self::EndToEnd(_) => None,
        }
    }

    /// Makes a fresh database with everything that the round finds there, and opens all connections.
    async fn prepare(&mut self, environment: &mut Environment, load: Load) -> Result<()> {
        match self {
            Self::Peer(peer) => peer.prepare(environment, load).await,
            Self::Raw(raw) => raw.prepare(environment, load).await,
            Self::EndToEnd(path) => path.prepare(environment, load).await,
        }
    }

    /// Does the prepared round and removes its database.
    async fn run(&mut self, environment: &mut Environment) -> Result<Round> {
        match self {
            Self::Peer(peer) => peer.run(environment).await,
            Self::Raw(raw) => raw.run(environment).await,
            Self::EndToEnd(path) => path.run(environment).await,
        }
    }
}

/// One round of one contender.
#[derive(Debug, Clone, Default, Serialize)]
struct Round {
    /// How many were completed.
    tasks: u64,
    /// From the start until the database had the last completion.
    seconds: f64,
    /// Time until a task was durably completed, since it was due; of raw inserts, of one statement.
    p50_ms: Option<f64>,
    /// The same.
    p99_ms: Option<f64>,
    /// Processor time of the postmaster and all its children.
    server_cpu_us_per_task: f64,
    /// What was written to the log of the database.
    wal_bytes_per_task: f64,
    /// Processor time of the contender's own processes.
    client_cpu_us_per_task: f64,
    /// Processor time of the nats-server, where there is one.
    nats_cpu_us_per_task: f64,
    /// Tasks that began while an earlier one of the same agent had not ended; `None` without handlers.
    out_of_order: Option<u64>,
    /// Tasks whose handler was called again.
    repeated: u64,
    /// Tries of agents that fail for ever.
    failures: u64,
    /// From the start until the first handler began.
    first_ms: Option<f64>,
    /// What it took to bring the tasks in before, where that is the contender's own doing.
    enqueued: Option<environment::Cost>,
    /// It took too long, and `tasks` were completed by then.
    is_cut: bool,
    /// How much of the machine was used by others.
    foreign_cores: f64,
}

impl Round {
    fn new(tasks: u64, cost: &environment::Cost) -> Self {
        Self {
            tasks,
            seconds: cost.seconds,
            server_cpu_us_per_task: cost.server_us,
            wal_bytes_per_task: cost.wal_bytes,
            client_cpu_us_per_task: cost.client_us,
            nats_cpu_us_per_task: cost.nats_us,
            foreign_cores: cost.foreign_cores,
            ..Self::default()
        }
    }

    /// With the latencies' percentiles.
    fn timed(mut self, latencies_us: &mut [u64]) -> Self {
        latencies_us.sort_unstable();
        (self.p50_ms, self.p99_ms) = (percentile_ms(latencies_us, 0.5), percentile_ms(latencies_us, 0.99));
        self
    }
}

/// The smallest value that so large a part of the sorted ones does not exceed.
fn percentile_ms(sorted_us: &[u64], part: f64) -> Option<f64> {
    let rank = (sorted_us.len() as f64 * part).ceil() as usize;
    Some(*sorted_us.get(rank.saturating_sub(1))? as f64 / 1e3)
}

/// A contender with its rounds.
#[derive(Debug)]
struct Entry {
    part: char,
    contender: Contender,
    rounds: Vec<Round>,
    /// What went wrong; then it is left alone.
    failure: Option<String>,
}

/// Who takes part in what.
fn contenders(part: char, nats_url: &str) -> Vec<Contender> {
    let (mut peers, mut raws, mut paths) = (Vec::new(), Vec::new(), Vec::new());
    match part {
        'a' => {
            peers = Peer::workers(nats_url);
            peers.extend(Peer::alone());
            peers.extend(Peer::sized_workers(nats_url));
            raws = Raw::all();
        }
        'b' => (peers, paths) = (Peer::behind_nats(nats_url), EndToEnd::backlog()),
        'c' => {
            peers = vec![Peer::antiphon(nats_url)];
            peers.extend(Peer::paced());
            paths = EndToEnd::paced();
        }
        'd' => peers = Peer::snapshots(nats_url),
        'e' => peers = vec![Peer::takeover(nats_url)],
        _ => {}
    }
    let paths = paths.into_iter().map(|path| Contender::EndToEnd(Box::new(path)));
    let peers = peers.into_iter().map(|peer| Contender::Peer(Box::new(peer)));
    paths.chain(peers).chain(raws.into_iter().map(Contender::Raw)).collect()
}

/// Measures, prints the table, and tells whether every contender did what it should and every goal was met.
pub async fn run(options: &Options) -> Result<bool> {
    let options = options.resolved();
    ensure!(options.agents > 0 && options.tasks > 0 && options.rounds > 0, "nothing to measure");
    let mut environment = Environment::start().await?;
    let responder = Responder::start(&environment.nats_url()).await?;
    let (mut table, mut all) = (Table::default(), Vec::new());
    for part in options.rows.iter().copied() {
        let mut entries = Vec::new();
        for contender in contenders(part, &environment.nats_url()) {
            if !options.wants(&contender) {
                continue;
            }
            match contender.missing() {
                Some(why) => table.rows.push(Row::new(part, contender.name(), "not measured").note(why)),
                None => entries.push(Entry { part, contender, rounds: Vec::new(), failure: None }),
            }
        }
        measure(&options, &mut environment, &mut entries).await;
        table.rows.extend(entries.iter().map(report::row));
        all.extend(entries);
    }
    if options.rows.contains(&'f') {
        table.rows.push(idle::measure(&options, &mut environment).await?);
    }
    drop((responder, environment));
    if options.rows.contains(&'g') {
        table.rows.push(statements::measure(&options).await?);
    }
    table.rows.extend(goals::rows(&all));
    table.rows.sort_by_key(|row| row.part);
    println!("\n{table}");
    if let Some(path) = &options.json {
        let json = serde_json::to_vec_pretty(&table)?;
        std::fs::write(path, json).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(table.is_met() && all.iter().all(|entry| entry.failure.is_none()))
}

/// All rounds, every contender once in each.
async fn measure(options: &Options, environment: &mut Environment, entries: &mut [Entry]) {
    for number in 1..=options.rounds {
        for entry in entries.iter_mut() {
            if entry.failure.is_some() || (number > 1 && entry.contender.is_slow()) {
                continue;
            }
            let round = entry.round(environment, options.load(entry.part)).await;
            let name = format!("    {} round {number}, {}", entry.part, entry.contender.name());
            match round {
                Ok(round) => {
                    eprintln!("{name}: {}", report::progress(&round));
                    entry.rounds.push(round);
                }
                Err(error) => {
                    eprintln!("{name} failed: {error:#}");
                    entry.failure = Some(format!("{error:#}"));
                }
            }
        }
    }
}

impl Entry {
    async fn round(&mut self, environment: &mut Environment, load: Load) -> Result<Round> {
        self.contender.prepare(environment, load).await.context("preparing")?;
        self.contender.run(environment).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let sorted: Vec<u64> = (1..=200).map(|ms| ms * 1_000).collect();
        assert_eq!(percentile_ms(&sorted, 0.5), Some(100.0));
        assert_eq!(percentile_ms(&sorted, 0.99), Some(198.0));
        assert_eq!(percentile_ms(&[7_000], 0.99), Some(7.0));
        assert_eq!(percentile_ms(&[], 0.5), None);
    }

    #[test]
    fn latency_is_measured_for_about_as_long_as_was_asked() {
        let options = Options::parse_from(["bench", "--rate", "200", "--seconds", "10"]);
        let load = options.load('c');
        assert_eq!((load.agents, load.tasks, load.rate), (1_000, 2, Some(200.0)));
        assert_eq!(options.load('a').rate, None);
    }
}
