//! What an answer has cost, from the metadata of its final chunk.

use model::{MAX_EXACT_INTEGER, Metadata};
use serde_json::Value;

/// Tokens of a language model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) total: u64,
}

impl Usage {
    /// `usage` with `prompt_tokens` and `completion_tokens` (or `input_tokens` and `output_tokens`), else `tokens_used`, which
    /// counts as output. `None` where nothing was counted: none is not zero.
    pub(crate) fn of(metadata: &Metadata) -> Option<Self> {
        let total = metadata.tokens_used().ok().flatten();
        let count = |names: [&str; 2]| {
            let usage = metadata.get("usage")?.as_object()?;
            let count = names.iter().find_map(|name| usage.get(*name)).and_then(Value::as_u64)?;
            Some(count.min(MAX_EXACT_INTEGER))
        };
        let input = count(["prompt_tokens", "input_tokens"]);
        let output = count(["completion_tokens", "output_tokens"]);
        match (input, output, total) {
            (None, None, None) => None,
            (None, None, Some(total)) => Some(Self { input: 0, output: total, total }),
            (input, output, total) => {
                let (input, output) = (input.unwrap_or(0), output.unwrap_or(0));
                Some(Self { input, output, total: total.unwrap_or(input + output) })
            }
        }
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
}
