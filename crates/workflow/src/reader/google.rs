//! Reads events of Google's `streamGenerateContent`.

use serde_json::{Map, Value, json};

use super::calls::{self, CallDelta};
use super::completions::{Said, usage};
use super::content::{ContentPiece, push_reasoning, push_text};
use super::deviations::{Deviation, Deviations};
use super::finish::Finish;

/// Maximum steps of a path into arguments that arrive in pieces; deeper paths are refused.
const MOST_STEPS: usize = 32;
/// Maximum total length of the lists of one call.
const MOST_PLACES: usize = 10_000;

/// The call whose arguments arrive in pieces, and signatures that are sent back.
#[derive(Debug, Default)]
pub(super) struct GoogleState {
    open: Option<(CallDelta, Value)>,
    /// Total length of the lists of the open call.
    places: usize,
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
        if calls::index(&candidate["index"]).is_some_and(|index| index > 0) {
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
        // The end of the connection is the only end marker.
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

/// A call is one part, or a part with its name, parts with pieces of its arguments, and an empty
/// part.
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
        (state.open, state.places) = (Some((begun, arguments)), 0);
    }
    match &mut state.open {
        Some((_, arguments)) => {
            for piece in call["partialArgs"].as_array().into_iter().flatten() {
                let is_added = add(arguments, piece, &mut state.places).is_some();
                deviations.note_if(!is_added, Deviation::CallShape);
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

/// A step of a path into arguments.
#[derive(Debug, PartialEq)]
enum Step<'p> {
    Key(&'p str),
    Place(usize),
}

/// The steps of `$.legs[0].from` or `$['legs'][0]`. `None`: it is not a path.
fn steps(path: &str) -> Option<Vec<Step<'_>>> {
    let (mut steps, mut rest) = (Vec::new(), path.strip_prefix('$')?);
    while !rest.is_empty() {
        if steps.len() == MOST_STEPS {
            return None;
        }
        if let Some(inner) = rest.strip_prefix('[') {
            let quote = inner.chars().next().filter(|char| matches!(char, '\'' | '"'));
            let (step, after) = match quote {
                Some(quote) => {
                    let (key, after) = inner[1..].split_once(quote)?;
                    (Step::Key(key), after.strip_prefix(']')?)
                }
                None => {
                    let (place, after) = inner.split_once(']')?;
                    (Step::Place(place.trim().parse().ok()?), after)
                }
            };
            steps.push(step);
            rest = after;
        } else {
            let inner = rest.strip_prefix('.').unwrap_or(rest);
            let end = inner.find(['.', '[']).unwrap_or(inner.len());
            steps.push(Step::Key(&inner[..end]));
            rest = &inner[end..];
        }
    }
    Some(steps)
}

/// Puts a piece of the arguments at its path. `None`: impossible. `places`: total length of the
/// call's lists.
fn add(arguments: &mut Value, piece: &Value, places: &mut usize) -> Option<()> {
    let mut place = arguments;
    for step in steps(piece["jsonPath"].as_str()?)? {
        place = match step {
            Step::Place(at) => {
                let known = place.as_array().map_or(0, Vec::len);
                let length = known.max(at.checked_add(1)?);
                if *places + (length - known) > MOST_PLACES {
                    return None;
                }
                *places += length - known;
                if !place.is_array() {
                    *place = json!([]);
                }
                let list = place.as_array_mut()?;
                list.resize(length, Value::Null);
                list.get_mut(at)?
            }
            Step::Key(key) => {
                if !place.is_object() {
                    *place = Value::Object(Map::new());
                }
                place.as_object_mut()?.entry(key).or_insert(Value::Null)
            }
        };
    }
    if let Some(text) = piece["stringValue"].as_str() {
        match place {
            Value::String(known) => known.push_str(text),
            place => *place = json!(text),
        }
        return Some(());
    }
    let value = ["numberValue", "boolValue", "nullValue"].iter().find_map(|key| piece.get(*key))?;
    *place = if value == "NULL_VALUE" { Value::Null } else { value.clone() };
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_text_are_joined_in_place() {
        let (mut arguments, mut capacities) = (json!({"a": 1}), std::collections::BTreeSet::new());
        for _ in 0..10_000 {
            add(&mut arguments, &json!({"jsonPath": "$.a", "stringValue": "piece"}), &mut 0).unwrap();
            let Value::String(text) = &arguments["a"] else { panic!("{arguments}") };
            capacities.insert(text.capacity());
        }
        assert_eq!(arguments["a"].as_str(), Some(&*"piece".repeat(10_000)));
        assert!(capacities.len() < 50, "copied {} times", capacities.len());
    }

    #[test]
    fn pieces_of_arguments_go_where_their_path_says() {
        let put = |path: &str, arguments: &mut Value, places: &mut usize| {
            add(arguments, &json!({"jsonPath": path, "numberValue": 1}), places)
        };
        for (path, expected) in [
            ("$.a", json!({"a": 1})),
            ("$.a[1].b", json!({"a": [null, {"b": 1}]})),
            ("$.a.1", json!({"a": {"1": 1}})),
            ("$['a.b'][0]", json!({"a.b": [1]})),
            ("$[\"a]\"].0.b", json!({"a]": {"0": {"b": 1}}})),
        ] {
            let (mut arguments, mut places) = (json!({}), 0);
            assert_eq!(put(path, &mut arguments, &mut places), Some(()), "{path}");
            assert_eq!(arguments, expected, "{path}");
        }
        for path in
            ["a", "$['a", "$[a]", "$[-1]", "$['a'b", "$.a[99999999999]", &format!("${}", ".a".repeat(40))]
        {
            assert_eq!(put(path, &mut json!({}), &mut 0), None, "{path}");
        }
        // The bound applies to all lists together.
        let (mut arguments, mut places) = (json!({}), 0);
        let added =
            (0..10_000).filter(|n| put(&format!("$.a{n}[9999]"), &mut arguments, &mut places).is_some());
        assert_eq!((added.count(), places), (1, MOST_PLACES));
        assert_eq!(
            put("$.a0[9998]", &mut arguments, &mut places),
            Some(()),
            "there is room in what there is"
        );
    }
}
