//! Reads the formats of content: a text, a part, or a list of parts.

use serde_json::{Map, Value};

use super::calls::CallDelta;
use super::deviations::{Deviation, Deviations};

/// A piece that one event adds, in order.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ContentPiece {
    Text(String),
    Reasoning {
        text: String,
        /// The endpoint needs it back as `reasoning_content` during the turn.
        goes_back: bool,
    },
    /// The calls of one list.
    Calls(Vec<CallDelta>),
}

/// Keys under which a part has its text.
const TEXTS: [&str; 6] = ["text", "output_text", "content", "value", "refusal", "summary"];
/// Keys under which a part has a thought, whatever its type.
const THOUGHTS: [&str; 5] = ["thinking", "reasoning", "reasoning_content", "reasoning_text", "thought"];

/// Adds the pieces of content. A number or a boolean adds nothing.
pub(super) fn content(value: &Value, pieces: &mut Vec<ContentPiece>, deviations: &mut Deviations) {
    match value {
        Value::Null => {}
        Value::String(text) => push_text(text.clone(), pieces),
        Value::Array(parts) => parts.iter().for_each(|part| content(part, pieces, deviations)),
        Value::Object(part) => self::part(value, part, pieces, deviations),
        Value::Number(_) | Value::Bool(_) => deviations.note(Deviation::ContentShape),
    }
}

fn part(
    value: &Value,
    part: &Map<String, Value>,
    pieces: &mut Vec<ContentPiece>,
    deviations: &mut Deviations,
) {
    let kind = part.get("type").and_then(Value::as_str).unwrap_or_default().to_ascii_lowercase();
    if matches!(kind.as_str(), "tool_use" | "tool_call" | "function_call" | "function") {
        match CallDelta::of(value) {
            Some(call) => pieces.push(ContentPiece::Calls(vec![call])),
            None => deviations.note(Deviation::CallShape),
        }
        return;
    }
    let is_thought =
        kind.contains("think") || kind.contains("reason") || part.get("thought") == Some(&Value::Bool(true));
    if is_thought {
        // A signature or an empty part has no text. A text beside a thought is another thought, or
        // the same one.
        let thought = filled(part, &THOUGHTS).and_then(text_in);
        let beside = part
            .get("text")
            .and_then(text_in)
            .filter(|text| thought.is_some() && thought.as_ref() != Some(text));
        push_reasoning(thought.or_else(|| text_in(value)).unwrap_or_default(), false, pieces);
        return push_reasoning(beside.unwrap_or_default(), false, pieces);
    }
    let thought = filled(part, &THOUGHTS).and_then(text_in).unwrap_or_default();
    let has_thought = !thought.is_empty();
    push_reasoning(thought, false, pieces);
    match filled(part, &TEXTS) {
        Some(text) => content(text, pieces, deviations),
        None => {
            let has_key = |keys: &[&str]| keys.iter().any(|key| part.contains_key(*key));
            let is_empty = part.is_empty() || has_key(&TEXTS) || has_key(&THOUGHTS);
            deviations.note_if(!has_thought && !is_empty, Deviation::ContentPart);
        }
    }
}

/// The first of these fields that is neither null nor empty.
fn filled<'v>(part: &'v Map<String, Value>, keys: &[&str]) -> Option<&'v Value> {
    let is_filled = |value: &&Value| match value {
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    };
    keys.iter().filter_map(|key| part.get(*key)).find(is_filled)
}

/// The text of a value at any depth. `None`: it has none, or an empty one.
pub(super) fn text_in(value: &Value) -> Option<String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(text_in).collect(),
        Value::Object(map) => {
            THOUGHTS.iter().chain(&TEXTS).find_map(|key| map.get(*key).and_then(text_in))?
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => return None,
    };
    (!text.is_empty()).then_some(text)
}

pub(super) fn push_text(text: String, pieces: &mut Vec<ContentPiece>) {
    if !text.is_empty() {
        pieces.push(ContentPiece::Text(text));
    }
}

pub(super) fn push_reasoning(text: String, goes_back: bool, pieces: &mut Vec<ContentPiece>) {
    if !text.is_empty() {
        pieces.push(ContentPiece::Reasoning { text, goes_back });
    }
}
