//! Token usage of model calls, as reported by the chunks of an answer.

use serde_json::{Map, Value};

use crate::metadata::{InvalidMetadata, Metadata, abbreviate, token_count};
use crate::token_counts::{TokenCounts, whole_and_part};

/// Maximum bytes of a model's name.
const MODEL_BYTES: usize = 256;
/// Maximum number of calls listed by one chunk.
const CALLS_PER_CHUNK: usize = 64;
/// Maximum bytes of a call's id.
const ID_BYTES: usize = 128;
/// Maximum number of calls of one answer that are kept separately.
const CALLS_PER_ANSWER: usize = 1_024;

/// One call of a language model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelCall {
    /// Model name used by the endpoint; `None`: not reported.
    pub model: Option<Box<str>>,
    /// Tokens read, including cached ones.
    pub input_tokens: u64,
    /// Tokens written, including reasoning.
    pub output_tokens: u64,
    /// Input tokens read from a cache; `None`: not reported.
    pub cached_tokens: Option<u64>,
    /// Output tokens of reasoning; `None`: not reported.
    pub reasoning_tokens: Option<u64>,
    /// The counts are estimates, because the provider's counts have not arrived.
    pub is_estimated: bool,
}

/// An entry of the list under [`ModelCall::KEY`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListedCall {
    /// Later entries of the same attempt with this id concern the same call.
    pub id: Option<Box<str>>,
    /// The call, as far as known.
    pub call: ModelCall,
}

impl ModelCall {
    /// Metadata key under which any chunk of an answer may list calls that begin or have ended.
    pub const KEY: &str = "model_calls";

    /// Maximum tokens of each kind that one call may report. It is far above any model, and low
    /// enough that no sum over a ledger approaches the limit of its type.
    pub const MOST_TOKENS: u64 = 1 << 31;

    /// Approximate tokens of a text with this many bytes: bytes / 3.2, rounded up. That errs on the
    /// high side for English and code. It is close enough for other scripts, whose characters take
    /// more bytes and more tokens.
    pub fn estimated_tokens(bytes: usize) -> u64 {
        (bytes as u64).saturating_mul(5).div_ceil(16)
    }

    /// A valid model name; `None`: empty, longer than 256 bytes, or with a NUL, which Postgres
    /// cannot store.
    pub fn name(name: &str) -> Option<Box<str>> {
        ((1..=MODEL_BYTES).contains(&name.len()) && !name.contains('\0')).then(|| name.into())
    }

    /// Bounds the calls of one answer: the first 1,023 stay as they are, and later ones are summed
    /// in one more.
    pub fn of_answer(mut calls: Vec<Self>) -> Vec<Self> {
        let rest = calls.split_off(calls.len().min(CALLS_PER_ANSWER));
        if let Some(last) = calls.last_mut() {
            rest.iter().for_each(|call| last.add(call));
        }
        calls
    }

    pub fn add(&mut self, other: &Self) {
        let sum = |one: Option<u64>, other: Option<u64>| match (one, other) {
            (None, None) => None,
            (one, other) => Some(one.unwrap_or(0).saturating_add(other.unwrap_or(0))),
        };
        if self.model != other.model {
            self.model = None;
        }
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.cached_tokens = sum(self.cached_tokens, other.cached_tokens);
        self.reasoning_tokens = sum(self.reasoning_tokens, other.reasoning_tokens);
        self.is_estimated |= other.is_estimated;
    }

    /// The call as an entry of the list under [`ModelCall::KEY`], without an id.
    pub fn to_value(&self) -> Value {
        let counts = [
            ("input_tokens", Some(self.input_tokens)),
            ("output_tokens", Some(self.output_tokens)),
            ("cached_tokens", self.cached_tokens),
            ("reasoning_tokens", self.reasoning_tokens),
        ];
        let model = self.model.as_deref().map(|model| ("model".to_owned(), Value::from(model)));
        let counts = counts.into_iter().filter_map(|(name, count)| Some((name.to_owned(), count?.into())));
        let estimated = self.is_estimated.then(|| ("estimated".to_owned(), Value::Bool(true)));
        Value::Object(model.into_iter().chain(counts).chain(estimated).collect())
    }

    /// Limits every count to [`ModelCall::MOST_TOKENS`].
    #[must_use]
    pub fn bounded(self) -> Self {
        let most = |count: u64| count.min(Self::MOST_TOKENS);
        Self {
            model: self.model,
            input_tokens: most(self.input_tokens),
            output_tokens: most(self.output_tokens),
            cached_tokens: self.cached_tokens.map(most),
            reasoning_tokens: self.reasoning_tokens.map(most),
            is_estimated: self.is_estimated,
        }
    }

    /// Parses a stored JSON array of such entries. Counts are not bounded: the last entry may be a
    /// sum.
    ///
    /// # Errors
    /// Not a JSON array, or an entry has an unknown field, an invalid name or an invalid count.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, InvalidMetadata> {
        let wrong = |error: serde_json::Error| InvalidMetadata::ModelCalls(abbreviate(&error.to_string()));
        let entries: Vec<Value> = serde_json::from_str(text).map_err(wrong)?;
        entries.iter().map(|entry| Ok(ListedCall::parse(entry, Value::as_u64)?.call)).collect()
    }
}

impl ListedCall {
    /// The entry of the list under [`ModelCall::KEY`].
    pub fn to_value(&self) -> Value {
        let mut entry = self.call.to_value();
        if let Some(id) = self.id.as_deref() {
            entry["id"] = id.into();
        }
        entry
    }

    fn parse(value: &Value, count_of: fn(&Value) -> Option<u64>) -> Result<Self, InvalidMetadata> {
        let wrong = |what: &str| InvalidMetadata::ModelCalls(abbreviate(what));
        let entry = value.as_object().ok_or_else(|| wrong(&value.to_string()))?;
        let (mut id, mut call) = (None, ModelCall::default());
        for (name, value) in entry {
            let count = || count_of(value).ok_or_else(|| wrong(&format!("{name} {value}")));
            match name.as_str() {
                "model" => {
                    let model = value.as_str().and_then(ModelCall::name);
                    call.model = Some(model.ok_or_else(|| wrong(&format!("model {value}")))?);
                }
                "input_tokens" => call.input_tokens = count()?,
                "output_tokens" => call.output_tokens = count()?,
                "cached_tokens" => call.cached_tokens = Some(count()?),
                "reasoning_tokens" => call.reasoning_tokens = Some(count()?),
                "id" => {
                    let named = value.as_str().filter(|id| (1..=ID_BYTES).contains(&id.len()));
                    id = Some(named.ok_or_else(|| wrong(&format!("id {value}")))?.into());
                }
                "estimated" => {
                    let estimated = value.as_bool();
                    call.is_estimated = estimated.ok_or_else(|| wrong(&format!("estimated {value}")))?;
                }
                _ => return Err(wrong(&format!("the unknown field {name}"))),
            }
        }
        // A part larger than the whole is counted separately by the provider, as Anthropic does
        // with tokens read from a cache.
        call.input_tokens = whole_and_part(call.input_tokens, call.cached_tokens.unwrap_or(0));
        call.output_tokens = whole_and_part(call.output_tokens, call.reasoning_tokens.unwrap_or(0));
        Ok(Self { id, call })
    }
}

impl From<TokenCounts> for ModelCall {
    fn from(counts: TokenCounts) -> Self {
        Self {
            model: None,
            input_tokens: counts.input(),
            output_tokens: counts.output(),
            cached_tokens: counts.cached(),
            reasoning_tokens: counts.reasoning(),
            is_estimated: false,
        }
    }
}

impl Metadata {
    /// Calls listed by a chunk.
    ///
    /// # Errors
    /// The value is not a list of at most 64 objects, or an entry has an unknown field, an invalid
    /// name or an invalid count. A count above [`ModelCall::MOST_TOKENS`] is invalid.
    pub fn model_calls(&self) -> Result<Vec<ListedCall>, InvalidMetadata> {
        let Some(value) = self.get(ModelCall::KEY) else { return Ok(Vec::new()) };
        match value.as_array() {
            Some(entries) if entries.len() <= CALLS_PER_CHUNK => {
                entries.iter().map(|entry| ListedCall::parse(entry, reported_count)).collect()
            }
            _ => Err(InvalidMetadata::ModelCalls(abbreviate(&value.to_string()))),
        }
    }

    /// Usage of a whole answer, from its final chunk's metadata: `model`, and `usage` in providers'
    /// formats ([`TokenCounts`]), else `tokens_used` as output. `None` if nothing was counted,
    /// which differs from zero. These fields belong to the message and are not refused for their
    /// size: counts are limited to [`ModelCall::MOST_TOKENS`].
    pub fn summed_call(&self) -> Option<ModelCall> {
        self.counted_call().map(ModelCall::bounded)
    }

    /// Like [`Metadata::summed_call`], but without the bound: a stored value may be the sum of many
    /// calls.
    pub(crate) fn counted_call(&self) -> Option<ModelCall> {
        let usage = self.get("usage").map(TokenCounts::of_usage).unwrap_or_default();
        let model = self.get("model").and_then(Value::as_str).and_then(ModelCall::name);
        if usage.has_parts() {
            let is_estimated =
                self.get("usage").and_then(|usage| usage.get("estimated")) == Some(&Value::Bool(true));
            return Some(ModelCall { model, is_estimated, ..ModelCall::from(usage) });
        }
        let output_tokens = self.tokens_used().ok().flatten().or(usage.is_known().then(|| usage.output()))?;
        Some(ModelCall { model, output_tokens, ..ModelCall::default() })
    }

    /// True if the metadata have any key besides the list of model calls.
    pub fn is_more_than_model_calls(&self) -> bool {
        self.as_map().is_some_and(|map: &Map<String, Value>| map.keys().any(|key| key != ModelCall::KEY))
    }
}

/// A count of a call reported by a publisher.
fn reported_count(value: &Value) -> Option<u64> {
    token_count(value).filter(|count| *count <= ModelCall::MOST_TOKENS)
}

/// Purpose of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum UsageKind {
    /// An input, a continuation of its batch, or a task.
    Turn,
    FollowUp,
    /// The summary of a compaction.
    Summary,
    /// The extraction of facts.
    Memory,
}

impl UsageKind {
    pub const ALL: [Self; 4] = [Self::Turn, Self::FollowUp, Self::Summary, Self::Memory];

    /// Name in JSON and Postgres.
    pub fn name(self) -> &'static str {
        match self {
            Self::Turn => "turn",
            Self::FollowUp => "follow_up",
            Self::Summary => "summary",
            Self::Memory => "memory",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn metadata(value: Value) -> Metadata {
        Metadata::new(value.as_object().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_list_of_calls_is_read_as_it_was_written() {
        let call = ModelCall {
            model: Some("m".into()),
            input_tokens: 7,
            output_tokens: 3,
            cached_tokens: Some(5),
            reasoning_tokens: None,
            is_estimated: true,
        };
        let call = ListedCall { id: Some("c".into()), call };
        let listed = metadata(json!({"model_calls": [call.to_value(), {"output_tokens": 2.0}]}));
        let bare = ModelCall { output_tokens: 2, ..ModelCall::default() };
        assert_eq!(listed.model_calls(), Ok(vec![call, ListedCall { id: None, call: bare }]));
        assert!(!listed.is_more_than_model_calls());
        assert_eq!(Metadata::EMPTY.model_calls(), Ok(Vec::new()));
    }

    #[test]
    fn what_is_no_list_of_counts_is_an_error() {
        let many = Value::Array(vec![json!({}); CALLS_PER_CHUNK + 1]);
        for (wrong, named) in [
            (json!(3), "3"),
            (json!([1]), "1"),
            (many, "[{},"),
            (json!([{"input_tokens": -1}]), "input_tokens -1"),
            (json!([{"cached_tokens": 0.5}]), "cached_tokens 0.5"),
            (json!([{"output_tokens": null}]), "output_tokens null"),
            (json!([{"output_tokens": 2_147_483_649_u64}]), "output_tokens 2147483649"),
            (json!([{"input_tokens": 2_147_483_649.0}]), "input_tokens 2147483649.0"),
            (json!([{"cached_tokens": "9007199254740991"}]), "cached_tokens \"9007199254740991\""),
            (json!([{"reasoning_tokens": 9_007_199_254_740_991_u64}]), "reasoning_tokens 9007199254740991"),
            (json!([{"model": ""}]), "model \"\""),
            (json!([{"model": 1}]), "model 1"),
            (json!([{"tokens": 1}]), "the unknown field tokens"),
            (json!([{"id": ""}]), "id \"\""),
            (json!([{"id": 7}]), "id 7"),
            (json!([{"estimated": "yes"}]), "estimated \"yes\""),
        ] {
            let error = metadata(json!({"model_calls": wrong})).model_calls().unwrap_err().to_string();
            assert!(error.starts_with("metadata error: model_calls") && error.contains(named), "{error}");
        }
    }

    #[test]
    fn a_part_that_is_larger_than_its_whole_was_counted_beside_it() {
        let listed =
            |call: Value| metadata(json!({ "model_calls": [call] })).model_calls().unwrap()[0].call.clone();
        let beside = listed(
            json!({"input_tokens": 30, "output_tokens": 9, "cached_tokens": 90_000, "reasoning_tokens": 10}),
        );
        assert_eq!((beside.input_tokens, beside.cached_tokens), (90_030, Some(90_000)));
        assert_eq!((beside.output_tokens, beside.reasoning_tokens), (19, Some(10)));
        let within = listed(json!({"input_tokens": 90_030, "cached_tokens": 90_000}));
        assert_eq!((within.input_tokens, within.cached_tokens), (90_030, Some(90_000)));
        let usage =
            json!({"usage": {"input_tokens": 27, "output_tokens": 9, "cache_read_input_tokens": 159_217}});
        assert_eq!(metadata(usage).summed_call().unwrap().input_tokens, 159_244);
    }

    #[test]
    fn an_answer_that_lists_no_calls_counts_as_one() {
        let openai = json!({"model": "m", "tokens_used": 99, "usage": {
            "prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 2}}});
        let call = metadata(openai).summed_call().unwrap();
        assert_eq!((call.model.as_deref(), call.input_tokens, call.output_tokens), (Some("m"), 7, 3));
        assert_eq!((call.cached_tokens, call.reasoning_tokens), (Some(4), Some(2)));
        let total = metadata(json!({"tokens_used": "15"})).summed_call().unwrap();
        assert_eq!((total.model, total.input_tokens, total.output_tokens), (None, 0, 15));
        assert_eq!(metadata(json!({"model": "m", "usage": {"prompt_tokens": -1}})).summed_call(), None);
    }

    #[test]
    fn counts_of_one_call_are_bounded() {
        let most = ModelCall::MOST_TOKENS;
        let call = ModelCall { input_tokens: most, output_tokens: most, ..ModelCall::default() };
        let listed = ListedCall { id: None, call: call.clone() };
        assert_eq!(metadata(json!({"model_calls": [call.to_value()]})).model_calls(), Ok(vec![listed]));
        // The usage of the whole answer belongs to the message and is limited to the bound.
        let absurd = json!(9_007_199_254_740_991_u64);
        let usage = json!({"prompt_tokens": absurd, "completion_tokens": absurd, "prompt_tokens_details": {"cached_tokens": absurd}});
        let of_usage = ModelCall { cached_tokens: Some(most), ..call };
        assert_eq!(metadata(json!({"usage": usage})).summed_call(), Some(of_usage));
        let of_total = metadata(json!({"tokens_used": absurd})).summed_call().unwrap();
        assert_eq!((of_total.input_tokens, of_total.output_tokens), (0, most));
        // The sum of an answer's last calls is stored unbounded, and must be readable again.
        let sum = ModelCall { output_tokens: u64::MAX, ..ModelCall::default() };
        let stored = Value::Array(vec![sum.to_value()]).to_string();
        assert_eq!(ModelCall::parse_list(&stored), Ok(vec![sum]));
    }

    #[test]
    fn calls_beyond_those_of_an_answer_are_summed_up() {
        let call =
            |output_tokens| ModelCall { output_tokens, model: Some("m".into()), ..ModelCall::default() };
        let few: Vec<_> = (0..CALLS_PER_ANSWER as u64).map(call).collect();
        assert_eq!(ModelCall::of_answer(few.clone()), few);
        assert_eq!(ModelCall::of_answer(Vec::new()), []);
        let other = ModelCall {
            output_tokens: u64::MAX,
            cached_tokens: Some(1),
            model: None,
            ..ModelCall::default()
        };
        let bounded = ModelCall::of_answer([few.clone(), vec![call(5), other]].concat());
        assert_eq!(bounded[..few.len() - 1], few[..few.len() - 1]);
        let last = bounded.last().unwrap();
        assert_eq!((bounded.len(), last.output_tokens, last.cached_tokens), (few.len(), u64::MAX, Some(1)));
        assert_eq!(last.model, None, "they are of two models");
    }
}
