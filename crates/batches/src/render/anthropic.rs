//! The format of Anthropic's messages.
//!
//! The rules are derived from its refusals. Instructions are separate from the messages. Roles
//! alternate, and the first and the last message are the user's. The results of a message's calls
//! are at the start of the next user message, each once. Call ids match `^[a-zA-Z0-9_-]+$` (up to
//! 64 characters are safe) and are unique over all messages. `input` is an object. Text blocks are
//! not blank.
//!
//! Thinking is not included: it must be returned signed, byte for byte, from the model that
//! produced it, or not at all.

use model::Role;
use serde_json::{Map, Value, json};

use super::Rendered;
use super::view::{Rules, SaidCall, ViewMessage, view};
use crate::Context;

/// The messages of a context. The instructions are separate, and the summary is the first block of
/// the first message.
pub fn anthropic(context: &Context) -> Rendered {
    let view = view(context, &Rules::ANTHROPIC);
    let system = super::instructions(context).map(|instructions| json!([text(instructions)]));
    // The first message must be the user's.
    let summary = super::summary(context).map(|summary| (Role::User, vec![text(&summary)]));
    let mut messages: Vec<(Role, Vec<Value>)> = summary.into_iter().collect();
    for said in &view.messages {
        // All messages except the assistant's are user messages here: results, and instructions
        // within the thread.
        let role = if said.role == Role::Assistant { Role::Assistant } else { Role::User };
        match messages.last_mut().filter(|(last, _)| *last == role) {
            Some((_, blocks)) => blocks.extend(blocks_of(said)),
            None => messages.push((role, blocks_of(said))),
        }
    }
    let message = |(role, blocks): (Role, Vec<Value>)| json!({"role": role.name(), "content": blocks});
    Rendered { system, messages: messages.into_iter().map(message).collect(), repairs: view.repairs }
}

fn blocks_of(said: &ViewMessage<'_>) -> Vec<Value> {
    if let Some(id) = &said.answers {
        return vec![json!({"type": "tool_result", "tool_use_id": id, "content": said.text})];
    }
    let words = (!said.text.is_empty()).then(|| text(&said.text));
    words.into_iter().chain(said.calls.iter().map(call)).collect()
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn call(call: &SaidCall) -> Value {
    let input: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| Value::Object(Map::new()));
    json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input})
}
