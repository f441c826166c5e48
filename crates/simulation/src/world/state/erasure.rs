//! The erasures of this history, and how far each has come.

use model::{PartitionId, ThreadId};

use crate::rng::Rng;

/// What is erased in this history.
#[derive(Debug)]
pub(crate) struct Erasures {
    pub(crate) rng: Rng,
    pub(crate) erasures: Vec<Erasure>,
}

/// The erasing of one thread.
#[derive(Debug)]
pub(crate) struct Erasure {
    pub(crate) thread: ThreadId,
    /// What comes for an earlier run of the command is dropped.
    pub(crate) run: u64,
    pub(crate) step: ErasureStep,
    /// Between two statements at most, ms.
    pub(crate) pace: i64,
    /// Rows that the pass, and this round of it, have deleted.
    pub(crate) rows: (usize, usize),
    pub(crate) is_first_pass: bool,
    pub(crate) is_over: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ErasureStep {
    Mark,
    Pass(usize),
    Renounce(Vec<PartitionId>),
}

impl Erasures {
    pub(crate) fn new(rng: Rng) -> Self {
        Self { rng, erasures: Vec::new() }
    }

    /// Nothing is erased any more.
    pub(crate) fn is_over(&self) -> bool {
        self.erasures.iter().all(|erasure| erasure.is_over)
    }
}
