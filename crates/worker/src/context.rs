//! State shared by the parts of a worker.

use std::sync::{Arc, Mutex, PoisonError};

use bus::Bus;
use model::TokenKeys;
use runtime::{Clock, Health};
use store::Store;

use crate::committer::Committers;
use crate::config::WorkerConfig;
use crate::gauges::WorkerGauges;
use crate::live_publisher::LivePublisher;
use crate::open_message_limit::OpenMessageLimit;
use crate::refusals::Refusals;
use crate::request_watch::RequestWatch;
use crate::thread_cache_limit::ThreadCacheLimit;
use crate::turn_limiter::TurnLimiter;

/// The keys of turn tokens as last read; `None` before the first read.
#[derive(Debug, Default)]
pub(crate) struct CurrentTokenKeys(Mutex<Option<TokenKeys>>);

impl CurrentTokenKeys {
    pub(crate) fn set(&self, keys: TokenKeys) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(keys);
    }

    /// Returns the keys if they differ from `known`.
    pub(crate) fn other_than(&self, known: Option<&TokenKeys>) -> Option<TokenKeys> {
        let keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        keys.as_ref().filter(|keys| Some(*keys) != known).cloned()
    }
}

/// State that every part of a worker needs.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) config: Arc<WorkerConfig>,
    pub(crate) bus: Bus,
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    pub(crate) health: Health,
    pub(crate) open_messages: Arc<OpenMessageLimit>,
    pub(crate) committers: Arc<Committers>,
    pub(crate) live: LivePublisher,
    pub(crate) gauges: Arc<WorkerGauges>,
    pub(crate) thread_cache: Arc<ThreadCacheLimit>,
    pub(crate) limiter: Arc<TurnLimiter>,
    pub(crate) refusals: Refusals,
    pub(crate) requests: RequestWatch,
    pub(crate) token_keys: Arc<CurrentTokenKeys>,
}
