//! What one event of a chat completion says: a chunk, or a whole completion where an endpoint does not stream.

use model::TokenCounts;
use serde_json::Value;

use super::calls::CallDelta;
use super::content::{ContentPiece, content, push_reasoning, push_text, text_in};
use super::deviations::{Deviation, Deviations};
use super::finish::Finish;
use super::units::clean;

/// What one event says.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Said {
    pub(super) pieces: Vec<ContentPiece>,
    /// A whole message: what of it was not said before is said now.
    pub(super) message: Option<Vec<ContentPiece>>,
    pub(super) finish: Option<Finish>,
    pub(super) model: Option<String>,
    pub(super) usage: TokenCounts,
    /// The error that ends the response.
    pub(super) error: Option<Value>,
    /// The response is a whole completion: nothing needs to follow.
    pub(super) is_whole: bool,
    /// The event that ends the response.
    pub(super) is_last: bool,
}

/// The names of an object with counts.
const USAGE: [&str; 7] = [
    "usage",
    "usageMetadata",
    "usage_metadata",
    "token_usage",
    "tokenUsage",
    "usage_info",
    "amazon-bedrock-invocationMetrics",
];
/// How deep such an object may be.
const DEEPEST_USAGE: u32 = 5;
/// What the model has written, and what is long and has no counts.
const NO_USAGE: [&str; 5] = ["content", "tool_calls", "logprobs", "arguments", "args"];

/// The counts of tokens in an event: OpenAI has them at the top, others within the choice or under a name of their own.
pub(super) fn usage(value: &Value) -> TokenCounts {
    let mut found = TokenCounts::default();
    find_usage(value, 0, &mut found);
    // Ollama has no object around its counts.
    found.max(TokenCounts::of_usage(value))
}

fn find_usage(value: &Value, depth: u32, found: &mut TokenCounts) {
    if depth == DEEPEST_USAGE {
        return;
    }
    match value {
        Value::Object(map) => {
            for (key, value) in map.iter().filter(|(key, _)| !NO_USAGE.contains(&key.as_str())) {
                if USAGE.contains(&key.as_str()) {
                    *found = found.max(TokenCounts::of_usage(value));
                }
                find_usage(value, depth + 1, found);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| find_usage(value, depth + 1, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// A text at one of these keys that is not empty.
fn text_at(value: &Value, key: &str) -> Option<String> {
    value.get(key).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
}

/// The error that an event is or has.
pub(super) fn error(name: &str, value: &Value) -> Option<Value> {
    let is_present = |error: &&Value| match error {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Bool(true) | Value::Number(_) => true,
    };
    let places = ["/error", "/choices/0/error", "/response/error", "/errors", "/choices/0/delta/error"];
    let found = places.iter().filter_map(|place| value.pointer(place)).find(is_present);
    let has_kind = |key: &str| value.get(key).and_then(Value::as_str) == Some("error");
    let says_nothing_else = ["choices", "usage", "candidates", "response", "delta", "output"]
        .iter()
        .all(|key| value.get(*key).is_none_or(Value::is_null));
    let has_text = ["message", "detail", "msg", "error_msg", "error_message", "errorMessage"]
        .iter()
        .any(|key| value.get(*key).is_some_and(Value::is_string));
    match found {
        Some(Value::Bool(_)) => Some(value.clone()),
        Some(Value::Array(list)) => list.first().cloned(),
        Some(found) => Some(found.clone()),
        None if ["object", "type", "status"].into_iter().any(has_kind) || name == "error" => {
            Some(value.clone())
        }
        None if value["success"] == false || is_refused(&value["base_resp"]) => Some(value.clone()),
        None if says_nothing_else && has_text => Some(value.clone()),
        None => None,
    }
}

/// MiniMax's form of a status.
fn is_refused(status: &Value) -> bool {
    status["status_code"].as_i64().is_some_and(|code| code != 0)
}

/// Reads an event. `choice`: the index of the choice that is read, which the first event decides.
pub(super) fn read(value: &Value, choice: &mut Option<u64>, deviations: &mut Deviations) -> Said {
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
    for one in choices {
        let index = one.get("index").and_then(Value::as_f64).unwrap_or(0.0) as u64;
        if *choice.get_or_insert(index) != index {
            deviations.note(Deviation::OtherChoice);
            continue;
        }
        read_choice(one, &mut said, deviations);
    }
    said.is_whole = value.get("object").and_then(Value::as_str) == Some("chat.completion")
        || (said.message.is_some() && said.finish.is_some());
    said
}

fn read_choice(choice: &Value, said: &mut Said, deviations: &mut Deviations) {
    let absent = |value: &&Value| !value.is_null();
    match choice.get("delta").filter(absent) {
        Some(delta @ Value::Object(_)) => read_message(delta, &mut said.pieces, deviations),
        Some(other) => content(other, &mut said.pieces, deviations),
        None => push_text(text_at(choice, "text").unwrap_or_default(), &mut said.pieces),
    }
    if let Some(message) = choice.get("message").filter(absent) {
        let mut pieces = Vec::new();
        match message {
            Value::Object(_) => read_message(message, &mut pieces, deviations),
            other => content(other, &mut pieces, deviations),
        }
        said.message = Some(pieces);
    }
    let reasons = ["/finish_reason", "/delta/finish_reason", "/finish_details"];
    for reason in reasons.iter().filter_map(|place| choice.pointer(place)) {
        match Finish::read(reason) {
            Ok(reason) => said.finish = said.finish.max(reason),
            Err(_) => {
                deviations.note(Deviation::FinishReason);
                said.finish = said.finish.max(Some(Finish::Stop));
            }
        }
    }
}

/// A message, or what an event adds to it.
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
    if let Some(function) = message.get("function_call").filter(|value| !value.is_null()) {
        // The form before `tool_calls`: a message has one call, without an id.
        match CallDelta::of(function) {
            Some(one) => calls.push(CallDelta { index: Some(0), ..one }),
            None => deviations.note(Deviation::CallShape),
        }
    }
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

/// Endpoints that know several names for the reasoning send it under all of them: the first one counts.
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
