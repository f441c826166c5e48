//! Tool calls put together from the deltas of a stream.

use std::collections::HashSet;

use serde_json::Value;

use crate::engine_event::{CallName, Failure};

/// Names and ids travel with every chunk of a call.
const LONGEST_NAME: usize = 128;

/// A call that the model has made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ModelToolCall {
    pub(super) name: CallName,
    /// A JSON text, as the model wrote it; `{}` when it wrote none.
    pub(super) arguments: String,
}

/// A piece of a call, as a stream brings it. Endpoints differ in what they leave out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct CallDelta {
    pub(super) index: Option<u64>,
    pub(super) id: String,
    pub(super) name: String,
    pub(super) arguments: String,
}

impl CallDelta {
    pub(super) fn of(value: &Value) -> Self {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        let arguments = match value.pointer("/function/arguments") {
            Some(Value::String(text)) => text.clone(),
            // Not as it should be, but what is meant is clear.
            Some(object @ Value::Object(_)) => object.to_string(),
            _ => String::new(),
        };
        Self {
            index: value.get("index").and_then(Value::as_u64),
            id: text(value.get("id")),
            name: text(value.pointer("/function/name")),
            arguments,
        }
    }
}

/// The calls of one step while they grow.
pub(super) struct Calls<'a> {
    step: u32,
    /// Ids that the turn's context has already: the fleet distinguishes the calls of a turn by their ids.
    known_ids: &'a mut HashSet<String>,
    calls: Vec<PartialCall>,
}

#[derive(Default)]
struct PartialCall {
    index: Option<u64>,
    /// As the endpoint calls it.
    given_id: String,
    name: Option<CallName>,
    arguments: String,
    /// Bytes of the arguments that were passed on.
    said: usize,
}

impl<'a> Calls<'a> {
    pub(super) fn new(step: u32, known_ids: &'a mut HashSet<String>) -> Self {
        Self { step, known_ids, calls: Vec::new() }
    }

    /// Takes a piece; returns what clients may see of it.
    pub(super) fn add(&mut self, delta: CallDelta) -> Option<(CallName, String)> {
        let place = self.place(&delta);
        let call = &mut self.calls[place];
        call.arguments.push_str(&delta.arguments);
        if call.name.is_none() && !delta.name.is_empty() {
            let id = unique_id(self.step, place, &call.given_id, self.known_ids);
            let tool = delta.name.chars().take(LONGEST_NAME).collect::<String>();
            call.name = Some(CallName { id: id.into(), tool: tool.into() });
        } else if delta.arguments.is_empty() {
            return None;
        }
        let name = call.name.clone()?;
        let more = call.arguments[call.said..].to_owned();
        call.said = call.arguments.len();
        Some((name, more))
    }

    /// All calls, in the order in which the model began them.
    pub(super) fn finish(self) -> Result<Vec<ModelToolCall>, Failure> {
        let call = |call: PartialCall| {
            let name =
                call.name.ok_or_else(|| Failure::transient("bad_stream", "a tool call has no name"))?;
            let arguments = match call.arguments.trim() {
                "" => "{}".to_owned(),
                _ => call.arguments,
            };
            Ok(ModelToolCall { name, arguments })
        };
        self.calls.into_iter().map(call).collect()
    }

    /// The call that a piece belongs to. Pieces go by index; but some endpoints give each call index 0 and an id of its own,
    /// and some leave the index out.
    fn place(&mut self, delta: &CallDelta) -> usize {
        let same_id =
            |call: &PartialCall| delta.id.is_empty() || call.given_id.is_empty() || call.given_id == delta.id;
        let known = match delta.index {
            Some(index) => self.calls.iter().rposition(|call| call.index == Some(index)),
            None if delta.id.is_empty() => self.calls.len().checked_sub(1),
            None => self.calls.iter().rposition(|call| call.given_id == delta.id),
        };
        match known.filter(|place| same_id(&self.calls[*place])) {
            Some(place) => place,
            None => {
                let call =
                    PartialCall { index: delta.index, given_id: delta.id.clone(), ..PartialCall::default() };
                self.calls.push(call);
                self.calls.len() - 1
            }
        }
    }
}

/// The endpoint's id when it is the only one of its kind in the turn, else one of ours.
fn unique_id(step: u32, place: usize, given: &str, known: &mut HashSet<String>) -> String {
    let own = format!("call_{step}_{place}");
    let others = (0..).map(|n| format!("{own}_{n}"));
    let is_fit = |id: &&str| !id.is_empty() && id.len() <= LONGEST_NAME && !id.contains(char::is_control);
    let given = Some(given).filter(is_fit).map(str::to_owned);
    let mut wanted = given.into_iter().chain([own.clone()]).chain(others);
    let id = wanted.find(|id| !known.contains(id)).unwrap_or(own);
    known.insert(id.clone());
    id
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Each delta as JSON; what was shown as `id/name+arguments`, and the calls.
    fn assembled(deltas: &[Value], known: &[&str]) -> (Vec<String>, Vec<String>) {
        let mut known = known.iter().map(ToString::to_string).collect();
        let mut calls = Calls::new(2, &mut known);
        let shown = deltas
            .iter()
            .filter_map(|delta| calls.add(CallDelta::of(delta)))
            .map(|(name, text)| format!("{}/{}+{text}", name.id, name.tool))
            .collect();
        let calls = calls.finish().unwrap();
        (shown, calls.iter().map(|c| format!("{}/{}{}", c.name.id, c.name.tool, c.arguments)).collect())
    }

    #[test]
    fn pieces_go_by_index_even_when_calls_are_interleaved() {
        let (shown, calls) = assembled(
            &[
                json!({"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}),
                json!({"index": 0, "function": {"arguments": "{\"x\""}}),
                json!({"index": 1, "id": "b", "function": {"name": "g", "arguments": "{"}}),
                json!({"index": 0, "function": {"arguments": ":1}"}}),
                json!({"index": 1, "function": {"arguments": "}"}}),
                json!({"index": 1, "function": {"arguments": null}}),
            ],
            &[],
        );
        assert_eq!(shown, ["a/f+", "a/f+{\"x\"", "b/g+{", "a/f+:1}", "b/g+}"]);
        assert_eq!(calls, ["a/f{\"x\":1}", "b/g{}"]);
    }

    #[test]
    fn endpoints_that_leave_things_out_are_understood() {
        let whole = |id: &str| json!({"index": 0, "id": id, "function": {"name": "f", "arguments": "{}"}});
        assert_eq!(assembled(&[whole("a"), whole("b")], &[]).1, ["a/f{}", "b/f{}"], "each has index 0");
        let no_index = [
            json!({"id": "a", "function": {"name": "f", "arguments": "{"}}),
            json!({"function": {"arguments": "}"}}),
            json!({"id": "b", "function": {"name": "g"}}),
            json!({"id": "a", "function": {"arguments": " "}}),
        ];
        assert_eq!(assembled(&no_index, &[]).1, ["a/f{} ", "b/g{}"]);
        let no_id = [json!({"index": 0, "function": {"name": "f", "arguments": {"x": 1}}})];
        assert_eq!(assembled(&no_id, &[]).1, ["call_2_0/f{\"x\":1}"]);
        let repeated_name = [
            json!({"index": 0, "id": "a", "function": {"name": "f", "arguments": "{"}}),
            json!({"index": 0, "id": "a", "function": {"name": "f", "arguments": "}"}}),
        ];
        assert_eq!(assembled(&repeated_name, &[]).1, ["a/f{}"]);
        let late_name = [
            json!({"index": 0, "id": "a", "function": {"arguments": "{"}}),
            json!({"index": 0, "function": {"name": "f"}}),
        ];
        assert_eq!(assembled(&late_name, &[]).0, ["a/f+{"]);
    }

    #[test]
    fn an_id_that_the_turn_has_already_is_replaced() {
        let call = [json!({"index": 0, "id": "call_0", "function": {"name": "f", "arguments": "{}"}})];
        assert_eq!(assembled(&call, &["call_0"]).1, ["call_2_0/f{}"]);
        assert_eq!(assembled(&call, &["call_0", "call_2_0"]).1, ["call_2_0_0/f{}"]);
        for unfit in ["x".repeat(129), "a\0b".to_owned()] {
            let call = [json!({"index": 0, "id": unfit, "function": {"name": "f", "arguments": "{}"}})];
            assert_eq!(assembled(&call, &[]).1, ["call_2_0/f{}"]);
        }
    }

    #[test]
    fn a_call_without_a_name_is_no_call() {
        let mut known = HashSet::new();
        let mut calls = Calls::new(0, &mut known);
        assert_eq!(calls.add(CallDelta::of(&json!({"index": 0, "function": {"arguments": "{}"}}))), None);
        assert_eq!(calls.finish().unwrap_err().code, "bad_stream");
    }
}
