//! Converts a request to Google's `generateContent`. Google caches common prefixes by itself.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::request::{
    NATIVE, arguments_of, copy, functions_of, instructions_of, limit_of, list_of, name_of, text_of,
};

pub(super) fn body(chat: &Value) -> Value {
    let (system, rest) = instructions_of(chat);
    let mut body = Map::new();
    body.insert("contents".to_owned(), json!(contents(&rest)));
    if !system.is_empty() {
        let parts: Vec<Value> = system.iter().map(|text| json!({ "text": text })).collect();
        body.insert("systemInstruction".to_owned(), json!({ "parts": parts }));
    }
    let declarations: Vec<Value> = functions_of(chat).map(declaration).collect();
    if !declarations.is_empty() {
        body.insert("tools".to_owned(), json!([{ "functionDeclarations": declarations }]));
        if let Some(config) = choice(chat) {
            body.insert("toolConfig".to_owned(), json!({ "functionCallingConfig": config }));
        }
    }
    body.insert("generationConfig".to_owned(), Value::Object(generation(chat)));
    Value::Object(body)
}

fn generation(chat: &Value) -> Map<String, Value> {
    let mut config = Map::new();
    for (key, name) in [
        ("temperature", "temperature"),
        ("top_p", "topP"),
        ("seed", "seed"),
        ("presence_penalty", "presencePenalty"),
        ("frequency_penalty", "frequencyPenalty"),
    ] {
        copy(chat, key, &mut config, name);
    }
    if let Some(limit) = limit_of(chat) {
        config.insert("maxOutputTokens".to_owned(), json!(limit));
    }
    match &chat["stop"] {
        Value::Null => {}
        Value::String(stop) => drop(config.insert("stopSequences".to_owned(), json!([stop]))),
        stop => drop(config.insert("stopSequences".to_owned(), stop.clone())),
    }
    let format = &chat["response_format"];
    if matches!(text_of(format, "type"), "json_object" | "json_schema") {
        config.insert("responseMimeType".to_owned(), json!("application/json"));
    }
    if let Some(schema) = format.pointer("/json_schema/schema") {
        config.insert("responseJsonSchema".to_owned(), schema.clone());
    }
    let effort = chat["reasoning_effort"].as_str();
    if let Some(thinking) = effort.and_then(|effort| thinking(text_of(chat, "model"), effort)) {
        config.insert("thinkingConfig".to_owned(), thinking);
    }
    config
}

/// Models before Gemini 3 take a budget, later ones a level.
fn thinking(model: &str, effort: &str) -> Option<Value> {
    if effort == "none" {
        return no_thinking(model);
    }
    let is_little = matches!(effort, "minimal" | "low");
    if model.contains("gemini-2") {
        let budget = if is_little {
            1_024
        } else if effort == "medium" {
            8_192
        } else {
            16_384
        };
        return Some(json!({"includeThoughts": true, "thinkingBudget": budget}));
    }
    Some(json!({"includeThoughts": true, "thinkingLevel": if is_little { "low" } else { "high" }}))
}

/// Models that always think get the lowest setting, and their thoughts are not sent.
fn no_thinking(model: &str) -> Option<Value> {
    if model.contains("gemini-2.5") {
        return Some(json!({"thinkingBudget": if model.contains("pro") { 128 } else { 0 }}));
    }
    model.contains("gemini-3").then(|| json!({"thinkingLevel": "low"}))
}

fn declaration(function: &Value) -> Value {
    json!({
        "name": function["name"], "description": text_of(function, "description"),
        "parametersJsonSchema": function["parameters"],
    })
}

fn choice(chat: &Value) -> Option<Value> {
    match &chat["tool_choice"] {
        Value::String(text) if text == "required" => Some(json!({"mode": "ANY"})),
        Value::String(text) if text == "none" => Some(json!({"mode": "NONE"})),
        choice @ Value::Object(_) => Some(json!({"mode": "ANY", "allowedFunctionNames": [name_of(choice)]})),
        _ => None,
    }
}

/// Results name their function, and the results of one answer form one message.
fn contents(rest: &[&Value]) -> Vec<Value> {
    let mut contents: Vec<Value> = Vec::new();
    let mut names: HashMap<&str, &str> = HashMap::new();
    for message in rest {
        for call in list_of(message, "tool_calls") {
            names.insert(text_of(call, "id"), name_of(call));
        }
        let (role, parts) = match text_of(message, "role") {
            "assistant" => ("model", answer(message)),
            "tool" => {
                let name = names.get(text_of(message, "tool_call_id")).copied().unwrap_or_default();
                let response = json!({"result": text_of(message, "content")});
                ("user", vec![json!({"functionResponse": {"name": name, "response": response}})])
            }
            _ => ("user", vec![json!({"text": text_of(message, "content")})]),
        };
        match contents.last_mut().filter(|last| last["role"] == role) {
            Some(last) => {
                if let Some(known) = last["parts"].as_array_mut() {
                    known.extend(parts);
                }
            }
            None if parts.is_empty() => {}
            None => contents.push(json!({"role": role, "parts": parts})),
        }
    }
    contents
}

fn answer(message: &Value) -> Vec<Value> {
    let text = Some(text_of(message, "content")).filter(|text| !text.is_empty());
    let text = text.map(|text| json!({ "text": text }));
    let calls = list_of(message, "tool_calls").iter().map(|call| {
        let mut part = json!({"functionCall": {"name": name_of(call), "args": arguments_of(call)}});
        if let Some(signature) = call[NATIVE].as_str() {
            part["thoughtSignature"] = json!(signature);
        }
        part
    });
    let signed = list_of(message, NATIVE).iter().cloned();
    text.into_iter().chain(signed).chain(calls).collect()
}
