//! Budgets that are spent for a while: turns of their agents wait under every owner, and begin
//! afterwards.

use model::{AgentId, Bucket};

use crate::rng::Rng;

/// Which agents have spent their budgets at which time. Every owner sees the same.
#[derive(Debug)]
pub(crate) struct SpentBudgets {
    /// 0: no agent has a budget.
    period_ms: i64,
    salt: u64,
}

impl SpentBudgets {
    pub(crate) fn new(mut rng: Rng) -> Self {
        let period_ms = if rng.chance(0.5) { rng.range(200, 4_000) } else { 0 };
        Self { period_ms, salt: rng.range(0, 1_000_000).unsigned_abs() }
    }

    /// How long the agent's budget remains spent, ms. It is spent in one of four periods.
    pub(crate) fn left_ms(&self, agent: &AgentId, now_ms: i64) -> Option<i64> {
        let period = now_ms.checked_div(self.period_ms)?;
        let drawn = Bucket::of_key(&format!("{agent}:{period}:{}", self.salt)).get();
        drawn.is_multiple_of(4).then(|| (period + 1) * self.period_ms - now_ms)
    }
}
