//! Usage of the model calls in one commit, for metrics; the ledger has it by model and agent.

use model::UsageKind;
use partition::UsageWrite;

use crate::metrics;

/// Sums of a commit, counted once it is applied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ModelUsage {
    calls: [u64; UsageKind::ALL.len()],
    input_tokens: u64,
    cached_tokens: u64,
    output_tokens: u64,
    reasoning_tokens: u64,
}

impl ModelUsage {
    pub(crate) fn of(writes: &[UsageWrite]) -> Self {
        let mut usage = Self::default();
        for UsageWrite { kind, call, .. } in writes {
            let calls = UsageKind::ALL.iter().zip(&mut usage.calls).find(|(of, _)| *of == kind);
            calls.into_iter().for_each(|(_, calls)| *calls += 1);
            let sums = [
                (&mut usage.input_tokens, call.input_tokens),
                (&mut usage.cached_tokens, call.cached_tokens.unwrap_or_default()),
                (&mut usage.output_tokens, call.output_tokens),
                (&mut usage.reasoning_tokens, call.reasoning_tokens.unwrap_or_default()),
            ];
            sums.into_iter().for_each(|(sum, tokens)| *sum = sum.saturating_add(tokens));
        }
        usage
    }

    pub(crate) fn count(&self) {
        for (kind, calls) in UsageKind::ALL.iter().zip(self.calls).filter(|(_, calls)| *calls > 0) {
            ::metrics::counter!(metrics::MODEL_CALLS, "kind" => kind.name()).increment(calls);
        }
        let tokens = [
            ("input", self.input_tokens),
            ("cached", self.cached_tokens),
            ("output", self.output_tokens),
            ("reasoning", self.reasoning_tokens),
        ];
        for (of, tokens) in tokens.into_iter().filter(|(_, tokens)| *tokens > 0) {
            ::metrics::counter!(metrics::MODEL_TOKENS, "type" => of).increment(tokens);
        }
    }
}
