//! The retention rules of this history, and rounds in progress.

use std::collections::BTreeSet;

use batches::RetentionRules;
use batches::retention::{BatchAssembler, BatchSize, Limit, RetentionEvaluator};
use model::{Position, ThreadId, Timestamp};

use crate::rng::Rng;

/// The retention rules of this history.
#[derive(Debug)]
pub(crate) struct Retention {
    pub(crate) rng: Rng,
    pub(crate) rules: Option<RetentionRules>,
    pub(crate) every_ms: i64,
    /// Messages read per query.
    pub(crate) page: usize,
}

/// A round over the threads of one partition: the remaining threads, the next one last.
#[derive(Debug)]
pub(crate) struct RetentionRound {
    pub(crate) now: Timestamp,
    /// Batches that turns in progress continue, as of the start of the round.
    pub(crate) active: BTreeSet<(ThreadId, Position)>,
    /// The remaining threads, each with its head at the start of the round.
    pub(crate) threads: Vec<(ThreadId, i64)>,
    /// The thread that is being checked.
    pub(crate) looking: Option<Looking>,
}

#[derive(Debug)]
pub(crate) struct Looking {
    pub(crate) assembler: BatchAssembler,
    pub(crate) evaluator: RetentionEvaluator,
    pub(crate) before: Position,
    pub(crate) due: Vec<(BatchSize, Limit)>,
    /// Batches that stay, except for active ones.
    pub(crate) stay: Vec<Position>,
    pub(crate) is_read: bool,
}

impl Retention {
    pub(crate) fn new(mut rng: Rng) -> Self {
        let has_rules = rng.chance(0.15);
        let rules = RetentionRules {
            max_age_ms: rng.chance(0.3).then(|| rng.range(300, 6_000)),
            max_batches: rng.chance(0.6).then(|| rng.pick([0, 1, 1, 2, 4])),
            max_bytes: rng.chance(0.3).then(|| rng.pick([40, 200, 1_000])),
        };
        let (every_ms, page) = (rng.pick([150, 500, 1_500]), rng.pick([1, 3, 50]));
        Self { rng, rules: has_rules.then_some(rules), every_ms, page }
    }
}
