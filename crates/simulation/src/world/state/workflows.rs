//! The stored turn requests, and their state.

use std::collections::{BTreeMap, BTreeSet};

use model::{Chunk, ThreadId, TurnId, TurnToken};

use crate::checker::turns;
use crate::rng::Rng;

/// The stored turn requests, and their state.
pub(crate) struct Workflows {
    pub(crate) rng: Rng,
    pub(crate) requests: Vec<PendingRequest>,
    /// When the last request of a run was stored.
    pub(crate) latest: BTreeMap<(TurnId, u32), i64>,
    /// Runs that could not be requested, and turns that the store refused.
    pub(crate) refused: BTreeSet<(TurnId, u32)>,
    /// Runs with chunks in the stream: the first entry, and the number of entries.
    pub(crate) heard: BTreeMap<(TurnId, u32), (u64, u32)>,
}

pub(crate) struct PendingRequest {
    pub(crate) turn: TurnId,
    pub(crate) run: u32,
    pub(crate) thread: ThreadId,
    pub(crate) attempt: u32,
    pub(crate) token: TurnToken,
    pub(crate) deliveries: u32,
    pub(crate) stored_at: i64,
    /// Acknowledged or withdrawn.
    pub(crate) is_done: bool,
    /// Time at which all deliveries, including the last one, were done. A delivery that died stays
    /// silent, even if an earlier one was acknowledged.
    pub(crate) done_at: Option<i64>,
    /// The workflow knows that the run was abandoned.
    pub(crate) is_stopped: bool,
}

/// A frame that a delivery publishes.
pub(crate) struct Writing {
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) attempt: u32,
    pub(crate) is_forged: bool,
    pub(crate) is_last: bool,
}

/// The behaviour of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    Answers,
    Fails,
    Silent,
    Dies,
}

impl Workflows {
    pub(crate) fn new(rng: Rng) -> Self {
        Self {
            rng,
            requests: Vec::new(),
            latest: BTreeMap::new(),
            refused: BTreeSet::new(),
            heard: BTreeMap::new(),
        }
    }

    /// True if a request of this run waits, or a workflow works on it.
    pub(crate) fn is_outstanding(&self, turn: &TurnId, run: u32) -> bool {
        self.requests.iter().any(|request| request.turn == *turn && request.run == run && !request.is_done)
    }

    pub(crate) fn requests(&self) -> Vec<turns::RequestRecord> {
        let request = |request: &PendingRequest| turns::RequestRecord {
            turn: request.turn.clone(),
            run: request.run,
            from_ms: request.stored_at,
            until_ms: request.done_at,
        };
        self.requests.iter().map(request).collect()
    }
}
