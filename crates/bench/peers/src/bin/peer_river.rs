//! The crate `riverqueue`, configured as in its own benchmark. It does not guarantee the order
//! within a key. So it shows the throughput of a queue without that guarantee.

use std::{num::NonZeroUsize, time::Duration};

use anyhow::{Context as _, Result};
use peers::{Notes, Queue, Task};
use riverqueue::{
    BoxError, Client, Event, EventKind, Job, JobArgs, QUEUE_DEFAULT, QueueConfig, RunHandle, SubscribeConfig,
    WorkContext, WorkOutcome, Workers, migrate::PostgresMigrator,
};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;

/// Number of workers, with the value of `riverqueue bench`.
const MOST_WORKERS: usize = 2_000;
const FETCH_COOLDOWN: Duration = Duration::from_millis(2);
const FETCH_POLL: Duration = Duration::from_millis(20);
const CONNECTIONS: u32 = 10;
/// Maximum number of completions that wait to be counted.
const BUFFER: NonZeroUsize = NonZeroUsize::new(1 << 20).unwrap();

#[derive(Debug, Clone, Serialize, Deserialize, JobArgs)]
#[river(kind = "noop")]
struct Noop {
    agent: u32,
    seq: u32,
}

impl Noop {
    fn new(task: Task) -> Self {
        Self { agent: task.agent, seq: task.seq }
    }

    fn task(&self) -> Task {
        Task { agent: self.agent, seq: self.seq }
    }
}

#[derive(Default)]
struct River {
    open: Option<Open>,
}

struct Open {
    pool: PgPool,
    client: Client,
    handle: Option<RunHandle>,
}

fn client(pool: &PgPool, notes: &Notes) -> Result<Client> {
    let notes = notes.clone();
    let mut workers = Workers::new();
    workers.add_fn(move |_context: WorkContext, taken: Job<Noop>| {
        let notes = notes.clone();
        async move {
            notes.begin(taken.args.task());
            notes.end(taken.args.task());
            Ok::<_, BoxError>(WorkOutcome::Complete)
        }
    })?;
    let queue = QueueConfig::new(MOST_WORKERS)
        .with_fetch_cooldown(FETCH_COOLDOWN)
        .with_fetch_poll_interval(FETCH_POLL);
    Ok(Client::builder(pool.clone()).workers(workers).queue(QUEUE_DEFAULT, queue).build()?)
}

fn watch(client: &Client, notes: Notes) -> Result<()> {
    let config = SubscribeConfig::new([EventKind::JobCompleted])?.with_buffer_capacity(BUFFER);
    let mut events = client.subscribe_config(config)?;
    tokio::spawn(async move {
        while let Ok(event) = events.recv().await {
            let Event::Job(event) = event else { continue };
            if let Ok(args) = serde_json::from_str::<Noop>(event.job.encoded_args.get()) {
                notes.completed(args.task());
            }
        }
    });
    Ok(())
}

impl River {
    fn opened(&mut self) -> Result<&mut Open> {
        self.open.as_mut().context("not open")
    }
}

impl Queue for River {
    async fn open(&mut self, database_url: &str, notes: Notes) -> Result<()> {
        let pool = peers::pool(database_url, CONNECTIONS).await?;
        PostgresMigrator::new(pool.clone()).migrate_up().await?;
        let client = client(&pool, &notes)?;
        if notes.is_paced() {
            watch(&client, notes)?;
        }
        self.open = Some(Open { pool, client, handle: None });
        Ok(())
    }

    async fn enqueue(&mut self, round: Vec<Task>) -> Result<()> {
        self.opened()?.client.insert_many(round.into_iter().map(Noop::new)).await?;
        Ok(())
    }

    async fn add(&mut self, task: Task) -> Result<()> {
        self.opened()?.client.insert(Noop::new(task)).await?;
        Ok(())
    }

    async fn start(&mut self) -> Result<()> {
        let open = self.opened()?;
        open.handle = Some(open.client.start()?);
        Ok(())
    }

    async fn close(&mut self) -> Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        if let Some(mut handle) = open.handle {
            handle.stop().await?;
        }
        open.pool.close().await;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    peers::serve(River::default()).await
}
