//! Token counts in the formats that providers of models use.

use serde_json::Value;

use crate::metadata::MAX_EXACT_INTEGER;

/// Names of input token counts, without case and `_`. OpenAI's chat completions come first, then
/// its Responses and Anthropic, Gemini, Bedrock, Ollama.
const INPUT: &[&str] = &[
    "prompttokens",
    "inputtokens",
    "prompttokencount",
    "inputtokencount",
    "inputtexttokencount",
    "promptevalcount",
];
const OUTPUT: &[&str] =
    &["completiontokens", "outputtokens", "candidatestokencount", "outputtokencount", "evalcount"];
const TOTAL: &[&str] = &["totaltokens", "totaltokencount"];
const CACHED: &[&str] = &[
    "prompttokensdetails/cachedtokens",
    "inputtokensdetails/cachedtokens",
    "inputtokendetails/cachereadtokens",
    "promptcachehittokens",
    "cachereadinputtokens",
    "cachereadinputtokencount",
    "cachedinputtokens",
    "cachedtokens",
    "numcachedtokens",
    "cachedcontenttokencount",
];
/// Tokens read from a cache, which Anthropic and Bedrock count in addition to the input.
const CACHED_BESIDE: &[&str] = &["cachereadinputtokens", "cachereadinputtokencount"];
/// Tokens written to a cache, which cost at least as much as other input; Anthropic counts them in
/// addition to the input.
const CACHE_WRITES: &[&str] =
    &["cachecreationinputtokens", "cachewriteinputtokens", "cachewriteinputtokencount"];
const REASONING: &[&str] = &[
    "completiontokensdetails/reasoningtokens",
    "outputtokensdetails/reasoningtokens",
    "outputtokendetails/reasoningtokens",
    "reasoningtokens",
    "thoughtstokencount",
];

/// Counts of one call; `None`: not reported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenCounts {
    input: Option<u64>,
    output: Option<u64>,
    total: Option<u64>,
    cached: Option<u64>,
    cache_writes: Option<u64>,
    reasoning: Option<u64>,
    /// The input excludes tokens read from or written to a cache, as Anthropic counts.
    is_input_without_cache: bool,
}

impl TokenCounts {
    /// Counts of an object like OpenAI's `usage`. A count is a number without a sign or a text of
    /// digits; other values are ignored.
    pub fn of_usage(usage: &Value) -> Self {
        let named = |names: &[&str]| names.iter().find_map(|name| count_at(usage, name));
        let largest_at = |names: &[&str]| names.iter().filter_map(|name| count_at(usage, name)).max();
        let (input, cache_writes) = (named(INPUT), named(CACHE_WRITES));
        // OpenAI's name for the input means all of it, whatever other fields exist.
        let has_anthropic_names = cache_writes.is_some() || named(CACHED_BESIDE).is_some();
        Self {
            input,
            output: named(OUTPUT),
            total: named(TOTAL),
            cached: largest_at(CACHED),
            cache_writes,
            reasoning: largest_at(REASONING),
            is_input_without_cache: has_anthropic_names && fields(usage, "prompttokens").next().is_none(),
        }
    }

    /// Combines two reports of one call by taking the larger of each count. The counts of a
    /// response only grow, so zeros at the end of a response change nothing.
    pub fn max(self, other: Self) -> Self {
        Self {
            input: self.input.max(other.input),
            output: self.output.max(other.output),
            total: self.total.max(other.total),
            cached: self.cached.max(other.cached),
            cache_writes: self.cache_writes.max(other.cache_writes),
            reasoning: self.reasoning.max(other.reasoning),
            is_input_without_cache: self.is_input_without_cache || other.is_input_without_cache,
        }
    }

    /// True if input or output is known. Zeros alone do not count: an answered call has used
    /// tokens.
    pub fn is_known(&self) -> bool {
        [self.input, self.output, self.total].into_iter().flatten().any(|count| count > 0)
    }

    /// True if input or output was reported, even as zero.
    pub(crate) fn has_parts(&self) -> bool {
        self.input.is_some() || self.output.is_some()
    }

    /// All tokens read, including cached ones.
    pub fn input(&self) -> u64 {
        let (input, cached) = (self.input.unwrap_or(0), self.cached.unwrap_or(0));
        let beside = cached.saturating_add(self.cache_writes.unwrap_or(0));
        let is_total_of_all = beside > 0 && self.is_total(self.known_sum().saturating_add(beside));
        if self.is_input_without_cache || is_total_of_all {
            return input.saturating_add(beside);
        }
        whole_and_part(input, cached)
    }

    /// All tokens written, including reasoning.
    pub fn output(&self) -> u64 {
        let (output, reasoning) = (self.output.unwrap_or(0), self.reasoning.unwrap_or(0));
        let is_total_of_all =
            reasoning > 0 && self.is_total(self.input().saturating_add(output).saturating_add(reasoning));
        match (self.input, self.output, self.total) {
            // Only a total: its parts are not known.
            (None, None, Some(total)) => total,
            _ if is_total_of_all => output.saturating_add(reasoning),
            _ => whole_and_part(output, reasoning),
        }
    }

    /// The reported total, or the sum of input and output if that is larger.
    pub fn total(&self) -> u64 {
        let sum = self.input().saturating_add(self.output());
        self.total.unwrap_or(0).max(sum)
    }

    /// Input tokens that came from a cache.
    pub fn cached(&self) -> Option<u64> {
        self.cached
    }

    /// Output tokens of reasoning.
    pub fn reasoning(&self) -> Option<u64> {
        self.reasoning
    }

    fn known_sum(&self) -> u64 {
        self.input.unwrap_or(0).saturating_add(self.output.unwrap_or(0))
    }

    fn is_total(&self, sum: u64) -> bool {
        self.total == Some(sum)
    }
}

/// Returns a count that includes its part. A part larger than the whole was counted separately.
pub(crate) fn whole_and_part(whole: u64, part: u64) -> u64 {
    if part > whole { whole.saturating_add(part) } else { whole }
}

/// Count at a name; `outer/inner` is a field of an object.
fn count_at(usage: &Value, name: &str) -> Option<u64> {
    match name.split_once('/') {
        Some((outer, inner)) => fields(usage, outer).find_map(|value| count_at(value, inner)),
        None => fields(usage, name).find_map(lenient_count),
    }
}

/// Fields of this name, ignoring case and `_`.
fn fields<'v>(object: &'v Value, name: &'v str) -> impl Iterator<Item = &'v Value> {
    let is_named = move |key: &str| {
        let letters = key.bytes().filter(|byte| *byte != b'_').map(|byte| byte.to_ascii_lowercase());
        letters.eq(name.bytes())
    };
    let fields = object.as_object().into_iter().flatten();
    fields.filter(move |(key, _)| is_named(key)).map(|(_, value)| value)
}

/// Reads numbers in the notations of endpoints: 613, 613.0, 613.4 and "613".
fn lenient_count(value: &Value) -> Option<u64> {
    let count = match value {
        Value::Number(number) => number.as_u64().or_else(|| number.as_f64().and_then(rounded_up)),
        Value::String(text) => {
            let text = text.trim();
            text.parse().ok().or_else(|| text.parse().ok().and_then(rounded_up))
        }
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }?;
    Some(count.min(MAX_EXACT_INTEGER))
}

fn rounded_up(number: f64) -> Option<u64> {
    (number.is_finite() && number >= 0.0).then(|| number.ceil().min(MAX_EXACT_INTEGER as f64) as u64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Input, output, cached, reasoning.
    fn counts(usage: Value) -> (u64, u64, Option<u64>, Option<u64>) {
        let counts = TokenCounts::of_usage(&usage);
        (counts.input(), counts.output(), counts.cached(), counts.reasoning())
    }

    #[test]
    fn counts_are_found_under_the_names_of_all_providers() {
        let cached = (613, 58, Some(600), None);
        for usage in [
            json!({"prompt_tokens": 613, "completion_tokens": 58, "prompt_tokens_details": {"cached_tokens": 600}}),
            json!({"input_tokens": 613, "output_tokens": 58, "input_tokens_details": {"cached_tokens": 600}}),
            json!({"prompt_tokens": 613, "completion_tokens": 58, "prompt_cache_hit_tokens": 600, "prompt_cache_miss_tokens": 13}),
            json!({"input_tokens": 13, "output_tokens": 58, "cache_read_input_tokens": 600, "cache_creation_input_tokens": 0}),
            json!({"promptTokenCount": 613, "candidatesTokenCount": 58, "totalTokenCount": 671, "cachedContentTokenCount": 600}),
            json!({"prompt_tokens": 613, "completion_tokens": 58, "cache_read_input_tokens": 600}),
        ] {
            assert_eq!(counts(usage.clone()), cached, "{usage}");
        }
        for usage in [
            json!({"prompt_eval_count": 613, "eval_count": 58}),
            json!({"promptTokens": 613, "completionTokens": 58}),
            json!({"inputTokens": 613, "outputTokens": 58, "totalTokens": 671}),
            json!({"inputTokenCount": 613, "outputTokenCount": 58}),
            json!({"InputTokens": 613, "OUTPUT_TOKENS": "58"}),
        ] {
            assert_eq!(counts(usage.clone()), (613, 58, None, None), "{usage}");
        }
        let bedrock = json!({"inputTokens": 13, "outputTokens": 58, "cacheReadInputTokens": 500, "cacheWriteInputTokens": 100});
        assert_eq!(counts(bedrock), (613, 58, Some(500), None));
    }

    #[test]
    fn a_part_that_was_counted_beside_its_whole_is_added() {
        let anthropic = json!({"input_tokens": 27, "output_tokens": 9, "cache_read_input_tokens": 159_217, "cache_creation_input_tokens": 100});
        assert_eq!(counts(anthropic), (159_344, 9, Some(159_217), None));
        let beyond = json!({"prompt_tokens": 30, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 90_000}});
        assert_eq!(counts(beyond), (90_030, 9, Some(90_000), None));
        // The total shows that the two counts are separate, although the part is the smaller one.
        let apart = json!({"prompt_tokens": 5_000, "completion_tokens": 9, "total_tokens": 8_009, "prompt_tokens_details": {"cached_tokens": 3_000}});
        assert_eq!(counts(apart), (8_000, 9, Some(3_000), None));
        let reasoning = json!({"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 18, "completion_tokens_details": {"reasoning_tokens": 4}});
        assert_eq!(counts(reasoning), (5, 13, None, Some(4)));
        let thoughts = json!({"promptTokenCount": 5, "candidatesTokenCount": 9, "thoughtsTokenCount": 40, "totalTokenCount": 54});
        assert_eq!(counts(thoughts), (5, 49, None, Some(40)));
        let within = json!({"prompt_tokens": 90_030, "completion_tokens": 9, "total_tokens": 90_039, "prompt_tokens_details": {"cached_tokens": 90_000}});
        assert_eq!(counts(within), (90_030, 9, Some(90_000), None));
    }

    #[test]
    fn what_is_no_count_is_passed_over() {
        assert_eq!(counts(json!({"prompt_tokens": 613.0, "completion_tokens": "58"})), (613, 58, None, None));
        assert_eq!(
            counts(json!({"prompt_tokens": 612.5, "completion_tokens": " 58.0 "})),
            (613, 58, None, None)
        );
        assert_eq!(
            counts(json!({"prompt_tokens": null, "input_tokens": 7, "completion_tokens": -1})),
            (7, 0, None, None)
        );
        for unknown in [
            json!(null),
            json!([1]),
            json!({}),
            json!({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}),
        ] {
            assert!(!TokenCounts::of_usage(&unknown).is_known(), "{unknown}");
        }
        let total = TokenCounts::of_usage(&json!({"total_tokens": 7}));
        assert_eq!((total.is_known(), total.input(), total.output(), total.total()), (true, 0, 7, 7));
    }

    #[test]
    fn of_several_reports_the_larger_counts_are_right() {
        let of = TokenCounts::of_usage;
        let real = of(&json!({"prompt_tokens": 613, "completion_tokens": 58, "total_tokens": 671}));
        let zeros = of(&json!({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}));
        assert_eq!(real.max(zeros), real);
        assert_eq!(zeros.max(real), real);
        let parts = of(&json!({"prompt_tokens": 613})).max(of(&json!({"completion_tokens": 58})));
        assert_eq!((parts.input(), parts.output(), parts.total()), (613, 58, 671));
    }
}
