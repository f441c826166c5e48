//! Reads events of OpenAI's Responses.

use std::collections::BTreeMap;

use serde_json::Value;

use super::calls::{self, CallDelta};
use super::completions::{Said, usage};
use super::content::{ContentPiece, push_reasoning, push_text};
use super::deviations::{Deviation, Deviations};
use super::finish::Finish;

/// Maximum number of items in one response.
const MOST_ITEMS: usize = 1_024;

/// Tools that the provider runs.
const OWN_TOOLS: [&str; 6] = [
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "mcp_call",
    "mcp_list_tools",
    "tool_search_call",
];

/// The text of each item so far. Some gateways leave out pieces and send the whole text at the end
/// of the item. Ids are unreliable, because they may change with each event.
#[derive(Debug, Default)]
pub(super) struct ResponsesState {
    said: BTreeMap<u64, ItemSaid>,
    reasoning: Vec<Value>,
    has_calls: bool,
}

#[derive(Debug, Default)]
struct ItemSaid {
    kind: Option<Kind>,
    id: String,
    text: String,
    reasoning: String,
    has_arguments: bool,
    is_call: bool,
    /// The reasoning of the item is sent back.
    is_kept: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Message,
    Reasoning,
    Call,
}

impl Kind {
    fn of(item: &Value) -> Option<Self> {
        match item["type"].as_str()? {
            "message" => Some(Self::Message),
            "reasoning" => Some(Self::Reasoning),
            "function_call" => Some(Self::Call),
            _ => None,
        }
    }
}

impl ResponsesState {
    /// Items of reasoning, which are sent back with the provider's encrypted content.
    pub(super) fn items(self) -> Vec<Value> {
        self.reasoning
    }

    fn item(&mut self, index: u64, kind: Kind) -> &mut ItemSaid {
        let is_bound = self.said.len() < MOST_ITEMS || self.said.contains_key(&index);
        let item = self.said.entry(if is_bound { index } else { u64::MAX }).or_default();
        item.kind = Some(kind);
        item
    }

    /// The index for a new item.
    fn next(&self) -> u64 {
        self.said.keys().next_back().map_or(0, |last| last.saturating_add(1))
    }

    /// The item of an event: by its index, else by its id, else the last one of its kind.
    fn index_of(&self, event: &Value, kind: Option<Kind>, begins: bool) -> u64 {
        if let Some(index) = event.get("output_index").and_then(calls::index) {
            return index;
        }
        let id = event["item_id"].as_str().or(event["item"]["id"].as_str()).unwrap_or_default();
        let find = |is: &dyn Fn(&ItemSaid) -> bool| {
            self.said.iter().rev().find(|(_, item)| is(item)).map(|(index, _)| *index)
        };
        let by_id = find(&|item| !id.is_empty() && item.id == id);
        let by_kind = || if begins { None } else { find(&|item| item.kind == kind && kind.is_some()) };
        by_id.or_else(by_kind).unwrap_or_else(|| self.next())
    }
}

pub(super) fn read(value: &Value, state: &mut ResponsesState, deviations: &mut Deviations) -> Said {
    let mut said = Said { usage: usage(value), ..Said::default() };
    let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let item_of = |state: &mut ResponsesState, kind: Kind| state.index_of(value, Some(kind), false);
    match value["type"].as_str().unwrap_or_default() {
        "response.output_text.delta" | "response.refusal.delta" => {
            let index = item_of(state, Kind::Message);
            state.item(index, Kind::Message).text.push_str(&text("delta"));
            push_text(text("delta"), &mut said.pieces);
        }
        "response.output_text.done" | "response.refusal.done" => {
            let index = item_of(state, Kind::Message);
            let whole = text("text") + &text("refusal");
            let more = rest_of_part(&whole, &mut state.item(index, Kind::Message).text);
            push_text(more, &mut said.pieces);
        }
        "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
            let index = item_of(state, Kind::Reasoning);
            state.item(index, Kind::Reasoning).reasoning.push_str(&text("delta"));
            push_reasoning(text("delta"), false, &mut said.pieces);
        }
        "response.reasoning_summary_text.done" | "response.reasoning_text.done" => {
            let index = item_of(state, Kind::Reasoning);
            let more = rest_of_part(&text("text"), &mut state.item(index, Kind::Reasoning).reasoning);
            push_reasoning(more, false, &mut said.pieces);
        }
        "response.function_call_arguments.delta" => {
            let index = item_of(state, Kind::Call);
            state.item(index, Kind::Call).has_arguments |= !text("delta").is_empty();
            let call = CallDelta { index: Some(index), arguments: text("delta"), ..CallDelta::default() };
            said.pieces.push(ContentPiece::Calls(vec![call]));
        }
        "response.function_call_arguments.done" => {
            let index = item_of(state, Kind::Call);
            let arguments = text("arguments");
            let known = state.item(index, Kind::Call);
            if !arguments.is_empty() && !std::mem::replace(&mut known.has_arguments, true) {
                let call = CallDelta { index: Some(index), arguments, ..CallDelta::default() };
                said.pieces.push(ContentPiece::Calls(vec![call]));
            }
        }
        "response.output_item.added" => {
            let index = state.index_of(value, Kind::of(&value["item"]), true);
            item(&value["item"], index, false, state, &mut said, deviations);
        }
        "response.output_item.done" => {
            let index = state.index_of(value, Kind::of(&value["item"]), false);
            item(&value["item"], index, true, state, &mut said, deviations);
        }
        "response.completed"
        | "response.incomplete"
        | "response.failed"
        | "response.cancelled"
        | "response.done" => {
            response(&value["response"], state, &mut said, deviations);
            said.is_last = true;
        }
        // A complete answer that was not streamed.
        _ if value["object"] == "response" => {
            response(value, state, &mut said, deviations);
            said.is_whole = true;
        }
        _ => said.model = value["response"]["model"].as_str().map(str::to_owned),
    }
    said
}

fn response(response: &Value, state: &mut ResponsesState, said: &mut Said, deviations: &mut Deviations) {
    said.model = response["model"].as_str().map(str::to_owned);
    // After a stream the whole response repeats the text under other indexes. Items match by their
    // place among those of their kind.
    let known: Vec<(u64, Option<Kind>)> =
        state.said.iter().map(|(index, item)| (*index, item.kind)).collect();
    let mut left = known;
    for one in response["output"].as_array().into_iter().flatten() {
        let kind = Kind::of(one);
        let place = left.iter().position(|(_, of)| *of == kind && kind.is_some());
        let index = place.map_or_else(|| state.next(), |place| left.remove(place).0);
        item(one, index, true, state, said, deviations);
    }
    said.finish = match response["status"].as_str().unwrap_or("completed") {
        "incomplete" => {
            let reason = Finish::read(&response["incomplete_details"]["reason"]);
            Some(reason.ok().flatten().unwrap_or(Finish::Length))
        }
        "failed" | "cancelled" => Some(Finish::Failed),
        _ if state.has_calls => Some(Finish::ToolCalls),
        _ => Some(Finish::Stop),
    };
}

/// Reads an item that begins or has ended and adds only its new text.
fn item(
    item: &Value,
    index: u64,
    is_done: bool,
    state: &mut ResponsesState,
    said: &mut Said,
    deviations: &mut Deviations,
) {
    let text = |key: &str| item[key].as_str().unwrap_or_default().to_owned();
    let texts = |key: &str| {
        let parts = item[key].as_array().into_iter().flatten();
        parts.filter_map(|part| part["text"].as_str().or(part["refusal"].as_str())).collect::<String>()
    };
    if let Some(kind) = Kind::of(item) {
        let known = state.item(index, kind);
        if known.id.is_empty() {
            known.id = text("id");
        }
    }
    match item["type"].as_str().unwrap_or_default() {
        "message" if is_done => {
            let known = state.item(index, Kind::Message);
            let more = rest(texts("content"), &mut known.text, deviations);
            push_text(more, &mut said.pieces);
        }
        "reasoning" if is_done => {
            let whole = if texts("content").is_empty() { texts("summary") } else { texts("content") };
            let known = state.item(index, Kind::Reasoning);
            // If the same reasoning comes in two forms, the first one is shown.
            let more = if known.reasoning.is_empty() {
                rest(whole, &mut known.reasoning, deviations)
            } else {
                String::new()
            };
            push_reasoning(more, false, &mut said.pieces);
            if item["encrypted_content"].is_string() && !std::mem::replace(&mut known.is_kept, true) {
                state.reasoning.push(item.clone());
            }
        }
        "function_call" => {
            state.has_calls = true;
            let known = state.item(index, Kind::Call);
            let is_new = !std::mem::replace(&mut known.is_call, true);
            let arguments = if known.has_arguments { String::new() } else { text("arguments") };
            known.has_arguments |= !arguments.is_empty();
            if is_new || !arguments.is_empty() {
                let name = if is_new { text("name") } else { String::new() };
                let id = if is_new { text("call_id") } else { String::new() };
                let call = CallDelta { index: Some(index), id, name, arguments, ..CallDelta::default() };
                said.pieces.push(ContentPiece::Calls(vec![call]));
            }
        }
        // Items that begin, and tools that the provider runs.
        "message" | "reasoning" => {}
        kind if OWN_TOOLS.contains(&kind) || !is_done => {}
        _ => deviations.note(Deviation::ContentPart),
    }
}

/// The text that the end of a part adds to the parts of its item.
fn rest_of_part(part: &str, known: &mut String) -> String {
    let is_said = known.ends_with(part);
    let more = if is_said { "" } else { part.strip_prefix(known.as_str()).unwrap_or_default() };
    known.push_str(more);
    more.to_owned()
}

fn rest(whole: String, known: &mut String, deviations: &mut Deviations) -> String {
    match whole.strip_prefix(known.as_str()) {
        Some(rest) => {
            let rest = rest.to_owned();
            *known = whole;
            rest
        }
        None => {
            deviations.note(Deviation::Message);
            String::new()
        }
    }
}
