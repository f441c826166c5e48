//! The committers of workers, and the groups of commits that they send.

use std::collections::BTreeMap;

use crate::rng::Rng;
use crate::world::event::Address;

/// The committers of all workers.
#[derive(Debug)]
pub(crate) struct Groups {
    /// Workers group commits in this history; otherwise each partition has its own writer.
    pub(crate) is_on: bool,
    /// Commits that become ready within this time go into one group, ms. Other statements are in
    /// progress meanwhile.
    pub(crate) gathers_ms: i64,
    pub(crate) rng: Rng,
    /// Committers by the incarnation of their worker.
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
    /// The statement that carries all members.
    pub(crate) leader: usize,
    /// Members by partition, which is the order in which rows are locked.
    pub(crate) members: Vec<usize>,
    /// The number of members already checked, and the members whose rows are locked.
    pub(crate) looked_at: usize,
    pub(crate) held: Vec<usize>,
    /// Members to be tried alone, the next one last.
    pub(crate) alone: Vec<usize>,
}

impl Groups {
    pub(crate) fn new(mut rng: Rng) -> Self {
        let (is_on, gathers_ms) = (rng.chance(0.7), rng.pick([0, 30, 100, 300]));
        Self { is_on, gathers_ms, rng, committers: BTreeMap::new(), groups: Vec::new() }
    }
}
