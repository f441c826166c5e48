//! Real processes, killed at random under load, then left in peace, then checked.
//!
//! [`run`] starts NATS, Postgres, a proxy before it, workers, gateways and workflow services of its own; keeps publishing
//! short messages, talking, sending tasks, and following the threads; makes one fault after another, every kind first once; then waits until all that was
//! acknowledged has ended, and hands log, ack_log, tables and transcripts to the [`crate::verify`]. What happens and when
//! follows from the seed, as far as processes and clocks allow.
#![allow(
    clippy::disallowed_methods,
    reason = "tooling at the edge: it reads the environment and spawns what it likes"
)]

mod faults;
mod load;
mod report;
pub mod restores;
mod turns;
pub mod verify;

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use model::PartitionCount;
use rand::{SeedableRng, rngs::StdRng};
use simulation::checker::Published;
use sqlx::PgPool;
use tokio::time::sleep;

use crate::verify::{Evidence, Violation, turns::TurnEvidence};
use testkit::{
    acked_publishes::AckLog,
    db_snapshot,
    fleet::{Fleet, FleetOptions},
    proxy::Proxy,
    publisher::{Addressing, Publisher},
    services::{self, NatsServer, PostgresServer},
    sse::Follower,
};

pub use faults::Fault;
pub use report::Report;

use turns::TurnLoad;

/// How a run is set up.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How long faults are made.
    pub duration: Duration,
    /// Where all randomness comes from.
    pub seed: u64,
    /// Number of workers.
    pub workers: usize,
    /// Number of gateways.
    pub gateways: usize,
    /// Number of workflow services.
    pub workflows: usize,
    /// Number of partitions.
    pub partitions: u16,
    /// Lease of a partition; short, so that takeovers are many.
    pub lease: Duration,
    /// After this long a message with a lost chunk is given up.
    pub gap_timeout: Duration,
    /// Number of threads, each with one client.
    pub threads: usize,
    /// Messages begun per second.
    pub messages_per_second: f64,
    /// Where logs go; kept when something is wrong.
    pub log_dir: PathBuf,
    /// Says each fault when it is made.
    pub is_verbose: bool,
}

impl Settings {
    /// Three workers, two gateways and two workflow services on 8 partitions, 25 messages a second.
    pub fn new(duration: Duration, seed: u64) -> Self {
        Self {
            duration,
            seed,
            workers: 3,
            gateways: 2,
            workflows: 2,
            partitions: 8,
            lease: Duration::from_secs(3),
            gap_timeout: Duration::from_secs(8),
            threads: 30,
            messages_per_second: 25.0,
            log_dir: devservices::workspace::target_dir().join("chaos").join(seed.to_string()),
            is_verbose: false,
        }
    }

    fn fleet_options(
        &self,
        nats: &NatsServer,
        postgres: &PostgresServer,
        proxy: &Proxy,
    ) -> Result<FleetOptions> {
        let mut options = FleetOptions::new(nats.url(), postgres.url())
            .with_env("ANTIPHON_LEASE_TTL_SECONDS", self.lease.as_secs())
            .with_env("ANTIPHON_GAP_TIMEOUT_SECONDS", self.gap_timeout.as_secs())
            .with_env(verify::KEEP_LOG.0, verify::KEEP_LOG.1);
        options.worker_database_url = Some(proxy.url(postgres.url())?);
        (options.workers, options.gateways, options.partitions) =
            (self.workers, self.gateways, self.partitions);
        options.workflows = vec![turns::workflow(); self.workflows];
        options.log_dir = Some(self.log_dir.clone());
        Ok(options)
    }
}

/// Everything that a run consists of.
struct Stage {
    nats: NatsServer,
    postgres: PostgresServer,
    proxy: Proxy,
    fleet: Fleet,
    ack_log: Arc<AckLog>,
    followers: Vec<Follower>,
    turns: TurnLoad,
    /// The partitions as they were granted first.
    granted: Vec<db_snapshot::StoredPartition>,
}

/// Runs it. A run that could not be finished is an error; one that found something wrong is a report that says so.
pub async fn run(settings: &Settings) -> Result<Report> {
    _ = std::fs::remove_dir_all(&settings.log_dir);
    let began = Instant::now();
    let mut stage = Stage::set(settings).await?;
    let (stop, stats) = (Arc::new(AtomicBool::new(false)), Arc::new(load::Stats::default()));
    let load = stage.begin_load(settings, &stop, &stats).await?;
    let mut faults = faults::Injector::new(settings);
    let injected = faults.run(&mut stage, &stats).await;
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let stage_logs = stage.fleet.log_tails();
    injected.with_context(|| stage_logs.clone())?;
    for task in load {
        task.await.context("a publisher panicked")?.with_context(|| stage_logs.clone())?;
    }
    let mut violations = faults.violations();
    violations.extend(stage.come_to_rest(settings).await?);
    let evidence = stage.evidence(settings).await?;
    violations.extend(evidence.check(settings)?);
    let report = Report::new(settings, began.elapsed(), &stage, &faults, &stats, evidence, violations);
    if report.is_good() {
        drop(stage);
        _ = std::fs::remove_dir_all(&settings.log_dir);
    }
    Ok(report)
}

impl Stage {
    async fn set(settings: &Settings) -> Result<Self> {
        let nats = NatsServer::start().await?;
        let postgres = PostgresServer::start().await?;
        let (_, port) = testkit::host_and_port(postgres.url())?;
        let proxy = Proxy::start(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await?;
        let fleet = Fleet::start(settings.fleet_options(&nats, &postgres, &proxy)?).await?;
        let count = PartitionCount::new(settings.partitions.into())?;
        let turns = TurnLoad::prepare(settings, nats.url(), count, &fleet.gateway_addrs()).await;
        let turns = turns.with_context(|| fleet.log_tails())?;
        let granted = db_snapshot::partitions(&services::pool(postgres.url()).await?).await?;
        Ok(Self {
            nats,
            postgres,
            proxy,
            fleet,
            ack_log: Arc::default(),
            followers: Vec::new(),
            turns,
            granted,
        })
    }

    async fn begin_load(
        &mut self,
        settings: &Settings,
        stop: &Arc<AtomicBool>,
        stats: &Arc<load::Stats>,
    ) -> Result<Vec<load::Task>> {
        self.followers = load::follow(settings, &self.fleet.gateway_addrs());
        for follower in &self.followers {
            follower.opened().await.with_context(|| self.fleet.log_tails())?;
        }
        let count = PartitionCount::new(settings.partitions.into())?;
        let mut tasks = Vec::new();
        for number in 0..load::PUBLISHERS {
            let publisher = Publisher::connect(self.nats.url(), Addressing::Exact(count)).await?;
            let rng = StdRng::seed_from_u64(settings.seed.wrapping_add(1 + number as u64));
            let source = load::Source::new(settings, number, publisher, Arc::clone(&self.ack_log), rng);
            tasks.push(tokio::spawn(source.run(Arc::clone(stop), Arc::clone(stats))));
        }
        tasks.extend(self.turns.begin(stop).await?);
        Ok(tasks)
    }

    /// No faults any more: what has been acknowledged must end, and clients must learn of it.
    async fn come_to_rest(&mut self, settings: &Settings) -> Result<Vec<Violation>> {
        self.proxy.disarm();
        let began = Instant::now();
        let limit = settings.gap_timeout + settings.lease * 2 + Duration::from_secs(45);
        let pool = services::pool(self.postgres.url()).await?;
        let expected = self.ack_log.len();
        let mut violations = Vec::new();
        loop {
            let (messages, dead_letters) = ended(&pool).await?;
            let left = self.turns.left(&pool).await?;
            if messages + dead_letters >= expected && left.is_none() {
                break;
            }
            if began.elapsed() > limit {
                let found = format!(
                    "{expected} acknowledged, {messages} persisted, {dead_letters} dead letters; left: {left:?}"
                );
                violations.push(violation(
                    "everything ends once there is peace",
                    format!("after {limit:?}"),
                    found,
                ));
                break;
            }
            sleep(Duration::from_millis(200)).await;
        }
        self.let_clients_learn(&pool).await?;
        self.turns.let_clients_learn(&pool).await?;
        Ok(violations)
    }

    /// Waits as long as clients still learn of ends, with a limit.
    async fn let_clients_learn(&self, pool: &PgPool) -> Result<()> {
        let began = Instant::now();
        let ends = db_snapshot::ends(pool).await?;
        while began.elapsed() < Duration::from_secs(20) {
            let satisfied = |follower: &Follower| {
                follower.inspect(|transcripts| verify::knows_all(follower.thread(), transcripts, &ends))
            };
            if self.followers.iter().all(satisfied) {
                break;
            }
            sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }

    async fn evidence(&mut self, settings: &Settings) -> Result<Collected> {
        let count = PartitionCount::new(settings.partitions.into())?;
        let reader = Publisher::connect(self.nats.url(), Addressing::Exact(count)).await?;
        let pool = services::pool(self.postgres.url()).await?;
        let followers = std::mem::take(&mut self.followers);
        let (turns, views) = self.turns.evidence(&pool, &reader).await?;
        let mut messages = db_snapshot::messages(&pool).await?;
        messages.retain(|row| load::is_bare(&row.thread_id));
        let mut log = verify::read_log(reader.context(), count).await?;
        log.retain(|publish| match &publish.body {
            Published::Chunk { key, .. } => load::is_bare(key.thread.as_str()),
            _ => true,
        });
        Ok(Collected {
            ack_log: self.ack_log.snapshot(),
            log,
            messages,
            turns,
            views,
            dead_letters: db_snapshot::dead_letters(&pool).await?,
            ends: db_snapshot::ends(&pool).await?,
            partitions: db_snapshot::partitions(&pool).await?,
            transcripts: followers
                .into_iter()
                .map(|follower| (follower.thread().to_owned(), follower.stop()))
                .collect(),
        })
    }
}

/// What is left when all is over.
#[derive(Debug)]
struct Collected {
    ack_log: std::collections::BTreeMap<model::MessageKey, testkit::acked_publishes::Sent>,
    log: Vec<simulation::checker::Publish>,
    /// Bare ones.
    messages: Vec<db_snapshot::StoredMessage>,
    turns: TurnEvidence,
    /// What clients saw of turns.
    views: Vec<(String, Vec<testkit::sse::Transcript>)>,
    dead_letters: Vec<db_snapshot::StoredDeadLetter>,
    ends: Vec<db_snapshot::StoredEnd>,
    partitions: Vec<db_snapshot::StoredPartition>,
    transcripts: Vec<(String, Vec<testkit::sse::Transcript>)>,
}

impl Collected {
    fn check(&self, settings: &Settings) -> Result<Vec<Violation>> {
        let mut violations = verify::turns::verify_turns(&self.turns);
        violations.extend(verify::client_transcripts::verify_views(&self.views, &self.turns.messages));
        violations.extend(verify::verify(&Evidence {
            partitions: PartitionCount::new(settings.partitions.into())?,
            ack_log: &self.ack_log,
            log: &self.log,
            messages: &self.messages,
            dead_letters: &self.dead_letters,
            ends: &self.ends,
            transcripts: &self.transcripts,
            gap_timeout: settings.gap_timeout,
            allow_entry_letters: false,
        }));
        Ok(violations)
    }
}

/// Bare messages that are persisted, and dead letters.
async fn ended(pool: &PgPool) -> Result<(usize, usize)> {
    let messages =
        db_snapshot::messages(pool).await?.iter().filter(|row| load::is_bare(&row.thread_id)).count();
    Ok((messages, db_snapshot::dead_letters(pool).await?.len()))
}

fn violation(rule: &'static str, place: impl Into<String>, found: impl Into<String>) -> Violation {
    Violation { rule, place: place.into(), found: found.into() }
}
