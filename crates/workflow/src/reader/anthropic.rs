//! Reads events of Anthropic's Messages.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::calls::{self, CallDelta};
use super::completions::{Said, usage};
use super::content::{ContentPiece, push_reasoning, push_text};
use super::deviations::{Deviation, Deviations};
use super::finish::Finish;
use super::units::{clean, cleaned};

/// Thinking that goes back to the provider with its signature, and the open blocks.
#[derive(Debug, Default)]
pub(super) struct AnthropicState {
    thinking: Vec<(u64, Thinking)>,
    /// Blocks that are calls of our tools. Tools that the provider runs have input as well.
    calls: BTreeSet<u64>,
    /// Index of the last block.
    last: Option<u64>,
}

#[derive(Debug)]
enum Thinking {
    Signed { thinking: String, signature: String },
    Redacted(Value),
}

impl AnthropicState {
    /// The blocks that are sent back before the text and the calls.
    pub(super) fn blocks(self) -> Vec<Value> {
        let block = |thinking: Thinking| match thinking {
            // The provider refuses a block without a signature.
            Thinking::Signed { signature, .. } if signature.is_empty() => None,
            Thinking::Signed { thinking, signature } => Some(
                json!({"type": "thinking", "thinking": clean(&thinking), "signature": clean(&signature)}),
            ),
            Thinking::Redacted(block) => Some(cleaned(block)),
        };
        self.thinking.into_iter().filter_map(|(_, thinking)| block(thinking)).collect()
    }

    fn append(&mut self, index: u64, more_thinking: &str, more_signature: &str) {
        let of_index = self.thinking.iter_mut().rfind(|(of, _)| *of == index);
        if let Some((_, Thinking::Signed { thinking, signature })) = of_index {
            thinking.push_str(more_thinking);
            signature.push_str(more_signature);
        }
    }
}

pub(super) fn read(value: &Value, state: &mut AnthropicState, deviations: &mut Deviations) -> Said {
    let mut said = Said { usage: usage(value), ..Said::default() };
    let index = value.get("index").and_then(calls::index);
    match value["type"].as_str().unwrap_or_default() {
        "message_start" => message(&value["message"], state, &mut said, deviations),
        // A complete answer that was not streamed.
        "message" => {
            message(value, state, &mut said, deviations);
            said.is_whole = true;
        }
        "content_block_start" => {
            // An event without an index begins the next block.
            let index = index.unwrap_or_else(|| state.last.map_or(0, |last| last + 1));
            block(&value["content_block"], index, state, &mut said.pieces, deviations);
        }
        "content_block_delta" => {
            delta(&value["delta"], index.or(state.last).unwrap_or(0), state, &mut said.pieces)
        }
        "message_delta" => finish(&value["delta"], &mut said, deviations),
        "message_stop" => said.is_last = true,
        // `ping`, `content_block_stop`, and future types.
        _ => {}
    }
    said
}

fn message(message: &Value, state: &mut AnthropicState, said: &mut Said, deviations: &mut Deviations) {
    said.model = message["model"].as_str().map(str::to_owned);
    for (index, one) in (0..).zip(message["content"].as_array().into_iter().flatten()) {
        block(one, index, state, &mut said.pieces, deviations);
    }
    finish(message, said, deviations);
}

fn finish(delta: &Value, said: &mut Said, deviations: &mut Deviations) {
    match Finish::read(&delta["stop_reason"]) {
        Ok(finish) => said.finish = finish,
        Err(_) => {
            deviations.note(Deviation::FinishReason);
            said.finish = Some(Finish::Stop);
        }
    }
}

fn block(
    block: &Value,
    index: u64,
    state: &mut AnthropicState,
    pieces: &mut Vec<ContentPiece>,
    deviations: &mut Deviations,
) {
    let text = |key: &str| block[key].as_str().unwrap_or_default().to_owned();
    state.last = Some(index);
    // A repeated index is another block.
    state.calls.remove(&index);
    match block["type"].as_str().unwrap_or_default() {
        "text" => push_text(text("text"), pieces),
        "thinking" => {
            push_reasoning(text("thinking"), false, pieces);
            let kept = Thinking::Signed { thinking: text("thinking"), signature: text("signature") };
            state.thinking.push((index, kept));
        }
        "redacted_thinking" => state.thinking.push((index, Thinking::Redacted(block.clone()))),
        "tool_use" => {
            // An empty input is a placeholder for the pieces that follow.
            let input = block["input"].as_object().filter(|input| !input.is_empty());
            let arguments = input.map_or_else(String::new, |_| block["input"].to_string());
            state.calls.insert(index);
            let (id, name) = (text("id"), text("name"));
            let call = CallDelta { index: Some(index), id, name, arguments, ..CallDelta::default() };
            pieces.push(ContentPiece::Calls(vec![call]));
        }
        // Tools that the provider runs.
        "server_tool_use" | "mcp_tool_use" => {}
        kind if kind.ends_with("_tool_result") => {}
        _ => deviations.note(Deviation::ContentPart),
    }
}

fn delta(delta: &Value, index: u64, state: &mut AnthropicState, pieces: &mut Vec<ContentPiece>) {
    let text = |key: &str| delta[key].as_str().unwrap_or_default().to_owned();
    match delta["type"].as_str().unwrap_or_default() {
        "text_delta" => push_text(text("text"), pieces),
        "thinking_delta" => {
            state.append(index, &text("thinking"), "");
            push_reasoning(text("thinking"), false, pieces);
        }
        "signature_delta" => state.append(index, "", &text("signature")),
        "input_json_delta" if state.calls.contains(&index) && !text("partial_json").is_empty() => {
            let arguments = text("partial_json");
            pieces.push(ContentPiece::Calls(vec![CallDelta {
                index: Some(index),
                arguments,
                ..CallDelta::default()
            }]));
        }
        _ => {}
    }
}
