//! Converts a request to OpenAI's Responses. Nothing is stored there: the model's reasoning arrives
//! encrypted and is sent back.

use serde_json::{Map, Value, json};

use super::request::{NATIVE, copy, functions_of, instructions_of, limit_of, list_of, name_of, text_of};

pub(super) fn body(chat: &Value) -> Value {
    let (system, rest) = instructions_of(chat);
    let mut body = Map::new();
    for (key, name) in [
        ("model", "model"),
        ("temperature", "temperature"),
        ("top_p", "top_p"),
        ("parallel_tool_calls", "parallel_tool_calls"),
        ("user", "user"),
        ("safety_identifier", "safety_identifier"),
        ("prompt_cache_key", "prompt_cache_key"),
        ("prompt_cache_retention", "prompt_cache_retention"),
    ] {
        copy(chat, key, &mut body, name);
    }
    body.insert("stream".to_owned(), json!(true));
    body.insert("store".to_owned(), json!(false));
    body.insert("include".to_owned(), json!(["reasoning.encrypted_content"]));
    if !system.is_empty() {
        body.insert("instructions".to_owned(), json!(system.join("\n\n")));
    }
    body.insert("input".to_owned(), json!(rest.iter().copied().flat_map(items).collect::<Vec<_>>()));
    if let Some(limit) = limit_of(chat) {
        body.insert("max_output_tokens".to_owned(), json!(limit));
    }
    if let Some(effort) = chat["reasoning_effort"].as_str() {
        body.insert("reasoning".to_owned(), json!({"effort": effort, "summary": "auto"}));
    }
    let mut text = Map::new();
    copy(chat, "verbosity", &mut text, "verbosity");
    if let Some(format) = format(&chat["response_format"]) {
        text.insert("format".to_owned(), format);
    }
    if !text.is_empty() {
        body.insert("text".to_owned(), Value::Object(text));
    }
    let tools: Vec<Value> = functions_of(chat).map(tool).collect();
    if !tools.is_empty() {
        body.insert("tools".to_owned(), json!(tools));
        match &chat["tool_choice"] {
            Value::Null => {}
            choice @ Value::Object(_) => {
                body.insert("tool_choice".to_owned(), json!({"type": "function", "name": name_of(choice)}));
            }
            choice => drop(body.insert("tool_choice".to_owned(), choice.clone())),
        }
    }
    Value::Object(body)
}

/// In this interface the fields are beside the type and not in a nested object.
fn format(format: &Value) -> Option<Value> {
    let kind = format["type"].as_str()?;
    let mut flat = format["json_schema"].as_object().cloned().unwrap_or_default();
    flat.insert("type".to_owned(), json!(kind));
    Some(Value::Object(flat))
}

fn tool(function: &Value) -> Value {
    json!({
        "type": "function", "name": function["name"], "description": text_of(function, "description"),
        "parameters": function["parameters"], "strict": false,
    })
}

fn items(message: &Value) -> Vec<Value> {
    let content = text_of(message, "content");
    match text_of(message, "role") {
        "tool" => {
            vec![
                json!({"type": "function_call_output", "call_id": text_of(message, "tool_call_id"), "output": content}),
            ]
        }
        "assistant" => {
            let reasoning = list_of(message, NATIVE).iter().cloned();
            let text = (!content.is_empty()).then(|| json!({"role": "assistant", "content": content}));
            let calls = list_of(message, "tool_calls").iter().map(|call| {
                let arguments = call.pointer("/function/arguments").cloned().unwrap_or_default();
                json!({"type": "function_call", "call_id": text_of(call, "id"), "name": name_of(call), "arguments": arguments})
            });
            reasoning.chain(text).chain(calls).collect()
        }
        role => vec![json!({"role": role, "content": content})],
    }
}
