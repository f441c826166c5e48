//! What the parts of a worker share.

use std::sync::Arc;

use bus::Bus;
use runtime::{Clock, Health};
use store::Store;

use crate::background::ThreadCacheBudget;
use crate::budget::Budget;
use crate::committer::Committers;
use crate::config::WorkerConfig;
use crate::gauges::WorkerGauges;
use crate::live_publisher::LivePublisher;
use crate::refusals::Refusals;
use crate::turn_limiter::TurnLimiter;

/// What every part of a worker needs.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) config: Arc<WorkerConfig>,
    pub(crate) bus: Bus,
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    pub(crate) health: Health,
    pub(crate) budget: Arc<Budget>,
    pub(crate) committers: Arc<Committers>,
    pub(crate) live: LivePublisher,
    pub(crate) gauges: Arc<WorkerGauges>,
    pub(crate) thread_cache: Arc<ThreadCacheBudget>,
    pub(crate) limiter: Arc<TurnLimiter>,
    pub(crate) refusals: Refusals,
}
