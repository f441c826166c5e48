//! What one event of Anthropic's Messages says.

use serde_json::{Value, json};

use super::calls::CallDelta;
use super::completions::{Said, usage};
use super::content::{ContentPiece, push_reasoning, push_text};
use super::deviations::{Deviation, Deviations};
use super::finish::Finish;

/// Thinking that the provider wants back with its signature, by the index of its block.
#[derive(Debug, Default)]
pub(super) struct AnthropicState {
    thinking: Vec<(u64, Value)>,
    /// The last block that is a call of ours: tools that the provider calls by itself have input as well.
    call: Option<u64>,
}

impl AnthropicState {
    /// The blocks that go back before the text and the calls.
    pub(super) fn blocks(self) -> Vec<Value> {
        // A block without a signature is refused.
        let is_signed = |block: &Value| block["type"] != "thinking" || block["signature"] != "";
        self.thinking.into_iter().map(|(_, block)| block).filter(is_signed).collect()
    }

    fn append(&mut self, index: u64, key: &str, more: &str) {
        if let Some((_, block)) = self.thinking.iter_mut().rfind(|(of, _)| *of == index) {
            let text = block[key].as_str().unwrap_or_default();
            block[key] = json!(format!("{text}{more}"));
        }
    }
}

pub(super) fn read(value: &Value, state: &mut AnthropicState, deviations: &mut Deviations) -> Said {
    let mut said = Said { usage: usage(value), ..Said::default() };
    let index = value["index"].as_f64().unwrap_or(0.0) as u64;
    match value["type"].as_str().unwrap_or_default() {
        "message_start" => message(&value["message"], state, &mut said, deviations),
        // A whole answer.
        "message" => {
            message(value, state, &mut said, deviations);
            said.is_whole = true;
        }
        "content_block_start" => block(&value["content_block"], index, state, &mut said.pieces, deviations),
        "content_block_delta" => delta(&value["delta"], index, state, &mut said.pieces),
        "message_delta" => finish(&value["delta"], &mut said, deviations),
        "message_stop" => said.is_last = true,
        // `ping`, `content_block_stop`, and what will be added.
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
    match block["type"].as_str().unwrap_or_default() {
        "text" => push_text(text("text"), pieces),
        "thinking" => {
            push_reasoning(text("thinking"), false, pieces);
            let kept =
                json!({"type": "thinking", "thinking": text("thinking"), "signature": text("signature")});
            state.thinking.push((index, kept));
        }
        "redacted_thinking" => state.thinking.push((index, block.clone())),
        "tool_use" => {
            // An empty input stands for the pieces that follow.
            let input = block["input"].as_object().filter(|input| !input.is_empty());
            let arguments = input.map_or_else(String::new, |_| block["input"].to_string());
            state.call = Some(index);
            let call = CallDelta {
                index: Some(index),
                id: text("id"),
                name: text("name"),
                arguments,
                signature: None,
            };
            pieces.push(ContentPiece::Calls(vec![call]));
        }
        // Tools that the provider calls by itself.
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
            state.append(index, "thinking", &text("thinking"));
            push_reasoning(text("thinking"), false, pieces);
        }
        "signature_delta" => state.append(index, "signature", &text("signature")),
        "input_json_delta" if state.call == Some(index) && !text("partial_json").is_empty() => {
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
