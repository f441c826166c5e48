//! Why a model ended its answer, in the terms of all providers.

use serde_json::Value;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Finish {
    /// The model finished its answer.
    Stop,
    /// The model calls tools.
    ToolCalls,
    /// The answer reached a limit of tokens.
    Length,
    /// The provider cut off or refused the answer.
    ContentFilter,
    /// The provider failed during the answer.
    Failed,
}

impl Finish {
    /// Name in the metadata of the answer.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::ToolCalls => "tool_calls",
            Self::Length => "length",
            Self::ContentFilter => "content_filter",
            Self::Failed => "error",
        }
    }

    /// The answer is incomplete, so its calls are not made.
    pub(crate) fn is_cut(self) -> bool {
        matches!(self, Self::Length | Self::ContentFilter)
    }

    /// Parses an endpoint's reason. `Ok(None)`: there is none yet. Error: it is unknown.
    pub(super) fn read(value: &Value) -> Result<Option<Self>, UnknownReason> {
        let text = match value {
            Value::Null => return Ok(None),
            Value::String(text) => text.as_str(),
            Value::Object(map) => match ["type", "reason"].iter().find_map(|key| map.get(*key)?.as_str()) {
                Some(text) => text,
                None => return Err(UnknownReason),
            },
            Value::Bool(_) | Value::Number(_) | Value::Array(_) => return Err(UnknownReason),
        };
        let words = words(text);
        let text = words.concat();
        let is = |known: &[&str]| known.contains(&text.as_str());
        let has = |known: &[&str]| known.iter().any(|word| text.contains(word));
        let has_word = |known: &[&str]| words.iter().any(|word| known.contains(&word.as_str()));
        Ok(Some(match () {
            () if is(&["", "null", "none", "finishreasonunspecified", "inprogress", "pending", "queued"]) => {
                return Ok(None);
            }
            // This pattern precedes the others: "MALFORMED_FUNCTION_CALL" is not a call.
            () if has(&[
                "error",
                "abort",
                "cancel",
                "fail",
                "malformed",
                "unexpectedtool",
                "insufficient",
                "ratelimit",
                "timeout",
            ]) || is(&["toomanytoolcalls", "missingthoughtsignature"]) =>
            {
                Self::Failed
            }
            () if has(&[
                "filter",
                "safety",
                "sensitive",
                "refus",
                "recitation",
                "block",
                "prohibited",
                "guardrail",
                "spii",
            ]) || is(&["language", "imageother", "noimage", "moderation"]) =>
            {
                Self::ContentFilter
            }
            () if has(&["length", "max", "limit", "contextwindow", "truncat"])
                || has(&["incomplete", "unfinish", "notfinish", "notcomplete"]) =>
            {
                Self::Length
            }
            () if has(&["tool", "function"]) => Self::ToolCalls,
            // These patterns match whole words: "pending" and "suspended" do not mean an end.
            () if has_word(&STOPS) || is(&["endturn", "endofturn", "endoftext", "stopsequence"]) => {
                Self::Stop
            }
            () => return Err(UnknownReason),
        }))
    }
}

/// Words for a finished answer.
const STOPS: [&str; 13] = [
    "stop",
    "stopped",
    "eos",
    "eot",
    "end",
    "ended",
    "complete",
    "completed",
    "finish",
    "finished",
    "done",
    "success",
    "successful",
];

/// The words of a name in lower case: `max_tokens`, `max-tokens`, `MaxTokens`, `MAX TOKENS`.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    for char in name.chars() {
        let begins = before.is_lowercase() && char.is_uppercase();
        if begins || !char.is_alphanumeric() {
            words.push(String::new());
        }
        if char.is_alphanumeric() {
            let word = words.last_mut();
            word.into_iter().for_each(|word| word.extend(char.to_lowercase()));
        }
        before = char;
    }
    words.retain(|word| !word.is_empty());
    words
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnknownReason;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reasons_of_all_providers_are_known() {
        for (words, finish) in [
            (
                &[
                    "stop",
                    "STOP",
                    "end_turn",
                    "stop_sequence",
                    "eos",
                    "eos_token",
                    "COMPLETE",
                    "completed",
                    "done",
                    "EndTurn",
                    "endTurn",
                    "stop-sequence",
                    "<|im_end|>",
                    "finished",
                ][..],
                Finish::Stop,
            ),
            (&["tool_calls", "tool_use", "function_call", "TOOL_CALL"], Finish::ToolCalls),
            (
                &[
                    "length",
                    "max_tokens",
                    "MAX_TOKENS",
                    "max_output_tokens",
                    "model_length",
                    "model_context_window_exceeded",
                    "max tokens",
                    "MaxTokens",
                    "max-tokens",
                    "maxOutputTokens",
                    "token limit",
                    "limit",
                    "incomplete",
                    "incomplete_max",
                    "unfinished",
                ],
                Finish::Length,
            ),
            (
                &[
                    "content_filter",
                    "SAFETY",
                    "refusal",
                    "RECITATION",
                    "sensitive",
                    "PROHIBITED_CONTENT",
                    "BLOCKLIST",
                ],
                Finish::ContentFilter,
            ),
            (
                &[
                    "error",
                    "network_error",
                    "abort",
                    "cancelled",
                    "MALFORMED_FUNCTION_CALL",
                    "insufficient_system_resource",
                ],
                Finish::Failed,
            ),
        ] {
            for word in words {
                assert_eq!(Finish::read(&json!(word)), Ok(Some(finish)), "{word}");
            }
        }
        for none in [json!(null), json!(""), json!("null"), json!("pending")] {
            assert_eq!(Finish::read(&none), Ok(None));
        }
        assert_eq!(Finish::read(&json!({"type": "stop"})), Ok(Some(Finish::Stop)));
        for unknown in [json!("other"), json!("suspended"), json!(1), json!(["stop"]), json!({})] {
            assert_eq!(Finish::read(&unknown), Err(UnknownReason), "{unknown}");
        }
    }
}
