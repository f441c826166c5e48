//! Reads events of chat completions: a chunk, or a whole completion if an endpoint does not stream.

use model::TokenCounts;
use serde_json::Value;

use super::calls::{self, CallDelta};
use super::content::{ContentPiece, content, push_reasoning, push_text, text_in};
use super::deviations::{Deviation, Deviations};
use super::finish::Finish;
use super::units::clean;
use crate::endpoint_errors;

/// The content of one event.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Said {
    pub(super) pieces: Vec<ContentPiece>,
    /// A whole message, of which only the new part is added.
    pub(super) message: Option<Vec<ContentPiece>>,
    /// The message may be a piece: it is in a chunk in place of the delta, and the chunk has no
    /// finish reason.
    pub(super) is_piece: bool,
    pub(super) finish: Option<Finish>,
    pub(super) model: Option<String>,
    pub(super) usage: TokenCounts,
    /// The error that ends the response.
    pub(super) error: Option<Value>,
    /// The response is a whole completion, so nothing needs to follow.
    pub(super) is_whole: bool,
    /// The event that ends the response.
    pub(super) is_last: bool,
}

/// Names of an object with counts, in lower case without separators.
const USAGE: [&str; 7] = [
    "usage",
    "usagemetadata",
    "tokenusage",
    "usageinfo",
    "tokens",
    "billedunits",
    "amazonbedrockinvocationmetrics",
];
/// Maximum depth of such an object.
const DEEPEST_USAGE: u32 = 5;
/// Keys that are not searched for counts: output of the model, and long values.
const NO_USAGE: [&str; 5] = ["content", "tool_calls", "logprobs", "arguments", "args"];

/// The token counts in an event. OpenAI has them at the top, others in the choice or under another
/// name.
pub(super) fn usage(value: &Value) -> TokenCounts {
    let mut found = TokenCounts::default();
    find_usage(value, false, 0, &mut found);
    // Ollama has no object around its counts.
    found.max(TokenCounts::of_usage(value))
}

/// `is_within`: the value is part of an object with counts; Cohere nests them one level deeper.
fn find_usage(value: &Value, is_within: bool, depth: u32, found: &mut TokenCounts) {
    if depth == DEEPEST_USAGE {
        return;
    }
    match value {
        Value::Object(map) => {
            for (key, value) in map.iter().filter(|(key, _)| !NO_USAGE.contains(&key.as_str())) {
                let name = plain_name(key);
                // The value holds details of a count, which are read with the object of the count.
                if is_within && (name.ends_with("details") || name.starts_with("cache")) {
                    continue;
                }
                let is_within = is_within || USAGE.contains(&name.as_str());
                if is_within {
                    *found = found.max(TokenCounts::of_usage(value));
                }
                find_usage(value, is_within, depth + 1, found);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| find_usage(value, is_within, depth + 1, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// A name in lower case without separators.
fn plain_name(key: &str) -> String {
    key.chars().filter(char::is_ascii_alphanumeric).map(|char| char.to_ascii_lowercase()).collect()
}

/// A non-empty text at one of these keys.
fn text_at(value: &Value, key: &str) -> Option<String> {
    value.get(key).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
}

/// The error that an event is or contains.
pub(super) fn error(name: &str, value: &Value) -> Option<Value> {
    let says_nothing_else = ["choices", "usage", "candidates", "response", "delta", "output"]
        .iter()
        .all(|key| value.get(*key).is_none_or(Value::is_null));
    let places = ["/error", "/choices/0/error", "/response/error", "/errors", "/choices/0/delta/error"];
    let mut found = places.iter().filter_map(|place| value.pointer(place));
    if let Some(found) = found.find(|found| endpoint_errors::is_present(found, says_nothing_else)) {
        return Some(endpoint_errors::described(found, value));
    }
    let has_kind = |key: &str| value.get(key).and_then(Value::as_str) == Some("error");
    let has_text = ["message", "detail", "msg", "error_msg", "error_message", "errorMessage"]
        .iter()
        .any(|key| value.get(*key).is_some_and(Value::is_string));
    let is_error = ["object", "type", "status"].into_iter().any(has_kind)
        || name == "error"
        || value["success"] == false
        || is_refused(&value["base_resp"])
        || (says_nothing_else && has_text);
    is_error.then(|| value.clone())
}

/// Whether a status in MiniMax's format is an error.
fn is_refused(status: &Value) -> bool {
    status["status_code"].as_i64().is_some_and(|code| code != 0)
}

/// Selects the choice that is read. One choice is requested, so an index that only grows counts
/// pieces.
#[derive(Debug, Default)]
pub(super) struct ChosenChoice {
    first: Option<u64>,
    last: u64,
    has_others: bool,
}

impl ChosenChoice {
    /// Whether a choice at this place of its event is read.
    fn takes(&mut self, index: Option<u64>, place: u64, is_only: bool) -> bool {
        // A choice without an index is the only one of its event, or the one at its place.
        let index = match index {
            Some(index) => index,
            None if is_only => self.first.unwrap_or(0),
            None => place,
        };
        let first = *self.first.get_or_insert(index);
        self.has_others |= index < self.last || (!is_only && index != first);
        if !self.has_others {
            self.last = index;
        }
        index == first || !self.has_others
    }
}

/// Reads an event.
pub(super) fn read(value: &Value, chosen: &mut ChosenChoice, deviations: &mut Deviations) -> Said {
    let mut said = Said {
        model: text_at(value, "model").map(|model| clean(&model)),
        usage: usage(value),
        ..Said::default()
    };
    let choices = match value.get("choices") {
        Some(Value::Array(choices)) => choices.as_slice(),
        Some(one @ Value::Object(_)) => std::slice::from_ref(one),
        _ => &[],
    };
    let mut has_message = false;
    for (place, one) in (0..).zip(choices) {
        let index = one.get("index").and_then(calls::index);
        if !chosen.takes(index, place, choices.len() == 1) {
            deviations.note(Deviation::OtherChoice);
            continue;
        }
        has_message |= read_choice(one, &mut said, deviations);
    }
    if said.finish.is_none() && !choices.is_empty() {
        said.finish = finish(value, &["/finish_reason", "/finishReason"], deviations);
    }
    // A server that sends messages instead of pieces may count tokens in each of them.
    let is_chunk = value.get("object").and_then(Value::as_str) == Some("chat.completion.chunk");
    said.is_piece = is_chunk && said.pieces.is_empty() && said.finish.is_none();
    said.is_whole = has_message && (said.finish.is_some() || (said.usage.is_known() && !is_chunk));
    said
}

/// Reads a choice. Returns whether it is a complete message.
fn read_choice(choice: &Value, said: &mut Said, deviations: &mut Deviations) -> bool {
    let absent = |value: &&Value| !value.is_null();
    let delta = choice.get("delta").filter(absent);
    match delta {
        Some(delta @ Value::Object(_)) => read_message(delta, &mut said.pieces, deviations),
        Some(other) => content(other, &mut said.pieces, deviations),
        None => push_text(text_at(choice, "text").unwrap_or_default(), &mut said.pieces),
    }
    let message = choice.get("message").filter(absent);
    if let Some(message) = message {
        let mut pieces = Vec::new();
        match message {
            Value::Object(_) => read_message(message, &mut pieces, deviations),
            other => content(other, &mut pieces, deviations),
        }
        said.message = Some(pieces);
    }
    let reasons = ["/finish_reason", "/finishReason", "/delta/finish_reason", "/finish_details"];
    let reason = finish(choice, &reasons, deviations).or_else(|| {
        // Besides a finish reason, some endpoints put the token that ended the answer here, as a
        // number or a text.
        let other = ["/stop_reason", "/stopReason", "/delta/stop_reason"];
        let is_text = |place: &&&str| choice.pointer(place).is_some_and(Value::is_string);
        other.iter().find(is_text).and_then(|place| finish(choice, &[place], deviations))
    });
    said.finish = said.finish.max(reason);
    message.is_some() && delta.is_none()
}

/// The most important finish reason at these places.
fn finish(value: &Value, places: &[&str], deviations: &mut Deviations) -> Option<Finish> {
    let reasons = places.iter().filter_map(|place| value.pointer(place));
    let read = reasons.map(|reason| match Finish::read(reason) {
        Ok(reason) => reason,
        Err(_) => {
            deviations.note(Deviation::FinishReason);
            Some(Finish::Stop)
        }
    });
    read.max().flatten()
}

/// Reads a message or a delta.
fn read_message(message: &Value, pieces: &mut Vec<ContentPiece>, deviations: &mut Deviations) {
    reasoning(message, pieces);
    let before = pieces.len();
    content(message.get("content").unwrap_or(&Value::Null), pieces, deviations);
    if pieces.len() == before {
        let other = ["refusal", "text"].iter().find_map(|key| text_at(message, key));
        push_text(other.unwrap_or_default(), pieces);
    }
    for lost in ["images", "audio"] {
        let is_there =
            message.get(lost).is_some_and(|value| !value.is_null() && value != &Value::Array(Vec::new()));
        deviations.note_if(is_there, Deviation::ContentPart);
    }
    let mut calls = Vec::new();
    match message.get("tool_calls") {
        None | Some(Value::Null) => {}
        Some(Value::Array(list)) => list.iter().for_each(|value| call(value, &mut calls, deviations)),
        Some(one) => call(one, &mut calls, deviations),
    }
    let function = message.get("function_call").filter(|value| !value.is_null() && calls.is_empty());
    if let Some(function) = function {
        // The format before `tool_calls`: a message has one call, without an id.
        match CallDelta::of(function) {
            Some(one) => calls.push(CallDelta { index: Some(0), ..one }),
            None => deviations.note(Deviation::CallShape),
        }
    }
    // A call that is also in a part of the content is one call.
    let is_said = |piece: &ContentPiece| match piece {
        ContentPiece::Calls(parts) => parts.iter().all(|part| calls.iter().any(|call| call.is_same(part))),
        ContentPiece::Text(_) | ContentPiece::Reasoning { .. } => false,
    };
    deviations.note_if(pieces.iter().any(is_said), Deviation::Repetition);
    pieces.retain(|piece| !is_said(piece));
    if !calls.is_empty() {
        pieces.push(ContentPiece::Calls(calls));
    }
}

fn call(value: &Value, calls: &mut Vec<CallDelta>, deviations: &mut Deviations) {
    match (CallDelta::of(value), value) {
        (Some(one), _) => calls.push(one),
        // An empty object adds nothing.
        (None, Value::Null) => {}
        (None, Value::Object(map)) if map.is_empty() => {}
        (None, _) => deviations.note(Deviation::CallShape),
    }
}

/// Endpoints that know several names for the reasoning send it under all of them; the first one is
/// used.
fn reasoning(message: &Value, pieces: &mut Vec<ContentPiece>) {
    let names =
        ["reasoning_content", "reasoning", "thinking", "reasoning_text", "thought", "reasoning_details"];
    let found = names.iter().find_map(|name| {
        let text = message.get(*name).and_then(text_in).filter(|text| !text.is_empty())?;
        Some((text, *name == "reasoning_content"))
    });
    if let Some((text, goes_back)) = found {
        push_reasoning(text, goes_back, pieces);
    }
}
