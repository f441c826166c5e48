//! The whole path: the shipped binary as a worker, turn requests over NATS to an external workflow,
//! and the chunks of its answers.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::{
    antiphon_runs,
    echo_workflow::EchoWorkflow,
    environment::{self, TaskEnvironment},
    load::TaskLoad,
    order,
    round::TaskRound,
};
use crate::environment::{pages, transactions};
use testkit::{
    fleet::{Fleet, FleetOptions, READY_LIMIT},
    publisher::{Addressing, Publisher},
    services::TestDatabase,
};

const STREAM_BYTES: u64 = 128 << 20;
const TASK_BYTES: usize = 400;
/// Maximum number of tasks that are published concurrently.
const PUBLISHED: usize = 500;
const POLL: Duration = Duration::from_millis(2);
const DRAIN: Duration = Duration::from_secs(10);
/// Number of messages per turn: the input and the answer.
const ROWS: u64 = 2;

/// One variant of the measurement.
#[derive(Debug)]
pub(super) struct EndToEnd {
    name: &'static str,
    is_ingested: bool,
    has_history: bool,
    /// If `Some(n)`, every n-th agent fails forever.
    failing: Option<u32>,
    prepared: Option<PreparedFleet>,
}

#[derive(Debug)]
struct PreparedFleet {
    database: TestDatabase,
    load: TaskLoad,
    fleet: Fleet,
    publisher: Publisher,
    echo_workflow: EchoWorkflow,
    enqueued: Option<environment::Cost>,
}

/// The variant in which tasks are in Postgres before the start, as for other queues.
pub(super) const END_TO_END: &str = "antiphon, NATS";
/// The variant in which tasks are in the stream before the start.
pub(super) const END_TO_END_INGESTING: &str = "antiphon, NATS, ingest included";
/// The variant in which requests contain the earlier messages.
pub(super) const WITH_HISTORY: &str = "antiphon, NATS, requests with history";
/// The variant with an idle fleet that gets single tasks.
pub(super) const PACED: &str = "antiphon, NATS, one by one";
/// The same variant, with other agents that fail.
pub(super) const PACED_FAILING: &str = "antiphon, NATS, one by one, 10 % of agents fail for ever";

impl EndToEnd {
    pub(super) fn alone() -> Self {
        Self { is_ingested: true, ..Self::new(END_TO_END) }
    }

    pub(super) fn backlog() -> Vec<Self> {
        vec![
            Self::alone(),
            Self::new(END_TO_END_INGESTING),
            Self { is_ingested: true, has_history: true, ..Self::new(WITH_HISTORY) },
        ]
    }

    pub(super) fn paced() -> Vec<Self> {
        vec![Self::new(PACED), Self { failing: Some(10), ..Self::new(PACED_FAILING) }]
    }

    fn new(name: &'static str) -> Self {
        Self { name, is_ingested: false, has_history: false, failing: None, prepared: None }
    }

    pub(super) fn name(&self) -> &str {
        self.name
    }

    pub(super) async fn prepare(&mut self, environment: &mut TaskEnvironment, load: TaskLoad) -> Result<()> {
        let database = environment.database().await?;
        let fleet = fleet(environment, &database, 0).await?;
        if !self.has_history {
            antiphon_runs::forgo_history(database.url(), load.agents).await?;
        }
        let publisher =
            Publisher::connect(&environment.nats_url(), Addressing::Exact(antiphon_runs::partitions()?))
                .await?;
        let echo_workflow = EchoWorkflow::start(&environment.nats_url(), load, self.failing).await?;
        let mut prepared = PreparedFleet { database, load, fleet, publisher, echo_workflow, enqueued: None };
        if load.rate.is_some() {
            prepared.begin().await?;
            prepared.echo_workflow.follow(&environment.nats_url()).await?;
        } else {
            let gauge = environment.gauge(&[]).await?;
            publish_all(&prepared.publisher, load).await?;
            if self.is_ingested {
                prepared.ingest().await?;
            }
            prepared.enqueued = Some(environment.cost(&gauge, load.total()).await?);
        }
        environment::settle(&prepared.database).await?;
        self.prepared = Some(prepared);
        Ok(())
    }

    pub(super) async fn run(&mut self, environment: &mut TaskEnvironment) -> Result<TaskRound> {
        let mut prepared = self.prepared.take().context("not prepared")?;
        let outcome = prepared.round(environment, self.failing.is_some()).await;
        if outcome.is_err() {
            eprintln!("{}", prepared.fleet.log_tails());
        }
        outcome
    }
}

/// One worker and `gateways` gateways on fresh streams and an empty database; nothing runs yet.
pub(super) async fn fleet(
    environment: &TaskEnvironment,
    database: &TestDatabase,
    gateways: usize,
) -> Result<Fleet> {
    antiphon_runs::forget_streams(&environment.nats_url()).await?;
    let mut options = FleetOptions::new(&environment.nats_url(), database.url())
        .with_env("ANTIPHON_STREAM_MAX_BYTES", STREAM_BYTES)
        // With these settings, an agent that fails forever fails about every two seconds.
        .with_env("ANTIPHON_BACKOFF_BASE_SECONDS", 1)
        .with_env("ANTIPHON_BACKOFF_CAP_SECONDS", 2);
    (options.workers, options.gateways, options.partitions) = (1, gateways, antiphon_runs::PARTITIONS);
    let fleet = Fleet::prepare(options)?;
    fleet.migrate().await?;
    Ok(fleet)
}

pub(super) async fn publish_all(publisher: &Publisher, load: TaskLoad) -> Result<()> {
    // An agent's task is stored before its next one is sent, because concurrent sends could change
    // the order.
    for seq in 0..load.tasks {
        let publishing = (0..load.agents).map(|agent| publish(publisher, (agent, seq)));
        stream::iter(publishing).buffer_unordered(PUBLISHED).try_collect::<()>().await?;
    }
    Ok(())
}

async fn publish(publisher: &Publisher, (agent, seq): (u32, u32)) -> Result<()> {
    let task = antiphon_runs::task(agent, seq, TASK_BYTES)?;
    let subject = wire::subject::partition_tasks(antiphon_runs::partitions()?, &task.agent);
    publisher.publish_raw(&subject, None, wire::encode_task(&task)).await.map(drop)
}

impl PreparedFleet {
    /// Starts the worker, and waits until it has its partitions.
    async fn begin(&mut self) -> Result<()> {
        self.fleet.spawn()?;
        self.fleet.ready(READY_LIMIT).await?;
        let mut connection = PgConnection::connect(self.database.url()).await?;
        let query = "SELECT count(*) FROM partitions WHERE owner IS NULL";
        let deadline = Instant::now() + READY_LIMIT;
        while sqlx::query_scalar::<_, i64>(query).fetch_one(&mut connection).await? > 0 {
            ensure!(Instant::now() < deadline, "partitions stay without an owner");
            sleep(Duration::from_millis(20)).await;
        }
        Ok(connection.close().await?)
    }

    async fn end(&mut self) -> Result<()> {
        for worker in &mut self.fleet.workers {
            worker.terminate();
            worker.ended(DRAIN).await?;
        }
        Ok(())
    }

    /// Makes the worker ingest all tasks while their agents are paused, and stops it.
    async fn ingest(&mut self) -> Result<()> {
        const PAUSE: &str = "INSERT INTO agents (bucket, agent_id, paused) SELECT $1, $2, true";
        let mut connection = PgConnection::connect(self.database.url()).await?;
        for agent in 0..self.load.agents {
            let task = antiphon_runs::task(agent, 0, 1)?;
            let bucket = i16::try_from(task.bucket().get())?;
            sqlx::query(PAUSE).bind(bucket).bind(task.agent.as_str()).execute(&mut connection).await?;
        }
        self.begin().await?;
        let total = i64::try_from(self.load.total())?;
        let deadline = Instant::now() + self.load.limit;
        let count = "SELECT count(*) FROM tasks";
        while sqlx::query_scalar::<_, i64>(count).fetch_one(&mut connection).await? < total {
            ensure!(Instant::now() < deadline, "the tasks are not brought in");
            sleep(Duration::from_millis(20)).await;
        }
        self.end().await?;
        sqlx::query("UPDATE agents SET paused = false").execute(&mut connection).await?;
        Ok(connection.close().await?)
    }

    async fn round(&mut self, environment: &mut TaskEnvironment, has_failing: bool) -> Result<TaskRound> {
        let load = self.load;
        let pages_before = pages(self.database.url()).await?;
        let transactions_before = transactions(self.database.url()).await?;
        if load.rate.is_none() {
            self.fleet.spawn()?;
        }
        let workers: Vec<u32> = self.fleet.workers.iter().filter_map(|worker| worker.pid()).collect();
        let gauge = environment.gauge(&workers).await?;
        let notes = self.echo_workflow.notes.clone();
        let deadline = Instant::now() + load.limit;
        if let Some(rate) = load.rate {
            feed(&self.publisher, &self.echo_workflow, load, rate).await?;
        }
        let done = timeout_at(deadline, notes.done.notified()).await.is_ok();
        let left = match load.rate {
            None => self.until_durable(done, deadline).await?,
            Some(_) => notes.wanted() * u64::from(!done),
        };
        if left > 0 {
            let completed = load.total().saturating_sub(left);
            let cost = environment.cost(&gauge, completed.max(1)).await?;
            return Ok(TaskRound {
                is_cut: true,
                enqueued: self.enqueued,
                ..TaskRound::new(completed, &cost)
            });
        }
        let cost = environment.cost(&gauge, notes.wanted()).await?;
        let failures = notes.failures();
        self.end().await?;
        let (marks, mut latencies_us) = notes.take();
        let verdict = order::judge(load.agents, load.tasks, &marks).context("marks of unknown tasks")?;
        antiphon_runs::verify(self.database.url(), notes.wanted(), ROWS).await?;
        ensure!(has_failing == (failures > 0), "{failures} tries failed");
        let mut round = TaskRound::new(notes.wanted(), &cost);
        (round.out_of_order, round.repeated) = (Some(verdict.out_of_order), verdict.repeated);
        (round.enqueued, round.failures) = (self.enqueued, failures);
        let tasks = notes.wanted() as f64;
        let pages = pages(self.database.url()).await? - pages_before;
        let transactions = transactions(self.database.url()).await? - transactions_before;
        round.pages_per_task = Some(pages as f64 / tasks);
        round.transactions_per_task = Some(transactions as f64 / tasks);
        Ok(round.timed(&mut latencies_us))
    }

    /// Waits until the database has every completion. Returns the number that is still missing at
    /// the deadline.
    async fn until_durable(&self, is_answered: bool, deadline: Instant) -> Result<u64> {
        let mut connection = PgConnection::connect(self.database.url()).await?;
        let left = antiphon_runs::LEFT.replace("{total}", &self.load.total().to_string());
        loop {
            let left: i64 =
                sqlx::query_scalar(AssertSqlSafe(left.as_str())).fetch_one(&mut connection).await?;
            if (left == 0 && is_answered) || Instant::now() >= deadline {
                connection.close().await?;
                return Ok(left.try_into()?);
            }
            sleep(POLL).await;
        }
    }
}

/// Publishes at this rate. If a task is late because the stream was slow, its time counts from when
/// it was due.
async fn feed(publisher: &Publisher, echo_workflow: &EchoWorkflow, load: TaskLoad, rate: f64) -> Result<()> {
    let begun = Instant::now();
    for (number, place) in antiphon_runs::places(load).enumerate() {
        let due_at = begun + Duration::from_secs_f64(number as f64 / rate);
        sleep_until(due_at).await;
        echo_workflow.notes.due(place, due_at);
        timeout(DRAIN, publish(publisher, place)).await??;
    }
    Ok(())
}
