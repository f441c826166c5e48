//! The format of OpenAI's chat completions, which many other endpoints accept.
//!
//! Rules, derived from its refusals: each assistant message with `tool_calls` is followed by one
//! tool message for each call, and tool messages occur nowhere else. Call ids have at most 40
//! characters. `content` of an assistant message is a text; with calls it may be null. Compatible
//! endpoints refuse more: a second system message, blank texts, arguments that are not a JSON
//! object.

use model::Role;
use serde_json::{Value, json};

use super::Rendered;
use super::view::{Rules, SaidCall, ViewMessage, view};
use crate::Context;

/// The messages of a context: instructions first, the summary at the start of the first user
/// message.
pub fn openai(context: &Context) -> Rendered {
    let view = view(context, &Rules::OPENAI);
    let system = super::instructions(context).map(|text| json!({"role": "system", "content": text}));
    let mut messages: Vec<Value> = system.into_iter().chain(view.messages.iter().map(message)).collect();
    if let Some(summary) = super::summary(context)
        && let Some(first) = messages.iter_mut().find(|message| message["role"] == Role::User.name())
    {
        // The summary shares a message with the user's text, because some endpoints refuse two
        // consecutive messages of one role.
        let said = first["content"].as_str().unwrap_or_default();
        first["content"] = json!(format!("{summary}\n\n{said}"));
    }
    Rendered { system: None, messages, repairs: view.repairs }
}

fn message(said: &ViewMessage<'_>) -> Value {
    let (role, text) = (said.role.name(), &said.text);
    match (said.role, &said.answers) {
        (Role::Tool, id) => json!({"role": role, "tool_call_id": id, "content": text}),
        (Role::Assistant, _) if !said.calls.is_empty() => {
            let content = if text.is_empty() { Value::Null } else { json!(text) };
            let calls: Vec<Value> = said.calls.iter().map(call).collect();
            json!({"role": role, "content": content, "tool_calls": calls})
        }
        _ => json!({"role": role, "content": text}),
    }
}

fn call(call: &SaidCall) -> Value {
    let function = json!({"name": call.name, "arguments": call.arguments});
    json!({"id": call.id, "type": "function", "function": function})
}
