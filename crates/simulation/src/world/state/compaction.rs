//! The compaction rules of this history, and compactions in flight.

use batches::compaction::{Compaction, CompactionRules, Strategy};
use batches::context::ContextRules;
use model::ThreadId;

use crate::rng::Rng;

/// The compaction rules of this history.
#[derive(Debug)]
pub(crate) struct Compactions {
    pub(crate) rng: Rng,
    pub(crate) rules: Option<ContextRules>,
    /// Messages per page.
    pub(crate) page: usize,
}

/// A compaction in flight to the store.
#[derive(Debug)]
pub(crate) struct DueCompaction {
    pub(crate) thread: ThreadId,
    pub(crate) compaction: Compaction,
    pub(crate) is_pending: bool,
}

impl Compactions {
    pub(crate) fn new(mut rng: Rng) -> Self {
        let has_rules = rng.chance(0.2);
        let strategy =
            rng.pick([Strategy::DropOldest, Strategy::Summarise, Strategy::Importance, Strategy::Age]);
        let rules = ContextRules {
            tokens: rng.pick([30, 60, 150]),
            timeout_ms: rng.pick([500, 3_600_000]),
            compaction: Some(CompactionRules {
                strategy,
                high_percent: rng.pick([40, 70, 90]),
                low_percent: rng.pick([10, 30]),
                max_age_ms: (strategy == Strategy::Age).then(|| rng.range(300, 6_000)),
                keep_newest: rng.pick([0, 1, 2]) as u32,
                summary_tokens: 4,
            }),
            ..ContextRules::default()
        };
        let page = rng.pick([1, 3, 50]);
        Self { rng, rules: has_rules.then_some(rules), page }
    }
}
