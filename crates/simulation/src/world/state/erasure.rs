//! The erasures of this history, and the progress of each.

use model::{PartitionId, ThreadId};

use crate::rng::Rng;

/// The erasures of this history.
#[derive(Debug)]
pub(crate) struct Erasures {
    pub(crate) rng: Rng,
    pub(crate) erasures: Vec<Erasure>,
}

/// The erasure of one thread.
#[derive(Debug)]
pub(crate) struct Erasure {
    pub(crate) thread: ThreadId,
    /// Events of an earlier run of the command are dropped.
    pub(crate) run: u64,
    pub(crate) step: ErasureStep,
    /// Maximum time between two statements, ms.
    pub(crate) pace: i64,
    /// Rows deleted by this pass, and by this round of it.
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

    /// True if nothing more will be erased.
    pub(crate) fn is_over(&self) -> bool {
        self.erasures.iter().all(|erasure| erasure.is_over)
    }
}
