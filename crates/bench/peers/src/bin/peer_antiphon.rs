//! The shipped worker with an in-process workflow that answers at once: our queue without external
//! waits. Its only argument is JSON; see [`Settings`].

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use bus::{Bus, BusConfig, StreamOptions};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use model::{
    AgentId, Bucket, Chunk, ChunkKind, Metadata, PartitionCount, Task as Command, TaskId, TaskKind, WorkflowName,
};
use peers::{Notes, Queue, Task};
use runtime::{Clock, Health};
use serde::Deserialize;
use sqlx::{Connection as _, PgConnection};
use store::{Store, StoreConfig};
use testkit::live_follower::LiveFollower;
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use wire::work::TurnRequest;
use worker::{LocalWorkflow, LocalWorkflows, WorkerConfig, WorkerError};

const PARTITIONS: u16 = 8;
const STREAM_BYTES: i64 = 128 << 20;
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of tasks that are published concurrently.
const PUBLISHED: usize = 500;
const WORKFLOW: &str = "default";

/// Settings of the measured worker.
#[derive(Debug, Clone, Deserialize)]
struct Settings {
    nats_url: String,
    /// True if all tasks are in Postgres when the clock starts, as for the other peers. Otherwise
    /// they are in the stream, and the time includes ingesting them.
    #[serde(default)]
    ingested: bool,
    /// Size of each message in bytes.
    #[serde(default = "one")]
    bytes: usize,
    /// Number of messages per turn. 2: question and answer; 4: also a tool call and its result.
    #[serde(default = "two")]
    rows: usize,
    /// Maximum number of turns in one statement.
    turns: Option<usize>,
    /// Number of connections that commit.
    writers: Option<usize>,
    partitions: Option<u16>,
    /// True if requests contain the last messages of the thread, which is the default of agents.
    #[serde(default)]
    history: bool,
}

fn one() -> usize {
    1
}

fn two() -> usize {
    2
}

struct Antiphon {
    settings: Settings,
    open: Option<Open>,
}

struct Open {
    database_url: String,
    bus: Bus,
    store: Store,
    config: WorkerConfig,
    notes: Notes,
    asked: Asked,
    enqueued: u64,
    running: Option<Running>,
    watching: Option<JoinHandle<()>>,
}

struct Running {
    stop: CancellationToken,
    worker: JoinHandle<Result<(), WorkerError>>,
}

impl Running {
    fn start(open: &Open, config: WorkerConfig) -> Self {
        let stop = CancellationToken::new();
        let (bus, store) = (open.bus.clone(), open.store.clone());
        let worker = worker::run(config, bus, store, Health::default(), Clock::start(), stop.clone());
        Self { stop, worker: tokio::spawn(worker) }
    }

    async fn end(self) -> Result<()> {
        self.stop.cancel();
        Ok(timeout(READY_TIMEOUT, self.worker).await.context("it does not drain")???)
    }
}

impl Antiphon {
    fn opened(&mut self) -> Result<&mut Open> {
        self.open.as_mut().context("not open")
    }

    fn config(&self, workflow: LocalWorkflow) -> Result<WorkerConfig> {
        let name = WorkflowName::parse(WORKFLOW)?;
        let mut config = WorkerConfig::new("peer".to_owned(), self.partitions()?, name.clone());
        config.local_workflows = LocalWorkflows::new([(name, workflow)]);
        config.writers = self.settings.writers.unwrap_or(config.writers);
        config.limits.commit_turns = self.settings.turns.unwrap_or(config.limits.commit_turns);
        Ok(config)
    }

    fn partitions(&self) -> Result<PartitionCount> {
        Ok(PartitionCount::new(self.settings.partitions.unwrap_or(PARTITIONS).into())?)
    }

    fn order(&self, task: Task) -> Result<Command> {
        Ok(Command {
            agent: AgentId::parse(&format!("agent-{}", task.agent))?,
            id: TaskId::parse(&format!("{}-{}", task.agent, task.seq))?,
            kind: TaskKind::Task,
            content: "x".repeat(self.settings.bytes),
            metadata: Metadata::EMPTY,
        })
    }
}

impl Queue for Antiphon {
    async fn open(&mut self, database_url: &str, notes: Notes) -> Result<()> {
        let partitions = self.partitions()?;
        forget_streams(&self.settings.nats_url).await?;
        store::migrate(database_url, partitions).await?;
        let bus = Bus::connect(&BusConfig::new(&self.settings.nats_url, "peer")).await?;
        let streams = StreamOptions { max_bytes: STREAM_BYTES, ..StreamOptions::default() };
        bus.ensure_streams(partitions, &streams).await?;
        if !self.settings.history {
            forgo_history(database_url, &notes).await?;
        }
        let store = Store::connect(&StoreConfig::new(database_url)).await?;
        let asked = Asked::default();
        let config = self.config(workflow(&self.settings, notes.clone(), asked.clone()))?;
        let database_url = database_url.to_owned();
        self.open =
            Some(Open { database_url, bus, store, config, notes, asked, enqueued: 0, running: None, watching: None });
        Ok(())
    }

    async fn enqueue(&mut self, round: Vec<Task>) -> Result<()> {
        let orders = round.into_iter().map(|task| self.order(task)).collect::<Result<Vec<_>>>()?;
        let ingested = self.settings.ingested;
        let open = self.opened()?;
        open.enqueued += orders.len() as u64;
        stream::iter(orders.iter().map(|order| publish(open, order)))
            .buffer_unordered(PUBLISHED)
            .try_collect::<()>()
            .await?;
        if ingested && open.enqueued == open.notes.total() { ingest(open).await } else { Ok(()) }
    }

    async fn add(&mut self, task: Task) -> Result<()> {
        let order = self.order(task)?;
        publish(self.opened()?, &order).await
    }

    async fn start(&mut self) -> Result<()> {
        let nats_url = self.settings.nats_url.clone();
        let open = self.opened()?;
        open.running = Some(Running::start(open, open.config.clone()));
        if open.notes.is_paced() {
            let (notes, asked) = (open.notes.clone(), open.asked.clone());
            open.watching = Some(watch(&nats_url, open.config.partitions, notes, asked).await?);
        }
        Ok(())
    }

    async fn close(&mut self) -> Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        if let Some(running) = open.running {
            running.end().await?;
        }
        if let Some(watching) = open.watching {
            watching.abort();
        }
        Ok(())
    }
}

/// Deletes streams, because they may have entries of an earlier round.
async fn forget_streams(nats_url: &str) -> Result<()> {
    let context = async_nats::jetstream::new(async_nats::connect(nats_url).await?);
    let names: Vec<String> = context.stream_names().try_collect().await?;
    for name in names {
        context.delete_stream(name).await?;
    }
    Ok(())
}

async fn publish(open: &Open, order: &Command) -> Result<()> {
    let subject = wire::subject::partition_tasks(open.config.partitions, &order.agent);
    open.bus.publish_acked(&subject, wire::encode_task(order), None, READY_TIMEOUT).await?;
    Ok(())
}

/// Runs a worker that begins no turns, so that it only brings all tasks into Postgres.
async fn ingest(open: &Open) -> Result<()> {
    let mut config = open.config.clone();
    config.limits.active_turns = 0;
    let ingesting = Running::start(open, config);
    let mut connection = PgConnection::connect(&open.database_url).await?;
    let wanted = i64::try_from(open.notes.total())?;
    while sqlx::query_scalar::<_, i64>("SELECT count(*) FROM tasks").fetch_one(&mut connection).await? < wanted {
        sleep(Duration::from_millis(20)).await;
    }
    connection.close().await?;
    ingesting.end().await
}

/// Gives every agent settings that leave the history out of requests, because other queues have no
/// history.
async fn forgo_history(database_url: &str, notes: &Notes) -> Result<()> {
    const QUERY: &str = "INSERT INTO agent_settings (bucket, agent_id, workflow, settings) \
        SELECT bucket, agent_id, $3, '{\"context_tokens\": 1}' FROM unnest($1::smallint[], $2::text[]) AS i (bucket, agent_id)";
    let agents: Vec<String> = (0..notes.agents()).map(|agent| format!("agent-{agent}")).collect();
    let buckets: Vec<i16> =
        agents.iter().map(|agent| Bucket::of_key(agent).get().try_into()).collect::<Result<_, _>>()?;
    let mut connection = PgConnection::connect(database_url).await?;
    sqlx::query(QUERY).bind(buckets).bind(agents).bind(WORKFLOW).execute(&mut connection).await?;
    Ok(connection.close().await?)
}

/// The tasks, keyed by the ids of their answers.
#[derive(Debug, Clone, Default)]
struct Asked(Arc<Mutex<HashMap<String, Task>>>);

impl Asked {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Task>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn workflow(settings: &Settings, notes: Notes, asked: Asked) -> LocalWorkflow {
    let answer = answer(settings);
    Arc::new(move |request: &TurnRequest| {
        if let Some(task) = task_of(request) {
            notes.begin(task);
            if notes.is_paced() {
                asked.lock().insert(request.message_id.clone(), task);
            }
            notes.end(task);
        }
        answer.clone()
    })
}

fn task_of(request: &TurnRequest) -> Option<Task> {
    let (agent, seq) = request.task.as_ref()?.task_id.split_once('-')?;
    Some(Task { agent: agent.parse().ok()?, seq: seq.parse().ok()? })
}

/// The chunks of every answer.
fn answer(settings: &Settings) -> Vec<Arc<Chunk>> {
    let text = "y".repeat(settings.bytes);
    if settings.rows == 2 {
        return vec![Arc::new(Chunk::content(0, &text, true))];
    }
    let of_tool = |id: u32, kind: ChunkKind, text: &str| {
        let map = [("tool_call_id", "call"), ("tool_name", "tool")].map(|(key, value)| (key.into(), value.into()));
        let metadata = Metadata::new(map.into_iter().collect()).unwrap_or_default();
        Chunk { kind, metadata, ..Chunk::content(id, text, false) }
    };
    let chunks = [
        Chunk::content(0, &text, false),
        of_tool(1, ChunkKind::ToolCall, "{}"),
        of_tool(2, ChunkKind::ToolResult, &text),
        Chunk::content(3, &text, true),
    ];
    chunks.map(Arc::new).into()
}

/// Records completions when gateways would receive them: after the commit. Returns when the owners
/// of all agents' threads send them.
async fn watch(nats_url: &str, partitions: PartitionCount, notes: Notes, asked: Asked) -> Result<JoinHandle<()>> {
    let client = async_nats::connect(nats_url).await?;
    let agents = (0..notes.agents()).map(|agent| AgentId::parse(&format!("agent-{agent}")));
    let threads = agents.map(|agent| Ok(agent?.thread())).collect::<Result<_>>()?;
    let mut live = LiveFollower::start(&client, partitions, threads).await?;
    Ok(tokio::spawn(async move {
        while let Some(frames) = live.next().await {
            for frame in frames {
                let ended = frame.terminal.and_then(|_| asked.lock().remove(frame.message.as_str()));
                if let Some(task) = ended {
                    notes.completed(task);
                }
            }
        }
    }))
}

#[tokio::main]
async fn main() -> Result<()> {
    let settings: Settings = serde_json::from_str(&std::env::args().nth(1).context("no settings")?)?;
    ensure!(matches!(settings.rows, 2 | 4), "2 or 4 rows a turn");
    peers::serve(Antiphon { settings, open: None }).await
}
