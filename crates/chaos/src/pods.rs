//! The pods of the chart, run by podman, upgraded and disturbed one after the other while clients
//! are subscribed.
//!
//! [`run`] renders the chart, runs its migration and its Deployments with one address per pod, and
//! probes them like a kubelet. It directs clients to ready gateways, and moves the pods to another
//! image and back, in rounds. Load, subscribers and checks are those of [`crate::run`]. In addition
//! it measures how long a client received nothing while an answer was due.

mod chart;
mod faults;
mod fleet;
mod pod;
mod podman;
mod report;
mod service;
mod silence;

use std::{
    net::SocketAddr,
    path::Path,
    process::Stdio,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use devservices::{
    services::{NatsOptions, Port, PostgresOptions, ScratchDir},
    tools,
};
use testkit::{
    fleet as processes, http,
    services::{NatsServer, PostgresServer, TestDatabase},
};
use tokio::{process::Child, time::sleep};

use crate::{
    load::LoadStats,
    options::{ChaosSettings, TalkSettings},
    turns, verify,
    workload::Workload,
};
use chart::Rendered;
use faults::PodFault;
use fleet::PodFleet;
use podman::{HOST_ADDRESS, Podman};
use report::Findings;
use service::GatewayService;

pub use report::PodsReport;

/// Length of the phases without changes: before the first round, and after each change.
const REST: Duration = Duration::from_secs(10);
/// Rate of messages that belong to no turn. The main load here is turns.
const MESSAGES_PER_SECOND: f64 = 5.0;
/// Time between two turns that a person begins.
const PACE: Duration = Duration::from_secs(1);

/// The settings of a run.
#[derive(Debug, Clone)]
pub struct PodsSettings {
    /// Tags of the `antiphon` image: the first version, and the version of the upgrade.
    pub tags: [String; 2],
    /// Number of times that all pods are moved to the other image.
    pub rounds: usize,
    /// True if each kind of fault is made to a pod of each role.
    pub with_faults: bool,
    /// Total number of subscribers of turns.
    pub subscribers: usize,
    /// Turns begun per second.
    pub turns_per_second: usize,
    pub seed: u64,
}

/// Runs the test. Returns an error if the run could not be completed. If it found a violation, the
/// report contains it.
pub async fn run(settings: &PodsSettings) -> Result<PodsReport> {
    podman::check_programs()?;
    let chaos = chaos_settings(settings);
    _ = std::fs::remove_dir_all(&chaos.log_dir);
    std::fs::create_dir_all(&chaos.log_dir)?;
    service::add_addresses().await?;
    let mut cluster = Cluster::set_up(settings, &chaos).await?;
    let judged = cluster.judge(settings, &chaos).await;
    let logs = cluster.fleet.write_logs(&chaos.log_dir).await;
    cluster.podman.clear().await;
    // The database is dropped before its address is removed. Otherwise the statement would be sent
    // to another machine.
    drop(cluster);
    service::remove_addresses().await;
    logs?;
    judged
}

fn chaos_settings(settings: &PodsSettings) -> ChaosSettings {
    let mut chaos = ChaosSettings::new(Duration::ZERO, settings.seed);
    chaos.log_dir = devservices::workspace::target_dir().join("pods");
    // This is the binary's default, which the chart does not change.
    chaos.lease = Duration::from_secs(10);
    chaos.messages_per_second = MESSAGES_PER_SECOND;
    let people = settings.turns_per_second.max(1);
    let followers = settings.subscribers.div_ceil(people);
    chaos.talks = TalkSettings { people, followers, pause: PACE, is_calm: true };
    chaos
}

struct Cluster {
    fleet: PodFleet,
    workload: Workload,
    podman: Arc<Podman>,
    images: [Rendered; 2],
    _nats: NatsServer,
    _database: TestDatabase,
    _postgres: PostgresServer,
    _model: Model,
}

/// An OpenAI-compatible endpoint with the script of the load.
struct Model {
    url: String,
    _process: Child,
    _port: Port,
    _script: ScratchDir,
}

impl Cluster {
    async fn set_up(settings: &PodsSettings, chaos: &ChaosSettings) -> Result<Self> {
        let mut nats = NatsOptions::new(tools::nats_server()?.path);
        nats.address = HOST_ADDRESS;
        let nats = NatsServer::start_as(nats).await?;
        let mut postgres = PostgresOptions::new(tools::postgres()?.path);
        postgres.address = HOST_ADDRESS;
        postgres.trusted = Some(podman::WHOLE_NETWORK.to_owned());
        let postgres = PostgresServer::start_as(postgres).await?;
        let database = TestDatabase::create_on(postgres.url()).await?;
        // Removes the part of the URL that makes our own statements see all tenants.
        let database_url = database.url().split('?').next().unwrap_or_default();
        let model = Model::start(&chaos.log_dir).await?;
        let podman = Arc::new(Podman::set_up(database_url).await?);
        let [one, other] = &settings.tags;
        let images = [
            chart::render(&values(chaos, one, nats.url(), &model.url))?,
            chart::render(&values(chaos, other, nats.url(), &model.url))?,
        ];
        let gateway = images[0].deployments.iter().find(|template| template.role == "gateway");
        let port =
            gateway.and_then(|template| template.ports.get("http")).context("no gateway with a port")?;
        let service = Arc::new(GatewayService::set_up(*port).await?);
        println!("starting the pods of the chart with {}", images[0].migration.image);
        let fleet = PodFleet::start(&images[0], Arc::clone(&podman), service, chaos.log_dir.clone()).await?;
        http::carry_key(&key(database_url).await?);
        let workload =
            Workload::prepare(chaos, nats.url(), database.url(), vec![GatewayService::address()]).await?;
        Ok(Self {
            fleet,
            workload,
            podman,
            images,
            _nats: nats,
            _database: database,
            _postgres: postgres,
            _model: model,
        })
    }

    async fn judge(&mut self, settings: &PodsSettings, chaos: &ChaosSettings) -> Result<PodsReport> {
        let (stop, stats) = (Arc::new(AtomicBool::new(false)), Arc::new(LoadStats::default()));
        let load = self.workload.begin(chaos, &stop, &stats).await?;
        let began = Instant::now();
        let mut findings = Findings::default();
        let changed = self.change(settings, &mut findings).await;
        let under_load = began.elapsed();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        changed?;
        for task in load {
            task.await.context("a client panicked")??;
        }
        findings.begin("until everything has ended");
        findings.violations.extend(self.workload.come_to_rest(chaos).await?);
        findings.note_memory(&self.fleet).await?;
        findings.note_ends(&self.fleet.ends);
        let evidence = self.workload.evidence(chaos).await?;
        findings.violations.extend(evidence.check(chaos)?);
        if !findings.violations.is_empty() {
            evidence.write_transcripts(&chaos.log_dir)?;
        }
        Ok(PodsReport::new(chaos, under_load, &self.workload, findings, &evidence))
    }

    /// Makes the rounds and the faults, in sequence.
    async fn change(&mut self, settings: &PodsSettings, findings: &mut Findings) -> Result<()> {
        findings.begin("nothing is done");
        sleep(REST).await;
        for round in 1..=settings.rounds {
            let images = &self.images[round % 2];
            findings.begin(format!("round {round}: all pods to {}", images.migration.image));
            self.fleet.upgrade(images).await?;
            sleep(REST).await;
            findings.note_restarts(&self.fleet).await?;
        }
        if settings.with_faults {
            for fault in PodFault::ALL {
                for role in ["worker", "gateway", "workflow"] {
                    self.hurt(fault, role, findings).await?;
                }
            }
        }
        Ok(())
    }

    async fn hurt(&mut self, fault: PodFault, role: &str, findings: &mut Findings) -> Result<()> {
        let deployment = self.fleet.deployments.iter().find(|deployment| deployment.role == role);
        let pod = deployment.context("no such Deployment")?.busiest().await?;
        findings.begin(format!("{role} {}", fault.name()));
        let outcome = fault.make(pod).await.with_context(|| format!("{role} {}", fault.name()))?;
        findings.note_fault(fault, pod, outcome);
        sleep(REST).await;
        Ok(())
    }
}

/// The values that a deployment would set. All others are the chart's defaults.
fn values(chaos: &ChaosSettings, tag: &str, nats_url: &str, model_url: &str) -> Vec<String> {
    let (retain, retain_seconds) = verify::KEEP_LOG;
    vec![
        format!("image.tag={tag}"),
        format!("nats.url={nats_url}"),
        "nats.streamReplicas=1".to_owned(),
        format!("database.existingSecret={}", chart::RELEASE),
        format!("partitions={}", chaos.partitions),
        format!("env.{retain}={retain_seconds}"),
        format!("env.ANTIPHON_GAP_TIMEOUT_SECONDS={}", chaos.gap_timeout.as_secs()),
        // No limit, because all clients have the address of this machine.
        "gateway.maxConnectionsPerIp=0".to_owned(),
        "workflow.enabled=true".to_owned(),
        "workflow.replicas=2".to_owned(),
        format!("workflow.llm.baseUrl={model_url}"),
        "workflow.llm.model=script".to_owned(),
        "mcp.enabled=true".to_owned(),
    ]
}

/// Creates an API key with the rights that the load needs.
async fn key(database_url: &str) -> Result<String> {
    let env = [("DATABASE_URL".to_owned(), database_url.to_owned())];
    let created = processes::invoke(&["keys", "create-first", "pods", "--role", "admin"], &env).await?;
    ensure!(created.code == Some(0), "a key could not be created: {}", created.stderr);
    Ok(created.stdout.lines().next().unwrap_or_default().trim().to_owned())
}

impl Model {
    async fn start(log_dir: &Path) -> Result<Self> {
        let (script, port) = (ScratchDir::new("model")?, Port::reserve()?);
        let file = script.path().join("script.json");
        std::fs::write(&file, turns::script().to_string())?;
        let addr = SocketAddr::from((HOST_ADDRESS, port.number()));
        let log = std::fs::File::create(log_dir.join("model.log"))?;
        let mut process = tokio::process::Command::new(processes::binary()?);
        process.arg("workflow").env("ANTIPHON_WORKFLOW_ENGINE", "none").env("ANTIPHON_SCRIPT_FILE", &file);
        process
            .env("ANTIPHON_SCRIPT_HTTP_ADDR", addr.to_string())
            .env("ANTIPHON_METRICS_ADDR", "127.0.0.1:0");
        process.env("ANTIPHON_LOG", "warn").stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let process = process.kill_on_drop(true).spawn().context("starting the model")?;
        Ok(Self { url: format!("http://{addr}/v1"), _process: process, _port: port, _script: script })
    }
}
