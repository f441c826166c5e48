//! The worker role: leases, readers, and the driver that performs the actions of the partition
//! machine.
//!
//! Entry point: [`run`]. [`ownership`] decides which partitions this process holds. Each has one
//! `session`, which feeds the machine of crate `partition` and performs its actions. `background`
//! does the slow work of sessions, and `committer` joins commits of several partitions into one
//! statement. No decisions about messages or turns are made here.

mod background;
mod budget_counter;
mod cleanup;
mod committer;
mod config;
mod context;
mod erasures;
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

/// Timeout for the last write of active turns when a worker stops: an unavailable database must not
/// delay the end of the process.
const LAST_SYNC_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the worker until `stop` is cancelled. Then it drains: it commits what is in flight and
/// gives its partitions back.
///
/// # Errors
/// See [`WorkerError`]. An outage of Postgres or NATS is not an error: it is waited for.
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
    runtime::spawn_named("erasures", erasures::work(context.clone(), stop.clone()));
    runtime::spawn_named("stream fill", stream_fill::measure(context.clone(), stop.clone()));
    let store = context.store.clone();
    runtime::spawn_named("turn limits", Arc::clone(&limiter).run(store.clone(), stop.clone()));
    let ended = ownership::run(context, stop).await;
    let last = async {
        // The last round runs twice: a worker can end only turns that the first run has recorded as
        // its own.
        limiter.sync(&store).await;
        limiter.sync(&store).await;
    };
    // Turns whose end could not be written stop counting when they expire.
    tokio::time::timeout(LAST_SYNC_TIMEOUT, last).await.ok();
    ended
}
