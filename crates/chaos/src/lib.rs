//! Kills real processes at random under load, lets them recover, and then checks the outcome.
//!
//! [`run`] starts NATS, Postgres with a proxy in front, workers, gateways and workflow services. It
//! publishes short messages, talks, sends tasks and subscribes to the threads. It makes one fault
//! after another, at first each kind once. Then it waits until everything acknowledged has ended,
//! and passes log, acknowledgements, tables and transcripts to [`crate::verify`].
//!
//! The seed determines which events happen and when, as far as processes and clocks allow.
#![allow(
    clippy::disallowed_methods,
    reason = "tooling at the edge: it reads the environment and spawns what it likes"
)]

pub mod alerts;
mod environment;
mod evidence;
mod fault;
mod faults;
mod load;
pub mod manifests;
mod options;
pub mod pods;
mod recovery;
mod report;
pub mod restores;
mod turns;
pub mod verify;
mod workload;

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, atomic::AtomicBool},
    time::Instant,
};

use anyhow::{Context, Result};
use testkit::{
    fleet::{Fleet, FleetOptions},
    nats_cluster::NatsCluster,
    proxy::Proxy,
    services::PostgresServer,
};

pub use fault::Fault;
pub use options::{ChaosSettings, TalkSettings};
pub use report::ChaosReport;

use environment::ChaosEnvironment;
use workload::Workload;

/// Runs the test. Returns an error if the run could not be completed. If it found a violation, the
/// report contains it.
pub async fn run(settings: &ChaosSettings) -> Result<ChaosReport> {
    _ = std::fs::remove_dir_all(&settings.log_dir);
    let began = Instant::now();
    let mut environment = ChaosEnvironment::set(settings).await?;
    let (stop, stats) = (Arc::new(AtomicBool::new(false)), Arc::new(load::LoadStats::default()));
    let load = environment.workload.begin(settings, &stop, &stats).await;
    let load = load.with_context(|| environment.fleet.log_tails())?;
    let mut faults = faults::Injector::new(settings)?;
    let injected = faults.run(&mut environment, &stats).await;
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let logs = environment.fleet.log_tails();
    injected.with_context(|| logs.clone())?;
    for task in load {
        task.await.context("a publisher panicked")?.with_context(|| logs.clone())?;
    }
    let mut violations = faults.violations();
    environment.proxy.disarm();
    violations.extend(environment.workload.come_to_rest(settings).await?);
    let evidence = environment.workload.evidence(settings).await?;
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
        let workload = Workload::prepare(settings, &nats.url(), postgres.url(), fleet.gateway_addrs()).await;
        let workload = workload.with_context(|| fleet.log_tails())?;
        Ok(Self { nats, postgres, proxy, fleet, workload })
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
    if settings.other_binary.is_none() {
        // A low limit, so that messages that stay open are saved within a run. A run has fewer
        // entries than a replay may have by default.
        options = options.with_env("ANTIPHON_REPLAY_ENTRIES", 2_000);
    }
    options.worker_database_url = Some(proxy.url(postgres.url())?);
    (options.workers, options.gateways, options.partitions) =
        (settings.workers, settings.gateways, settings.partitions);
    options.workflows = vec![turns::workflow(); settings.workflows];
    options.log_dir = Some(settings.log_dir.clone());
    Ok(options)
}
