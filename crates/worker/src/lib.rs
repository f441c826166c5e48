//! The worker role: leases, readers, and the driver that performs what the partition machine decides.
//!
//! Entry point: [`run`]. [`ownership`] decides which partitions this process has; for each there is one `session`,
//! which feeds the machine of crate `partition` and performs its actions; `errands` does for it what takes time, and
//! `committer` turns commits of several partitions into one statement. No decision about messages or turns is made here.

mod budget;
mod committer;
mod config;
mod errands;
mod feed;
mod forgetting;
mod keeping;
mod lease;
mod metrics;
mod ownership;
mod purge;
mod queries;
mod retaining;
mod session;

use std::sync::Arc;

use bus::Bus;
use runtime::{Clock, Health};
use store::Store;
use tokio_util::sync::CancellationToken;

pub use config::WorkerConfig;
pub use errands::{LocalWorkflow, LocalWorkflows};
pub use keeping::{KeepConfig, KeepLimits};

/// Why a worker stopped without being asked to.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The store refuses for a reason that waiting does not cure.
    #[error("Postgres: {0}")]
    Store(#[from] store::StoreError),
    /// A part that the worker cannot do without ended; its name.
    #[error("{0} ended unexpectedly; see the log")]
    Ended(&'static str),
}

/// What every part of a worker needs.
#[derive(Clone)]
struct Context {
    config: Arc<WorkerConfig>,
    bus: Bus,
    store: Store,
    clock: Clock,
    health: Health,
    budget: Arc<budget::Budget>,
    committers: Arc<committer::Committers>,
}

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
    let committers = committer::Committers::start(&store, &config)?;
    let budget = budget::Budget::new(config.open_messages, config.buffer_bytes);
    let context = Context {
        config: Arc::new(config),
        bus,
        store,
        clock,
        health,
        budget: Arc::new(budget),
        committers: Arc::new(committers),
    };
    let keep_keys = context.config.keep_keys;
    runtime::spawn_named(
        "forgetting",
        forgetting::forget_old(context.store.clone(), keep_keys, stop.clone()),
    );
    runtime::spawn_named(
        "keeping",
        keeping::keep_bounds(context.store.clone(), context.config.keep.clone(), stop.clone()),
    );
    ownership::run(context, stop).await
}
