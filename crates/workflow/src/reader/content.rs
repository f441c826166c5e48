//! The shapes that content has: a text, a part, or a list of parts.

use serde_json::{Map, Value};

use super::calls::CallDelta;
use super::deviations::{Deviation, Deviations};

/// What one event adds, in its order.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ContentPiece {
    Text(String),
    Reasoning {
        text: String,
        /// The endpoint wants it back as `reasoning_content` while the turn lasts.
        goes_back: bool,
    },
    /// The calls of one list.
    Calls(Vec<CallDelta>),
}

/// Keys under which a part has its text.
const TEXTS: [&str; 8] =
    ["text", "output_text", "content", "value", "refusal", "thinking", "reasoning", "summary"];

/// Adds what content says. A number or a boolean says nothing.
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
    match text_in(value) {
        Some(text) if is_thought => push_reasoning(text, false, pieces),
        Some(text) => push_text(text, pieces),
        // A signature, or an empty part.
        None if is_thought || part.is_empty() => {}
        None => deviations.note(Deviation::ContentPart),
    }
}

/// The text of a part, however deep it is; `None`: it has none.
pub(super) fn text_in(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let texts: Vec<String> = parts.iter().filter_map(text_in).collect();
            (!texts.is_empty()).then(|| texts.concat())
        }
        Value::Object(map) => TEXTS.iter().find_map(|key| map.get(*key).and_then(text_in)),
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
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
