//! What an answer has cost: the sum of its calls of models.

use model::{Metadata, ModelCall};
use serde_json::Value;

/// Tokens of a language model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) total: u64,
    /// How many of the input came from a cache; `None`: not said.
    pub(crate) cached: Option<u64>,
    /// How many of the output are reasoning; `None`: not said.
    pub(crate) reasoning: Option<u64>,
}

impl Usage {
    /// The sum of the calls, as the ledger has them; `None`: no call is known. `metadata`: of the final chunk.
    pub(crate) fn of(calls: Vec<ModelCall>, metadata: &Metadata) -> Option<Self> {
        let mut calls = calls.into_iter();
        let first = calls.next()?;
        let sum = calls.fold(first, |mut sum, call| {
            sum.add(&call);
            sum
        });
        let (input, output) = (sum.input_tokens, sum.output_tokens);
        let parts = input.saturating_add(output);
        let total = metadata.tokens_used().ok().flatten().unwrap_or(parts).max(parts);
        Some(Self { input, output, total, cached: sum.cached_tokens, reasoning: sum.reasoning_tokens })
    }
}

/// Why the model stopped speaking, in the words of OpenAI's chat completions: `stop`, `length`, `content_filter`, `tool_calls`, …
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
        Usage::of(calls.finish(), &metadata)
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
