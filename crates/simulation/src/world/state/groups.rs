//! The committers of workers, and the groups of commits that they send.

use std::collections::BTreeMap;

use crate::rng::Rng;
use crate::world::event::Address;

/// The committers of all workers.
#[derive(Debug)]
pub(crate) struct Groups {
    /// Workers gather commits in this history; otherwise each partition has a writer of its own.
    pub(crate) is_on: bool,
    /// What becomes ready within so long goes together, ms: for so long other statements are under way.
    pub(crate) gathers_ms: i64,
    pub(crate) rng: Rng,
    /// By the incarnation of the worker.
    pub(crate) committers: BTreeMap<u64, Committer>,
    pub(crate) groups: Vec<Group>,
}

#[derive(Debug, Default)]
pub(crate) struct Committer {
    /// Statements that wait for the next group.
    pub(crate) waiting: Vec<usize>,
    pub(crate) under_way: Option<usize>,
}

#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) address: Address,
    /// The statement of all of them.
    pub(crate) leader: usize,
    /// By partition: rows are locked in that order.
    pub(crate) members: Vec<usize>,
    /// How many of them have been looked at, and those whose rows are locked.
    pub(crate) looked_at: usize,
    pub(crate) held: Vec<usize>,
    /// To be tried alone, the next one last.
    pub(crate) alone: Vec<usize>,
}

impl Groups {
    pub(crate) fn new(mut rng: Rng) -> Self {
        let (is_on, gathers_ms) = (rng.chance(0.7), rng.pick([0, 30, 100, 300]));
        Self { is_on, gathers_ms, rng, committers: BTreeMap::new(), groups: Vec::new() }
    }
}
