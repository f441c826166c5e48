//! What one event of Google's `streamGenerateContent` says.

use serde_json::{Map, Value, json};

use super::calls::CallDelta;
use super::completions::{Said, usage};
use super::content::{ContentPiece, push_reasoning, push_text};
use super::deviations::{Deviation, Deviations};
use super::finish::Finish;

/// Steps into arguments that come in pieces; deeper paths are refused.
const MOST_STEPS: usize = 32;
/// The largest place in a list that a path may name.
const LARGEST_PLACE: usize = 10_000;

/// A call whose arguments come in pieces, and signatures that go back.
#[derive(Debug, Default)]
pub(super) struct GoogleState {
    open: Option<(CallDelta, Value)>,
    signed_parts: Vec<Value>,
}

impl GoogleState {
    /// Parts with the signatures of texts.
    pub(super) fn parts(self) -> Vec<Value> {
        self.signed_parts
    }
}

pub(super) fn read(value: &Value, state: &mut GoogleState, deviations: &mut Deviations) -> Said {
    let mut said = Said { usage: usage(value), ..Said::default() };
    said.model = value["modelVersion"].as_str().map(str::to_owned);
    if value["promptFeedback"]["blockReason"].is_string() {
        (said.finish, said.is_whole) = (Some(Finish::ContentFilter), true);
    }
    let candidates = value["candidates"].as_array().map(Vec::as_slice).unwrap_or_default();
    for candidate in candidates {
        if candidate["index"].as_u64().is_some_and(|index| index > 0) {
            deviations.note(Deviation::OtherChoice);
            continue;
        }
        for part in candidate["content"]["parts"].as_array().into_iter().flatten() {
            self::part(part, state, &mut said.pieces, deviations);
        }
        match Finish::read(&candidate["finishReason"]) {
            Ok(None) => continue,
            Ok(finish) => said.finish = finish,
            Err(_) => {
                deviations.note(Deviation::FinishReason);
                said.finish = Some(Finish::Stop);
            }
        }
        // There is no other end than the one of the connection.
        said.is_whole = true;
        end_call(state, &mut said.pieces);
    }
    said
}

fn part(part: &Value, state: &mut GoogleState, pieces: &mut Vec<ContentPiece>, deviations: &mut Deviations) {
    let signature = part["thoughtSignature"].as_str().map(str::to_owned);
    if let Some(call) = part.get("functionCall") {
        return self::call(call, signature, state, pieces, deviations);
    }
    if let Some(signature) = &signature {
        state.signed_parts.push(json!({"text": "", "thoughtSignature": signature}));
    }
    match part["text"].as_str() {
        Some(text) if part["thought"] == true => push_reasoning(text.to_owned(), false, pieces),
        Some(text) => push_text(text.to_owned(), pieces),
        None if signature.is_some() || part["executableCode"].is_object() => {}
        None if part["codeExecutionResult"].is_object() => {}
        None => deviations.note(Deviation::ContentPart),
    }
}

/// A call is one part, or a part with its name, parts with pieces of its arguments, and an empty one.
fn call(
    call: &Value,
    signature: Option<String>,
    state: &mut GoogleState,
    pieces: &mut Vec<ContentPiece>,
    deviations: &mut Deviations,
) {
    if let Some(name) = call["name"].as_str() {
        end_call(state, pieces);
        let id = call["id"].as_str().unwrap_or_default().to_owned();
        let arguments = call["args"].as_object().map_or_else(|| json!({}), |args| json!(args));
        let begun = CallDelta { id, name: name.to_owned(), signature, ..CallDelta::default() };
        state.open = Some((begun, arguments));
    }
    match &mut state.open {
        Some((_, arguments)) => {
            for piece in call["partialArgs"].as_array().into_iter().flatten() {
                deviations.note_if(add(arguments, piece).is_none(), Deviation::CallShape);
            }
        }
        None => {
            deviations.note_if(call.as_object().is_none_or(|call| !call.is_empty()), Deviation::CallShape)
        }
    }
    if call["willContinue"] != true {
        end_call(state, pieces);
    }
}

fn end_call(state: &mut GoogleState, pieces: &mut Vec<ContentPiece>) {
    if let Some((call, arguments)) = state.open.take() {
        pieces.push(ContentPiece::Calls(vec![CallDelta { arguments: arguments.to_string(), ..call }]));
    }
}

/// Puts a piece of the arguments where its path says, for example `$.legs[0].from`; `None`: it cannot be.
fn add(arguments: &mut Value, piece: &Value) -> Option<()> {
    let path = piece["jsonPath"].as_str()?.strip_prefix('$')?;
    let steps: Vec<&str> = path.split(['.', '[']).filter(|step| !step.is_empty()).collect();
    if steps.len() > MOST_STEPS {
        return None;
    }
    let mut place = arguments;
    for step in steps {
        let step = step.trim_end_matches(']').trim_matches(['\'', '"']);
        place = match step.parse::<usize>() {
            Ok(at) if !place.is_object() && at <= LARGEST_PLACE => {
                if !place.is_array() {
                    *place = json!([]);
                }
                let list = place.as_array_mut()?;
                list.resize(list.len().max(at + 1), Value::Null);
                list.get_mut(at)?
            }
            _ => {
                if !place.is_object() {
                    *place = Value::Object(Map::new());
                }
                place.as_object_mut()?.entry(step).or_insert(Value::Null)
            }
        };
    }
    if let Some(text) = piece["stringValue"].as_str() {
        *place = json!(format!("{}{text}", place.as_str().unwrap_or_default()));
        return Some(());
    }
    let value = ["numberValue", "boolValue", "nullValue"].iter().find_map(|key| piece.get(*key))?;
    *place = if value == "NULL_VALUE" { Value::Null } else { value.clone() };
    Some(())
}
