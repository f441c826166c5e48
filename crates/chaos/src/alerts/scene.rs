//! The fleet whose alerts are provoked, and the Prometheus that watches it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use devservices::services::{Port, ScratchDir};
use model::{PartitionCount, PartitionId, ThreadId};
use rand::{SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use sqlx::PgPool;
use testkit::{
    acked_publishes::AckLog,
    api::Api,
    fleet::{Fleet, FleetOptions, Process, WorkflowOptions, WorkflowProgram, binary},
    http,
    load::{Disorder, PlannedMessage},
    manual_workflow::ManualWorkflow,
    prometheus::Prometheus,
    proxy::Proxy,
    publisher::{Addressing, Publisher},
    services::{self, NatsServer, PostgresServer},
    text,
};
use tokio::time::sleep;

const PARTITIONS: u16 = 8;
/// Number of threads and agents of a provocation; more than any threshold.
pub(super) const MANY: usize = 30;
pub(super) const LEASE: Duration = Duration::from_secs(3);
/// The workflow whose model is unreachable.
pub(super) const MODEL_WORKFLOW: &str = "model";
/// The workflow whose tool never answers and must not be called twice.
pub(super) const TOOL_WORKFLOW: &str = "tool";
/// Maximum time until an alert fires.
const LIMIT: Duration = Duration::from_secs(60);
/// Pause between two attempts to provoke an alert.
const PAUSE: Duration = Duration::from_secs(2);

/// The time until each alert fired, by its name.
pub(super) type Fired = BTreeMap<String, Duration>;

pub(super) struct Scene {
    pub(super) nats: NatsServer,
    pub(super) postgres: PostgresServer,
    pub(super) proxy: Proxy,
    pub(super) fleet: Fleet,
    pub(super) publisher: Publisher,
    pub(super) pool: PgPool,
    pub(super) other_binary: Option<PathBuf>,
    pub(super) rng: StdRng,
    prometheus: Prometheus,
    count: usize,
    /// The script and the tool of the [`TOOL_WORKFLOW`] service.
    _tool: SilentTool,
    /// Kept for the consumer that it has created, which redelivers requests soon.
    _consumer: ManualWorkflow,
}

impl Scene {
    pub(super) async fn set(rules: &str, other_binary: Option<PathBuf>) -> Result<Self> {
        let (nats, postgres) = (NatsServer::start().await?, PostgresServer::start().await?);
        let (_, port) = testkit::host_and_port(postgres.url())?;
        let proxy = Proxy::start(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await?;
        let tool = SilentTool::new()?;
        let mut options = FleetOptions::new(nats.url(), postgres.url())
            .with_env("ANTIPHON_LEASE_TTL_SECONDS", LEASE.as_secs())
            .with_env("ANTIPHON_GAP_TIMEOUT_SECONDS", 2)
            // A small number, because few entries arrive while Postgres is paused.
            .with_env("ANTIPHON_REPLAY_ENTRIES", 2)
            .with_workflow(WorkflowOptions::script(script()))
            .with_workflow(unreachable_model()?)
            .with_workflow(tool.workflow()?);
        options.worker_database_url = Some(proxy.url(postgres.url())?);
        options.partitions = PARTITIONS;
        let fleet = Fleet::start(options).await?;
        let consumer = ManualWorkflow::connect(nats.url(), "default", Duration::from_secs(1)).await?;
        let processes = fleet.workers.iter().chain(&fleet.gateways).chain(&fleet.workflows);
        let targets: Vec<_> = processes.map(|process| process.metrics_addr()).collect();
        let prometheus = Prometheus::start(&targets, Some(rules))?;
        until_all_are_scraped(&prometheus, targets.len()).await?;
        let addressing = Addressing::Exact(partition_count()?);
        let publisher = Publisher::connect(nats.url(), addressing).await?;
        let pool = services::pool(postgres.url()).await?;
        let rng = StdRng::seed_from_u64(1);
        Ok(Self {
            nats,
            postgres,
            proxy,
            fleet,
            publisher,
            pool,
            other_binary,
            rng,
            prometheus,
            count: 0,
            _tool: tool,
            _consumer: consumer,
        })
    }

    pub(super) fn api(&self) -> Api {
        Api(self.fleet.gateways[0].http_addr())
    }

    /// A name that was not used before.
    pub(super) fn name(&mut self, prefix: &str) -> String {
        self.count += 1;
        format!("{prefix}-{}", self.count)
    }

    /// Publishes a message of some chunks into its own thread. The chunk `lost` is never sent.
    pub(super) async fn publish(&mut self, thread: &str, lost: Option<usize>) -> Result<()> {
        let message = PlannedMessage::of_text(thread, &self.name("m"), &text::LICENSE[..200], 3)?;
        let publications = message.publications(Disorder::NONE, lost, &mut self.rng);
        self.publisher.publish(publications, &AckLog::default()).await.map(drop)
    }

    pub(super) async fn kill_workers(&mut self) -> Result<()> {
        for worker in &mut self.fleet.workers {
            worker.kill().await?;
        }
        Ok(())
    }

    pub(super) fn spawn_workers(&mut self) -> Result<()> {
        self.fleet.workers.iter_mut().try_for_each(Process::spawn)
    }

    /// Waits until none of these alerts still fires because of earlier provocations.
    pub(super) async fn quiet(&self, alerts: &[&str]) -> Result<()> {
        let began = Instant::now();
        while began.elapsed() < LIMIT {
            let firing = self.prometheus.firing().await?;
            if !firing.iter().any(|alert| alerts.contains(&alert.as_str())) {
                return Ok(());
            }
            sleep(Duration::from_millis(250)).await;
        }
        bail!("one of {alerts:?} fires for what was done before")
    }

    /// Waits until all of these alerts fire, up to a limit. Returns the time that each took.
    pub(super) async fn watch(&mut self, alerts: &[&str]) -> Result<Fired> {
        self.watch_while(alerts, async |_: &mut Self| Ok(())).await
    }

    /// Does [`Self::watch`] while it provokes repeatedly.
    pub(super) async fn watch_while(
        &mut self,
        alerts: &[&str],
        mut provoke: impl AsyncFnMut(&mut Self) -> Result<()>,
    ) -> Result<Fired> {
        let (began, mut fired) = (Instant::now(), Fired::new());
        let wanted: BTreeSet<&str> = alerts.iter().copied().collect();
        while fired.len() < wanted.len() && began.elapsed() < LIMIT {
            provoke(self).await?;
            let pause = Instant::now();
            while pause.elapsed() < PAUSE && fired.len() < wanted.len() {
                for alert in self.prometheus.firing().await? {
                    if wanted.contains(alert.as_str()) {
                        fired.entry(alert).or_insert_with(|| began.elapsed());
                    }
                }
                sleep(Duration::from_millis(250)).await;
            }
        }
        Ok(fired)
    }

    /// Waits until all processes are ready again. If some are not ready in time, they are printed
    /// with the reason, and the run continues.
    pub(super) async fn ready(&mut self) -> Result<()> {
        if self.fleet.ready(LIMIT).await.is_ok() {
            return Ok(());
        }
        for process in self.fleet.workers.iter().chain(&self.fleet.gateways) {
            let answer = http::get(process.metrics_addr(), "/readyz").await?;
            println!("  {} after {LIMIT:?}: {} {}", process.name(), answer.status, answer.text.trim());
        }
        Ok(())
    }
}

/// Waits until Prometheus has scraped all targets, which takes some seconds. An increase before the
/// first scrape of a counter is not visible.
async fn until_all_are_scraped(prometheus: &Prometheus, targets: usize) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < LIMIT {
        if prometheus.query("up == 1").is_ok_and(|series| series.len() == targets) {
            return Ok(());
        }
        sleep(Duration::from_millis(250)).await;
    }
    bail!("Prometheus does not scrape all {targets} processes")
}

pub(super) fn partition_count() -> Result<PartitionCount> {
    Ok(PartitionCount::new(PARTITIONS.into())?)
}

pub(super) fn partition(thread: &ThreadId) -> Result<PartitionId> {
    Ok(thread.bucket().partition(partition_count()?))
}

fn script() -> Value {
    let error = |class: &str| json!({"error": {"class": class, "message": "by script"}});
    let slowly = json!({"text": {"content": "{input}, as slowly as it goes", "chars": 3, "every_ms": 400}});
    let when =
        |word: &str, steps: Value| json!({"name": word, "when": {"input_contains": word}, "steps": steps});
    json!({"scenarios": [
        when("fails-for-good", json!([error("permanent")])),
        when("fails-always", json!([error("transient")])),
        when("slowly", json!([slowly])),
        when("dies", json!([{"cut": true}])),
        {"name": "echo", "steps": [{"text": {"content": "You said: {input}", "chars": 6}}]},
    ]})
}

fn unreachable_model() -> Result<WorkflowOptions> {
    workflow_with_model(MODEL_WORKFLOW, "http://127.0.0.1:9/v1", &[])
}

fn workflow_with_model(name: &str, base_url: &str, further: &[&str]) -> Result<WorkflowOptions> {
    let arguments =
        ["workflow", "--workflow-engine", "openai", "--llm-base-url", base_url, "--llm-model", "none"];
    let program = WorkflowProgram::Program {
        binary: binary()?,
        arguments: arguments.iter().chain(further).map(|word| (*word).to_owned()).collect(),
        dir: std::env::temp_dir(),
    };
    Ok(WorkflowOptions { workflow: name.to_owned(), program })
}

/// The files of a service whose scripted model calls a tool that accepts connections but never
/// answers.
struct SilentTool {
    scratch: ScratchDir,
    script: Port,
    _tool: TcpListener,
}

impl SilentTool {
    fn new() -> Result<Self> {
        let (scratch, tool) = (ScratchDir::new("silent-tool")?, TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?);
        let url = format!("http://{}/pay", tool.local_addr()?);
        let tools =
            json!({"tools": [{"name": "pay", "url": url, "idempotent": false, "timeout_seconds": 0.3}]});
        let calls = json!([{"tools": [{"name": "pay", "arguments": {}}]}]);
        let script = json!({"scenarios": [{"name": "pays", "steps": calls}]});
        fs::write(scratch.path().join("tools.json"), tools.to_string())?;
        fs::write(scratch.path().join("script.json"), script.to_string())?;
        Ok(Self { scratch, script: Port::reserve()?, _tool: tool })
    }

    fn workflow(&self) -> Result<WorkflowOptions> {
        let file = |name: &str| self.scratch.path().join(name).display().to_string();
        let (tools, script) = (file("tools.json"), file("script.json"));
        let address = format!("127.0.0.1:{}", self.script.number());
        let further = ["--tools-file", &tools, "--script-file", &script, "--serve-openai", &address];
        workflow_with_model(TOOL_WORKFLOW, &format!("http://{address}/v1"), &further)
    }
}
