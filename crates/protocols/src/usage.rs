//! The usage of an answer: the sum of its model calls.

use model::{Metadata, ModelCall};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// The token usage of all model calls of one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct AnswerUsage {
    /// Input tokens, including those from a cache.
    input_tokens: u64,
    /// Output tokens, including reasoning.
    output_tokens: u64,
    /// Input tokens that came from a cache; absent: not reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    cached_tokens: Option<u64>,
    /// Output tokens that are reasoning; absent: not reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reasoning_tokens: Option<u64>,
    /// True: the provider's counts of some call are missing, so these are estimates. Otherwise
    /// absent.
    #[serde(skip_serializing_if = "is_false")]
    #[schema(required = false)]
    estimated: bool,
}

impl From<&ModelCall> for AnswerUsage {
    fn from(call: &ModelCall) -> Self {
        Self {
            input_tokens: call.input_tokens,
            output_tokens: call.output_tokens,
            cached_tokens: call.cached_tokens,
            reasoning_tokens: call.reasoning_tokens,
            estimated: call.is_estimated,
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands in a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// Tokens of a language model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) total: u64,
    /// Input tokens that came from a cache; `None`: not reported.
    pub(crate) cached: Option<u64>,
    /// Output tokens that are reasoning; `None`: not reported.
    pub(crate) reasoning: Option<u64>,
}

impl Usage {
    /// The sum of the calls, as in the ledger; `None`: no call is known. `metadata`: of the final
    /// chunk.
    pub(crate) fn of(calls: &[ModelCall], metadata: &Metadata) -> Option<Self> {
        let sum = ModelCall::sum(calls)?;
        let (input, output) = (sum.input_tokens, sum.output_tokens);
        let parts = input.saturating_add(output);
        let total = metadata.tokens_used().ok().flatten().unwrap_or(parts).max(parts);
        Some(Self { input, output, total, cached: sum.cached_tokens, reasoning: sum.reasoning_tokens })
    }
}

/// The finish reason in the terms of OpenAI's chat completions: `stop`, `length`, `content_filter`,
/// `tool_calls`, …
pub(crate) fn finish_reason(metadata: &Metadata) -> &str {
    metadata.get("finish_reason").and_then(Value::as_str).unwrap_or("stop")
}

#[cfg(test)]
mod tests {
    use model::{AnswerCalls, Chunk};
    use serde_json::json;

    use super::*;

    fn of(metadata: Value) -> Option<Usage> {
        let metadata = Metadata::new(metadata.as_object().unwrap().clone()).unwrap();
        let mut calls = AnswerCalls::default();
        calls.take(&Chunk { metadata: metadata.clone(), ..Chunk::content(0, "", true) });
        Usage::of(&calls.finish(), &metadata)
    }

    fn usage(metadata: Value) -> Option<(u64, u64, u64)> {
        of(metadata).map(|usage| (usage.input, usage.output, usage.total))
    }

    #[test]
    fn only_counts_of_the_producer_are_reported() {
        let counts = json!({"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10});
        assert_eq!(usage(json!({"usage": counts, "tokens_used": 10})), Some((7, 3, 10)));
        assert_eq!(usage(json!({"usage": {"input_tokens": 7, "output_tokens": 3}})), Some((7, 3, 10)));
        assert_eq!(usage(json!({"tokens_used": "15"})), Some((0, 15, 15)));
        assert_eq!(usage(json!({"usage": {"prompt_tokens": -1}, "tokens_used": -1})), None);
        assert_eq!(usage(json!({})), None);
        let calls =
            json!([{"input_tokens": 100, "output_tokens": 20}, {"input_tokens": 130, "output_tokens": 5}]);
        assert_eq!(usage(json!({"model_calls": calls})), Some((230, 25, 255)));
    }

    #[test]
    fn parts_that_are_not_said_are_not_zero() {
        let parts = |usage: Value| {
            of(json!({ "usage": usage })).map(|usage| (usage.cached, usage.reasoning)).unwrap()
        };
        let details = json!({"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 5},
            "completion_tokens_details": {"reasoning_tokens": 2}});
        assert_eq!(parts(details), (Some(5), Some(2)));
        assert_eq!(parts(json!({"prompt_tokens": 7})), (None, None));
    }
}
