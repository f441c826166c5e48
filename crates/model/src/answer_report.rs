//! Finish reason and usage of an answer, as its end and the history report them.

use serde_json::Value;

use crate::metadata::Metadata;
use crate::model_call::ModelCall;

/// Why an answer ended. The names are those of OpenAI's chat completions, plus one for stopped
/// turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FinishReason {
    /// The model finished. Also used if the workflow reports no reason or an unknown one.
    Stop,
    /// The model reached its token limit, so the text is cut.
    Length,
    /// The provider withheld the rest.
    ContentFilter,
    /// The model requested tools, but their results did not arrive.
    ToolCalls,
    /// The turn was stopped.
    Stopped,
}

impl FinishReason {
    pub const ALL: [Self; 5] =
        [Self::Stop, Self::Length, Self::ContentFilter, Self::ToolCalls, Self::Stopped];

    /// Metadata key under which a workflow reports the reason with the final chunk.
    pub const KEY: &str = "finish_reason";

    /// Name in JSON and Postgres.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ContentFilter => "content_filter",
            Self::ToolCalls => "tool_calls",
            Self::Stopped => "stopped",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.name() == name)
    }

    /// Reason in the metadata of an answer's last message or final chunk.
    pub fn of(metadata: &Metadata) -> Self {
        if metadata.get("stopped") == Some(&Value::Bool(true)) {
            return Self::Stopped;
        }
        let reported = metadata.get(Self::KEY).and_then(Value::as_str).and_then(Self::from_name);
        reported.filter(|reason| *reason != Self::Stopped).unwrap_or(Self::Stop)
    }
}

/// Report sent with the end of a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnswerReport {
    /// Why it ended; `None`: it is not an answer.
    pub finish_reason: Option<FinishReason>,
    /// Sum of its model calls; `None`: none is known.
    pub usage: Option<Box<ModelCall>>,
}

impl AnswerReport {
    /// Report of a stored assistant message, from its metadata.
    pub fn of_stored(metadata: &Metadata) -> Self {
        let usage = metadata.counted_call().map(Box::new);
        Self { finish_reason: Some(FinishReason::of(metadata)), usage }
    }
}

impl ModelCall {
    /// Sum of all calls of an answer; `None`: there are none.
    pub fn sum(calls: &[Self]) -> Option<Self> {
        let (first, rest) = calls.split_first()?;
        let mut sum = first.clone();
        rest.iter().for_each(|call| sum.add(call));
        Some(sum)
    }
}

impl Metadata {
    /// Metadata of an answer's last message with `usage` set to the sum of the answer's calls,
    /// unless it reports that sum itself.
    #[must_use]
    pub fn with_usage_of(self, calls: &[ModelCall]) -> Self {
        let Some(sum) = ModelCall::sum(calls) else { return self };
        let counts = |call: &ModelCall| ModelCall { model: None, ..call.clone() };
        if self.counted_call().as_ref().map(counts) == Some(counts(&sum)) {
            return self;
        }
        let mut map = self.as_map().cloned().unwrap_or_default();
        map.insert("usage".to_owned(), counts(&sum).to_value());
        // Numbers and one flag are always valid.
        Self::new(map).unwrap_or(self)
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
    fn a_reason_is_one_of_the_list() {
        let of = |value: Value| FinishReason::of(&metadata(value)).name();
        assert_eq!(of(json!({})), "stop");
        for name in ["stop", "length", "content_filter", "tool_calls"] {
            assert_eq!(of(json!({"finish_reason": name})), name);
        }
        for odd in [json!("stopped"), json!("end_turn"), json!(null), json!(3)] {
            assert_eq!(of(json!({"finish_reason": odd})), "stop", "{odd}: a workflow does not stop a turn");
        }
        assert_eq!(of(json!({"stopped": true, "finish_reason": "length"})), "stopped");
    }

    #[test]
    fn the_sum_of_the_calls_is_the_usage() {
        let call =
            |input, output| ModelCall { input_tokens: input, output_tokens: output, ..ModelCall::default() };
        let read = |metadata: &Metadata| AnswerReport::of_stored(metadata).usage.map(|call| *call);
        let calls =
            [call(100, 20), ModelCall { cached_tokens: Some(64), is_estimated: true, ..call(130, 5) }];
        let sum = ModelCall { cached_tokens: Some(64), is_estimated: true, ..call(230, 25) };
        for before in [json!({}), json!({"usage": {"prompt_tokens": 1}}), json!({"tokens_used": 9})] {
            let with = metadata(before).with_usage_of(&calls);
            assert_eq!(read(&with), Some(sum.clone()));
            assert_eq!(with.clone().with_usage_of(&calls), with, "once is enough");
        }
        let large = call(ModelCall::MOST_TOKENS, 1);
        let with = Metadata::EMPTY.with_usage_of(&[large.clone(), large]);
        assert_eq!(
            read(&with),
            Some(call(2 * ModelCall::MOST_TOKENS, 2)),
            "a sum is beyond the bound of a call"
        );
        let own = metadata(json!({"model": "m", "usage": {"prompt_tokens": 7, "completion_tokens": 3}}));
        let own_calls = [ModelCall { model: Some("m".into()), ..call(7, 3) }];
        assert_eq!(own.clone().with_usage_of(&own_calls), own, "what is right stays as it was reported");
        assert_eq!(own.clone().with_usage_of(&[]), own);
    }
}
