//! What an answer has cost, from the metadata of its final chunk.

use model::Metadata;
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
    /// As the ledger has it: [`Metadata::summed_call`].
    pub(crate) fn of(metadata: &Metadata) -> Option<Self> {
        let call = metadata.summed_call()?;
        let (input, output) = (call.input_tokens, call.output_tokens);
        let total = metadata.tokens_used().ok().flatten().unwrap_or(input + output);
        Some(Self { input, output, total, cached: call.cached_tokens, reasoning: call.reasoning_tokens })
    }
}

/// Why the model stopped speaking, in the words of OpenAI's chat completions: `stop`, `length`, `content_filter`, `tool_calls`, …
pub(crate) fn finish_reason(metadata: &Metadata) -> &str {
    metadata.get("finish_reason").and_then(Value::as_str).unwrap_or("stop")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn usage(metadata: Value) -> Option<(u64, u64, u64)> {
        let metadata = Metadata::new(metadata.as_object().unwrap().clone()).unwrap();
        Usage::of(&metadata).map(|usage| (usage.input, usage.output, usage.total))
    }

    #[test]
    fn only_counts_of_the_producer_are_reported() {
        let counts = json!({"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10});
        assert_eq!(usage(json!({"usage": counts, "tokens_used": 10})), Some((7, 3, 10)));
        assert_eq!(usage(json!({"usage": {"input_tokens": 7, "output_tokens": 3}})), Some((7, 3, 10)));
        assert_eq!(usage(json!({"tokens_used": "15"})), Some((0, 15, 15)));
        assert_eq!(usage(json!({"usage": {"prompt_tokens": -1}, "tokens_used": -1})), None);
        assert_eq!(usage(json!({})), None);
    }

    #[test]
    fn parts_that_are_not_said_are_not_zero() {
        let of = |usage: Value| {
            let metadata = Metadata::new(json!({"usage": usage}).as_object().unwrap().clone()).unwrap();
            Usage::of(&metadata).map(|usage| (usage.cached, usage.reasoning)).unwrap()
        };
        let details = json!({"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 5},
            "completion_tokens_details": {"reasoning_tokens": 2}});
        assert_eq!(of(details), (Some(5), Some(2)));
        assert_eq!(of(json!({"prompt_tokens": 7})), (None, None));
    }
}
