//! Converts a request to Anthropic's Messages.

use serde_json::{Map, Value, json};

use super::request::{
    NATIVE, arguments_of, copy, functions_of, instructions_of, limit_of, list_of, name_of, text_of,
};

/// The interface requires a limit. This default is within the limits of all its models.
const DEFAULT_LIMIT: u64 = 8_192;
/// The default with thinking: within the limits of all models that think.
const DEFAULT_LIMIT_WITH_THINKING: u64 = 32_000;
/// Minimum thinking budget in tokens that the interface accepts.
const LEAST_THINKING: u64 = 1_024;
/// Tokens of the limit that are left for the answer when the model thinks.
const LEFT_FOR_ANSWER: u64 = 1_024;

pub(super) fn body(chat: &Value) -> Value {
    let (system, rest) = instructions_of(chat);
    let beside =
        wanted_thinking(chat).map(|wanted| (DEFAULT_LIMIT + wanted).min(DEFAULT_LIMIT_WITH_THINKING));
    let limit = limit_of(chat).or(beside).unwrap_or(DEFAULT_LIMIT);
    let mut body = Map::new();
    copy(chat, "model", &mut body, "model");
    body.insert("stream".to_owned(), json!(true));
    let thinking = budget(chat, limit);
    if let Some(budget) = thinking {
        body.insert("thinking".to_owned(), json!({"type": "enabled", "budget_tokens": budget}));
    } else {
        // The interface accepts no other temperature while the model thinks.
        copy(chat, "temperature", &mut body, "temperature");
        copy(chat, "top_p", &mut body, "top_p");
    }
    body.insert("max_tokens".to_owned(), json!(limit));
    match &chat["stop"] {
        Value::Null => {}
        Value::String(stop) => drop(body.insert("stop_sequences".to_owned(), json!([stop]))),
        stop => drop(body.insert("stop_sequences".to_owned(), stop.clone())),
    }
    if let Some(user) = chat["user"].as_str() {
        body.insert("metadata".to_owned(), json!({"user_id": user}));
    }
    let mut system: Vec<Value> = system
        .iter()
        .filter(|text| !text.is_empty())
        .map(|text| json!({"type": "text", "text": text}))
        .collect();
    let mut tools: Vec<Value> = functions_of(chat).map(tool).collect();
    let mut messages = messages(&rest);
    // The parts that stay the same from call to call are cached: tools, instructions and the
    // messages so far.
    mark(tools.last_mut());
    mark(system.last_mut());
    mark(messages.last_mut().and_then(|message| message["content"].as_array_mut()?.last_mut()));
    if !system.is_empty() {
        body.insert("system".to_owned(), json!(system));
    }
    if !tools.is_empty() {
        body.insert("tools".to_owned(), json!(tools));
        // A model that thinks cannot be forced to call a tool.
        let is_forced = |choice: &Value| matches!(choice["type"].as_str(), Some("any" | "tool"));
        if let Some(choice) = choice(chat).filter(|choice| thinking.is_none() || !is_forced(choice)) {
            body.insert("tool_choice".to_owned(), choice);
        }
    }
    body.insert("messages".to_owned(), json!(messages));
    Value::Object(body)
}

fn mark(block: Option<&mut Value>) {
    // A thinking block cannot have a cache mark.
    if let Some(block) =
        block.filter(|block| !block["type"].as_str().is_some_and(|kind| kind.ends_with("thinking")))
    {
        block["cache_control"] = json!({"type": "ephemeral"});
    }
}

/// The thinking budget in tokens. `None`: the model does not think. The budget is part of the
/// limit, because a client's effort must not raise it.
fn budget(chat: &Value, limit: u64) -> Option<u64> {
    let wanted = wanted_thinking(chat)?;
    Some(wanted.min(limit.saturating_sub(LEFT_FOR_ANSWER))).filter(|budget| *budget >= LEAST_THINKING)
}

fn wanted_thinking(chat: &Value) -> Option<u64> {
    match chat["reasoning_effort"].as_str()? {
        "minimal" | "low" => Some(LEAST_THINKING),
        "medium" => Some(4_096),
        "high" => Some(16_384),
        "xhigh" | "max" => Some(32_768),
        _ => None,
    }
}

fn tool(function: &Value) -> Value {
    json!({
        "name": function["name"], "description": text_of(function, "description"), "input_schema": function["parameters"],
    })
}

fn choice(chat: &Value) -> Option<Value> {
    let mut choice = match &chat["tool_choice"] {
        Value::String(text) if text == "required" => json!({"type": "any"}),
        Value::String(text) if text == "none" => json!({"type": "none"}),
        Value::Object(_) => json!({"type": "tool", "name": name_of(&chat["tool_choice"])}),
        _ if chat["parallel_tool_calls"] == false => json!({"type": "auto"}),
        _ => return None,
    };
    if chat["parallel_tool_calls"] == false && choice["type"] != "none" {
        choice["disable_parallel_tool_use"] = json!(true);
    }
    Some(choice)
}

/// Alternates messages of the user and the model. Tool results belong to the user's messages.
fn messages(rest: &[&Value]) -> Vec<Value> {
    let mut messages: Vec<Value> = Vec::new();
    for message in rest {
        let (role, blocks) = match text_of(message, "role") {
            "assistant" => ("assistant", answer(message)),
            "tool" => ("user", vec![result(message)]),
            _ => ("user", text(text_of(message, "content")).into_iter().collect()),
        };
        match messages.last_mut().filter(|last| last["role"] == role) {
            Some(last) => {
                if let Some(content) = last["content"].as_array_mut() {
                    content.extend(blocks);
                }
            }
            None if blocks.is_empty() => {}
            None => messages.push(json!({"role": role, "content": blocks})),
        }
    }
    messages
}

/// `None` for an empty text, which the interface refuses.
fn text(text: &str) -> Option<Value> {
    (!text.trim().is_empty()).then(|| json!({"type": "text", "text": text}))
}

fn answer(message: &Value) -> Vec<Value> {
    let thinking = list_of(message, NATIVE).iter().cloned();
    let calls = list_of(message, "tool_calls").iter();
    let calls = calls.map(|call| {
        json!({"type": "tool_use", "id": id(text_of(call, "id")), "name": name_of(call), "input": arguments_of(call)})
    });
    thinking.chain(text(text_of(message, "content"))).chain(calls).collect()
}

fn result(message: &Value) -> Value {
    json!({
        "type": "tool_result", "tool_use_id": id(text_of(message, "tool_call_id")), "content": text_of(message, "content"),
    })
}

/// Replaces characters that this interface refuses in the call ids of other providers.
fn id(id: &str) -> String {
    let fits = |char: char| if char.is_ascii_alphanumeric() || "-_".contains(char) { char } else { '_' };
    id.chars().map(fits).collect()
}
