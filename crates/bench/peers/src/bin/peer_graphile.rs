//! The crate `graphile_worker` with one named queue per agent. With `batched` as its only argument,
//! uses the configuration that its documentation recommends for throughput: a local queue of 500,
//! and completions in batches.

use std::{env, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use graphile_worker::{
    IntoTaskHandlerResult, JobComplete, JobSpec, JobSpecBuilder, LocalQueueConfig, RawJobSpec, TaskHandler,
    Worker, WorkerContext, WorkerOptions, WorkerUtils,
};
use peers::{Notes, Queue, Task};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tokio::task::JoinHandle;

const CONCURRENCY: usize = 24;
/// Number of connections: one for each handler, one for the listener and one for background work.
const CONNECTIONS: u32 = 26;
const LOCAL_QUEUE: usize = 500;
/// The shortest delay that its documentation recommends.
const BATCH_DELAY: Duration = Duration::from_millis(1);
/// Poll interval, shorter than the default of 1 s. With batches, a fetch can be empty while
/// completions are still in flight.
const POLL: Duration = Duration::from_millis(50);

#[derive(Debug, Serialize, Deserialize)]
struct Noop(Task);

impl TaskHandler for Noop {
    const IDENTIFIER: &'static str = "noop";

    async fn run(self, context: WorkerContext) -> impl IntoTaskHandlerResult {
        if let Some(notes) = context.get_ext::<Notes>() {
            notes.begin(self.0);
            notes.end(self.0);
        }
        Ok::<(), String>(())
    }
}

struct Graphile {
    is_batched: bool,
    open: Option<Open>,
}

struct Open {
    pool: PgPool,
    utils: WorkerUtils,
    worker: Arc<Worker>,
    running: Option<JoinHandle<Result<()>>>,
}

impl Graphile {
    fn options(&self, pool: &PgPool, notes: &Notes) -> WorkerOptions {
        let mut options = WorkerOptions::default()
            .concurrency(CONCURRENCY)
            .define_job::<Noop>()
            .pg_pool(pool.clone())
            .add_extension(notes.clone());
        if self.is_batched {
            options = options
                .local_queue(LocalQueueConfig::default().with_size(LOCAL_QUEUE))
                .complete_job_batch_delay(BATCH_DELAY)
                .fail_job_batch_delay(BATCH_DELAY)
                .poll_interval(POLL);
        }
        if !notes.is_paced() {
            return options;
        }
        let notes = notes.clone();
        options.on(JobComplete, move |context| {
            let notes = notes.clone();
            async move {
                if let Ok(Noop(task)) = serde_json::from_value(context.job.payload().clone()) {
                    notes.completed(task);
                }
            }
        })
    }

    fn opened(&mut self) -> Result<&mut Open> {
        self.open.as_mut().context("not open")
    }
}

fn spec(task: Task) -> JobSpec {
    JobSpecBuilder::new().queue_name(format!("agent-{}", task.agent)).build()
}

impl Queue for Graphile {
    async fn open(&mut self, database_url: &str, notes: Notes) -> Result<()> {
        let pool = peers::pool(database_url, CONNECTIONS).await?;
        let worker = Arc::new(self.options(&pool, &notes).init().await?);
        let utils = worker.create_utils();
        self.open = Some(Open { pool, utils, worker, running: None });
        Ok(())
    }

    async fn enqueue(&mut self, round: Vec<Task>) -> Result<()> {
        let specs: Vec<RawJobSpec> = round
            .into_iter()
            .map(|task| {
                let payload = serde_json::to_value(Noop(task))?;
                Ok(RawJobSpec { identifier: Noop::IDENTIFIER.to_owned(), payload, spec: spec(task) })
            })
            .collect::<Result<_>>()?;
        self.opened()?.utils.add_raw_jobs(&specs).await?;
        Ok(())
    }

    async fn add(&mut self, task: Task) -> Result<()> {
        self.opened()?.utils.add_job(Noop(task), spec(task)).await?;
        Ok(())
    }

    async fn start(&mut self) -> Result<()> {
        let open = self.opened()?;
        let worker = Arc::clone(&open.worker);
        open.running = Some(tokio::spawn(async move { Ok(worker.run().await?) }));
        Ok(())
    }

    async fn close(&mut self) -> Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        open.worker.request_shutdown();
        if let Some(running) = open.running {
            running.await??;
        }
        open.pool.close().await;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let is_batched = env::args().nth(1).as_deref() == Some("batched");
    peers::serve(Graphile { is_batched, open: None }).await
}
