//! A gateway: the real feed of each thread that it follows, and the feed's subscribers.

use std::collections::{BTreeMap, BTreeSet};

use feed::{Feed, OwnerWatch, WaitingSubscribers};
use model::{GatewayId, ThreadId};

/// The connection of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ViewerConnection {
    pub(crate) client: usize,
    pub(crate) connection: u64,
}

/// The purpose of a read from the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreReader {
    Feed,
    Waiting,
}

/// A reply of the store.
#[derive(Debug)]
pub(crate) enum Fetched {
    Last(model::Position),
    Page(feed::StorePage),
    Failed,
}

#[derive(Debug)]
pub(crate) struct Follower {
    /// Events for another number are dropped.
    pub(crate) number: u64,
    pub(crate) feed: Feed,
    pub(crate) subscribers: Vec<ViewerConnection>,
    pub(crate) waiting: WaitingSubscribers<ViewerConnection>,
    /// The highest epoch seen, for a planted bug.
    pub(crate) epoch: u64,
    /// The number of the query that waits for a reply.
    pub(crate) asked: Option<u64>,
    /// The only tick that counts; other ticks belong to timeouts that were replaced.
    pub(crate) tick_at: Option<model::Timestamp>,
}

impl Follower {
    pub(crate) fn new(thread: &ThreadId, number: u64, log_budget: usize) -> Self {
        Self {
            number,
            feed: Feed::new(thread.clone(), log_budget),
            subscribers: Vec::new(),
            waiting: WaitingSubscribers::new(thread.clone()),
            epoch: 0,
            asked: None,
            tick_at: None,
        }
    }
}

/// One gateway process.
#[derive(Debug, Default)]
pub(crate) struct SimulatedGateway {
    pub(crate) followers: BTreeMap<ThreadId, Follower>,
    /// Threads that it no longer follows, for which owners may still send frames.
    pub(crate) unfollowed: BTreeSet<ThreadId>,
    pub(crate) watch: OwnerWatch,
    /// Different after each start.
    pub(crate) incarnation: u64,
    /// The latency of NATS, ms.
    pub(crate) link_ms: i64,
}

impl SimulatedGateway {
    /// The gateway's id for owners since its last start; `index` is its index among all gateways.
    pub(crate) fn id(&self, index: usize) -> GatewayId {
        GatewayId::of_number((index as u64) << 32 | self.incarnation)
    }
}
