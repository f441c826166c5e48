//! The worker role: leases, readers, and the driver that performs what the partition machine decides.
//!
//! Entry point: [`run`]. [`ownership`] decides which partitions this process has; for each there is one `session`,
//! which feeds the machine of crate `partition` and performs its actions; `background` does for it what takes time, and
//! `committer` turns commits of several partitions into one statement. No decision about messages or turns is made here.

mod background;
mod budget_counter;
mod cleanup;
mod committer;
mod config;
mod context;
mod error;
mod gauges;
mod lease;
mod live_publisher;
mod local_workflows;
mod metrics;
mod model_usage;
mod open_message_limit;
mod ownership;
mod purge;
mod queries;
mod refusals;
mod request_watch;
mod retention;
mod session;
mod stream_fill;
mod thread_cache_limit;
mod turn_limiter;

use std::sync::Arc;
use std::time::Duration;

use bus::Bus;
use runtime::{Clock, Health};
use store::Store;
use tokio_util::sync::CancellationToken;

use context::Context;

pub use cleanup::{CleanupConfig, CleanupRule};
pub use config::WorkerConfig;
pub use error::WorkerError;
pub use local_workflows::{LocalWorkflow, LocalWorkflows};
pub use metrics::described_metrics;

/// For the last write of the turns under way when a worker ends. A database that is away must not hold up the end of the process.
const LAST_SYNC_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the worker until `stop` is cancelled, then drains: commits what is in flight and gives its partitions back.
///
/// # Errors
/// See [`WorkerError`]. Postgres or NATS being away is none: it is waited for.
pub async fn run(
    config: WorkerConfig,
    bus: Bus,
    store: Store,
    health: Health,
    clock: Clock,
    stop: CancellationToken,
) -> Result<(), WorkerError> {
    metrics::describe();
    ::metrics::gauge!(metrics::PARTITION_COUNT).set(f64::from(config.partitions.get()));
    let refusals = refusals::Refusals::new(health.clone());
    let committers = committer::Committers::start(&store, &config, &refusals)?;
    let open_messages = open_message_limit::OpenMessageLimit::new(config.open_messages, config.buffer_bytes);
    let thread_cache = thread_cache_limit::ThreadCacheLimit::new(config.thread_cache_bytes);
    let live = live_publisher::LivePublisher::new(bus.clone());
    let limiter = turn_limiter::TurnLimiter::new(&config);
    let context = Context {
        config: Arc::new(config),
        bus,
        live,
        store,
        clock,
        health,
        open_messages: Arc::new(open_messages),
        committers: Arc::new(committers),
        gauges: Arc::default(),
        thread_cache: Arc::new(thread_cache),
        limiter: Arc::clone(&limiter),
        refusals: refusals.clone(),
        requests: request_watch::RequestWatch::default(),
        token_keys: Arc::default(),
    };
    runtime::spawn_named(
        "cleanup",
        cleanup::enforce_limits(
            context.store.clone(),
            refusals.clone(),
            context.config.cleanup.clone(),
            stop.clone(),
        ),
    );
    runtime::spawn_named(
        "budgets",
        budget_counter::count_budgets(context.store.clone(), refusals.clone(), stop.clone()),
    );
    runtime::spawn_named("requests", context.requests.clone().run(context.bus.clone(), stop.clone()));
    runtime::spawn_named("stream fill", stream_fill::measure(context.clone(), stop.clone()));
    let store = context.store.clone();
    runtime::spawn_named("turn limits", Arc::clone(&limiter).run(store.clone(), stop.clone()));
    let ended = ownership::run(context, stop).await;
    let last = async {
        // Twice: what ends in the second round is known to be this worker's by the first.
        limiter.sync(&store).await;
        limiter.sync(&store).await;
    };
    // What could not be written stops counting when it is due.
    tokio::time::timeout(LAST_SYNC_TIMEOUT, last).await.ok();
    ended
}
