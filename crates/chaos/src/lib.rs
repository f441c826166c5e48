//! Real processes, killed at random under load, then left in peace, then checked.
//!
//! [`run`] starts NATS, Postgres, a proxy before it, workers, gateways and workflow services of its own; keeps publishing
//! short messages, talking, sending tasks, and following the threads; makes one fault after another, every kind first once; then waits until all that was
//! acknowledged has ended, and hands log, acknowledgements, tables and transcripts to [`crate::verify`]. What happens and when
//! follows from the seed, as far as processes and clocks allow.
#![allow(
    clippy::disallowed_methods,
    reason = "tooling at the edge: it reads the environment and spawns what it likes"
)]

mod environment;
mod evidence;
mod fault;
mod faults;
mod load;
mod options;
mod recovery;
mod report;
pub mod restores;
mod turns;
pub mod verify;

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use model::PartitionCount;
use rand::{SeedableRng, rngs::StdRng};
use simulation::checker::Published;
use sqlx::PgPool;
use tokio::time::sleep;

use testkit::{
    db_snapshot,
    fleet::{Fleet, FleetOptions},
    nats_cluster::NatsCluster,
    proxy::Proxy,
    publisher::{Addressing, Publisher},
    services::{self, PostgresServer},
    sse::Follower,
};

pub use fault::Fault;
pub use options::ChaosSettings;
pub use report::ChaosReport;

use environment::ChaosEnvironment;
use evidence::CollectedEvidence;
use turns::TurnLoad;
use verify::evidence::RuleViolation;

/// Runs it. A run that could not be finished is an error; one that found something wrong is a report that says so.
pub async fn run(settings: &ChaosSettings) -> Result<ChaosReport> {
    _ = std::fs::remove_dir_all(&settings.log_dir);
    let began = Instant::now();
    let mut environment = ChaosEnvironment::set(settings).await?;
    let (stop, stats) = (Arc::new(AtomicBool::new(false)), Arc::new(load::LoadStats::default()));
    let load = environment.begin_load(settings, &stop, &stats).await?;
    let mut faults = faults::Injector::new(settings)?;
    let injected = faults.run(&mut environment, &stats).await;
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let logs = environment.fleet.log_tails();
    injected.with_context(|| logs.clone())?;
    for task in load {
        task.await.context("a publisher panicked")?.with_context(|| logs.clone())?;
    }
    let mut violations = faults.violations();
    violations.extend(environment.come_to_rest(settings).await?);
    let evidence = environment.evidence(settings).await?;
    violations.extend(evidence.check(settings)?);
    if !violations.is_empty() {
        evidence.write_transcripts(&settings.log_dir)?;
    }
    let report =
        ChaosReport::new(settings, began.elapsed(), &environment, &faults, &stats, evidence, violations);
    if report.is_good() {
        drop(environment);
        _ = std::fs::remove_dir_all(&settings.log_dir);
    }
    Ok(report)
}

impl ChaosEnvironment {
    async fn set(settings: &ChaosSettings) -> Result<Self> {
        let nats = NatsCluster::start(settings.nats_servers).await?;
        let postgres = PostgresServer::start().await?;
        let (_, port) = testkit::host_and_port(postgres.url())?;
        let proxy = Proxy::start(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await?;
        let fleet = Fleet::start(fleet_options(settings, &nats, &postgres, &proxy)?).await?;
        let count = PartitionCount::new(settings.partitions.into())?;
        let turns = TurnLoad::prepare(settings, &nats.url(), count, &fleet.gateway_addrs()).await;
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
        settings: &ChaosSettings,
        stop: &Arc<AtomicBool>,
        stats: &Arc<load::LoadStats>,
    ) -> Result<Vec<load::LoadTask>> {
        self.followers = load::follow(settings, &self.fleet.gateway_addrs());
        for follower in &self.followers {
            follower.opened().await.with_context(|| self.fleet.log_tails())?;
        }
        let count = PartitionCount::new(settings.partitions.into())?;
        let mut tasks = Vec::new();
        for number in 0..load::PUBLISHERS {
            let publisher = Publisher::connect(&self.nats.url(), Addressing::Exact(count)).await?;
            let rng = StdRng::seed_from_u64(settings.seed.wrapping_add(1 + number as u64));
            let source =
                load::MessageSource::new(settings, number, publisher, Arc::clone(&self.ack_log), rng);
            tasks.push(tokio::spawn(source.run(Arc::clone(stop), Arc::clone(stats))));
        }
        tasks.extend(self.turns.begin(stop).await?);
        Ok(tasks)
    }

    /// No faults any more: what has been acknowledged must end, and clients must learn of it.
    async fn come_to_rest(&mut self, settings: &ChaosSettings) -> Result<Vec<RuleViolation>> {
        self.proxy.disarm();
        // A long run leaves queues that take minutes. What is wrong stands still.
        let (mut moved_at, mut last) = (Instant::now(), (0, None));
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
            let now = (messages + dead_letters, left.clone());
            if now != last {
                (moved_at, last) = (Instant::now(), now);
            }
            if moved_at.elapsed() > limit {
                let found = format!(
                    "{expected} acknowledged, {messages} persisted, {dead_letters} dead letters; left: {left:?}"
                );
                violations.push(RuleViolation::new(
                    "everything ends once there is peace",
                    format!("nothing moved for {limit:?}"),
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

    async fn evidence(&mut self, settings: &ChaosSettings) -> Result<CollectedEvidence> {
        let count = PartitionCount::new(settings.partitions.into())?;
        let reader = Publisher::connect(&self.nats.url(), Addressing::Exact(count)).await?;
        let pool = services::pool(self.postgres.url()).await?;
        let followers = std::mem::take(&mut self.followers);
        let (turns, views) = self.turns.evidence(&pool, &reader).await?;
        let mut messages = db_snapshot::messages(&pool).await?;
        messages.retain(|row| load::is_bare(&row.thread_id));
        let commit_times = db_snapshot::commit_times(&pool).await?;
        let mut log = verify::read_log(reader.context(), count).await?;
        log.retain(|publish| match &publish.body {
            Published::Chunk { key, .. } => load::is_bare(key.thread.as_str()),
            _ => true,
        });
        Ok(CollectedEvidence {
            ack_log: self.ack_log.snapshot(),
            log,
            messages,
            commit_times,
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

fn fleet_options(
    settings: &ChaosSettings,
    nats: &NatsCluster,
    postgres: &PostgresServer,
    proxy: &Proxy,
) -> Result<FleetOptions> {
    let mut options = FleetOptions::new(&nats.url(), postgres.url())
        .with_env("ANTIPHON_STREAM_REPLICAS", settings.nats_servers)
        .with_env("ANTIPHON_LEASE_TTL_SECONDS", settings.lease.as_secs())
        .with_env("ANTIPHON_GAP_TIMEOUT_SECONDS", settings.gap_timeout.as_secs())
        .with_env(verify::KEEP_LOG.0, verify::KEEP_LOG.1);
    options.worker_database_url = Some(proxy.url(postgres.url())?);
    (options.workers, options.gateways, options.partitions) =
        (settings.workers, settings.gateways, settings.partitions);
    options.workflows = vec![turns::workflow(); settings.workflows];
    options.log_dir = Some(settings.log_dir.clone());
    Ok(options)
}

/// Bare messages that are persisted, and dead letters.
async fn ended(pool: &PgPool) -> Result<(usize, usize)> {
    let messages =
        db_snapshot::messages(pool).await?.iter().filter(|row| load::is_bare(&row.thread_id)).count();
    Ok((messages, db_snapshot::dead_letters(pool).await?.len()))
}
