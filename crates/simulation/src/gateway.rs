//! A gateway: the real feed of each thread that it follows, and the viewers of it.

use std::collections::{BTreeMap, BTreeSet};

use feed::{Feed, OwnerWatch, WaitingSubscribers};
use model::{GatewayId, ThreadId};

/// A client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ViewerConnection {
    pub(crate) client: usize,
    pub(crate) connection: u64,
}

/// What the store is read for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreReader {
    Feed,
    Waiting,
}

/// What the store has answered.
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
    pub(crate) viewers: Vec<ViewerConnection>,
    pub(crate) waiting: WaitingSubscribers<ViewerConnection>,
    /// The highest epoch that was heard of, for a planted bug.
    pub(crate) epoch: u64,
    /// The query that waits for a reply.
    pub(crate) asked: Option<u64>,
    /// The tick that counts; others belong to timeouts that an earlier one has replaced.
    pub(crate) tick_at: Option<model::Timestamp>,
}

impl Follower {
    pub(crate) fn new(thread: &ThreadId, number: u64, log_budget: usize) -> Self {
        Self {
            number,
            feed: Feed::new(thread.clone(), log_budget),
            viewers: Vec::new(),
            waiting: WaitingSubscribers::new(thread.clone()),
            epoch: 0,
            asked: None,
            tick_at: None,
        }
    }
}

/// One process of a gateway.
#[derive(Debug, Default)]
pub(crate) struct SimulatedGateway {
    pub(crate) followers: BTreeMap<ThreadId, Follower>,
    /// Threads that it does not follow any more, of which owners may still send frames.
    pub(crate) unfollowed: BTreeSet<ThreadId>,
    pub(crate) watch: OwnerWatch,
    /// A new one with each start.
    pub(crate) incarnation: u64,
    /// The latency of NATS, ms.
    pub(crate) link_ms: i64,
}

impl SimulatedGateway {
    /// Its id for owners since its last start; `index` is its place among all.
    pub(crate) fn id(&self, index: usize) -> GatewayId {
        GatewayId::of_number((index as u64) << 32 | self.incarnation)
    }
}
