//! What one event of OpenAI's Responses says.

use std::collections::BTreeMap;

use serde_json::Value;

use super::calls::CallDelta;
use super::completions::{Said, usage};
use super::content::{ContentPiece, push_reasoning, push_text};
use super::deviations::{Deviation, Deviations};
use super::finish::Finish;

/// Items of one response.
const MOST_ITEMS: usize = 1_024;

/// Tools that the provider calls by itself.
const OWN_TOOLS: [&str; 6] = [
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "mcp_call",
    "mcp_list_tools",
    "tool_search_call",
];

/// What was said of each item: some gateways leave out pieces, and give the whole text at the end of the item. Ids are no help, because they
/// may change with each event.
#[derive(Debug, Default)]
pub(super) struct ResponsesState {
    said: BTreeMap<u64, ItemSaid>,
    reasoning: Vec<Value>,
    has_calls: bool,
}

#[derive(Debug, Default)]
struct ItemSaid {
    text: String,
    reasoning: String,
    has_arguments: bool,
    is_call: bool,
}

impl ResponsesState {
    /// Items of reasoning, which go back with what the provider encrypted.
    pub(super) fn items(self) -> Vec<Value> {
        self.reasoning
    }

    fn item(&mut self, index: u64) -> &mut ItemSaid {
        let index = if self.said.len() < MOST_ITEMS { index } else { u64::MAX };
        self.said.entry(index).or_default()
    }
}

pub(super) fn read(value: &Value, state: &mut ResponsesState, deviations: &mut Deviations) -> Said {
    let mut said = Said { usage: usage(value), ..Said::default() };
    let index = value["output_index"].as_f64().unwrap_or(0.0) as u64;
    let delta = || value["delta"].as_str().unwrap_or_default().to_owned();
    match value["type"].as_str().unwrap_or_default() {
        "response.output_text.delta" | "response.refusal.delta" => {
            state.item(index).text.push_str(&delta());
            push_text(delta(), &mut said.pieces);
        }
        "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
            state.item(index).reasoning.push_str(&delta());
            push_reasoning(delta(), false, &mut said.pieces);
        }
        "response.function_call_arguments.delta" => {
            state.item(index).has_arguments = true;
            let call = CallDelta { index: Some(index), arguments: delta(), ..CallDelta::default() };
            said.pieces.push(ContentPiece::Calls(vec![call]));
        }
        "response.output_item.added" => item(&value["item"], index, false, state, &mut said, deviations),
        "response.output_item.done" => item(&value["item"], index, true, state, &mut said, deviations),
        "response.completed"
        | "response.incomplete"
        | "response.failed"
        | "response.cancelled"
        | "response.done" => {
            response(&value["response"], state, &mut said, deviations);
            said.is_last = true;
        }
        // A whole answer.
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
    // After a stream it repeats what was said, under other indexes.
    let output = response["output"].as_array().filter(|_| state.said.is_empty());
    for (index, one) in (0..).zip(output.into_iter().flatten()) {
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

/// An item that begins or has ended: what of it was not said before is said now.
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
    match item["type"].as_str().unwrap_or_default() {
        "message" if is_done => {
            let known = state.item(index);
            let more = rest(texts("content"), &mut known.text, deviations);
            push_text(more, &mut said.pieces);
        }
        "reasoning" if is_done => {
            let whole = if texts("content").is_empty() { texts("summary") } else { texts("content") };
            let known = state.item(index);
            // Of two forms of the same reasoning the first one is shown.
            let more = if known.reasoning.is_empty() {
                rest(whole, &mut known.reasoning, deviations)
            } else {
                String::new()
            };
            push_reasoning(more, false, &mut said.pieces);
            let is_kept = item["encrypted_content"].is_string()
                && !state.reasoning.iter().any(|kept| kept["id"] == item["id"]);
            if is_kept {
                state.reasoning.push(item.clone());
            }
        }
        "function_call" => {
            state.has_calls = true;
            let known = state.item(index);
            let is_new = !std::mem::replace(&mut known.is_call, true);
            let arguments = if known.has_arguments { String::new() } else { text("arguments") };
            known.has_arguments |= !arguments.is_empty();
            if is_new || !arguments.is_empty() {
                let name = if is_new { text("name") } else { String::new() };
                let id = if is_new { text("call_id") } else { String::new() };
                let call = CallDelta { index: Some(index), id, name, arguments, signature: None };
                said.pieces.push(ContentPiece::Calls(vec![call]));
            }
        }
        // Items that begin, and tools that the provider calls by itself.
        "message" | "reasoning" => {}
        kind if OWN_TOOLS.contains(&kind) || !is_done => {}
        _ => deviations.note(Deviation::ContentPart),
    }
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
