//! Messages in LangChain's format, as its `messages_to_dict` writes and `messages_from_dict` reads
//! them.
//!
//! Data without a field in LangChain goes into `additional_kwargs` under [`OWN_KEY`], where an
//! import finds it again.

use model::{Metadata, Role};
use serde_json::{Map, Value, json};

use super::message::{Draft, content_of};
use crate::Item;

/// The key in `additional_kwargs` for data without a field in LangChain.
pub(super) const OWN_KEY: &str = "antiphon";
/// Fields of LangChain's messages that an import keeps in the metadata.
const FIELDS: [&str; 6] = ["name", "response_metadata", "usage_metadata", "status", "artifact", "is_error"];
/// Keys that other readers expect in `additional_kwargs`.
const SHOWN: [&str; 3] = Metadata::RESERVED;

/// Converts a message. If results are stored with their calls, they follow as messages.
pub fn langchain(item: &Item) -> Vec<Value> {
    let kind = match item.role {
        Role::User => "human",
        Role::Assistant => "ai",
        Role::System => "system",
        Role::Tool => "tool",
    };
    let mut metadata = item.metadata.as_map().cloned().unwrap_or_default();
    let mut data = Map::new();
    data.insert("type".to_owned(), json!(kind));
    data.insert("id".to_owned(), json!(item.message_id.as_str()));
    data.insert("content".to_owned(), content(item, &mut metadata));
    for field in FIELDS {
        if let Some(value) = metadata.remove(field) {
            data.insert(field.to_owned(), value);
        }
    }
    if item.role == Role::Tool {
        data.insert("tool_call_id".to_owned(), json!(item.tool_call_id.as_deref().unwrap_or_default()));
        if data.remove("is_error") == Some(Value::Bool(true)) {
            data.insert("status".to_owned(), json!("error"));
        }
    }
    if item.role == Role::Assistant {
        let (calls, invalid) = calls(item);
        data.insert("tool_calls".to_owned(), Value::Array(calls));
        data.insert("invalid_tool_calls".to_owned(), Value::Array(invalid));
    }
    data.insert("additional_kwargs".to_owned(), Value::Object(additional(item, metadata)));
    let message = json!({"type": kind, "data": data});
    let results = item.calls().into_iter().filter_map(|call| {
        let result = call.result?;
        Some(json!({"type": "tool", "data": {
            "type": "tool", "content": result, "tool_call_id": call.id, "name": call.name, "additional_kwargs": {}
        }}))
    });
    std::iter::once(message).chain(results).collect()
}

/// The original parts if they still match the text, otherwise the text.
fn content(item: &Item, metadata: &mut Map<String, Value>) -> Value {
    let says_the_same = |parts: &&Value| {
        let draft =
            content_of(Some(parts)).ok().map(|content| Draft { parts: content.parts, ..Draft::default() });
        let read = draft.and_then(|draft| draft.into_messages(item.role, &mut Vec::new()).ok());
        read.is_some_and(|read| read.len() == 1 && read.iter().all(|message| message.content == item.content))
    };
    match metadata.get("content_parts").filter(says_the_same).is_some() {
        true => metadata.remove("content_parts").unwrap_or_default(),
        false => json!(item.content),
    }
}

/// The calls, and separately those whose arguments are not a JSON object.
fn calls(item: &Item) -> (Vec<Value>, Vec<Value>) {
    let (mut calls, mut invalid) = (Vec::new(), Vec::new());
    for call in item.calls() {
        let said = if call.arguments.trim().is_empty() { "{}" } else { call.arguments };
        match serde_json::from_str::<Map<String, Value>>(said) {
            Ok(args) => calls.push(json!({"name": call.name, "args": args, "id": call.id, "type": "tool_call"})),
            Err(error) => invalid.push(json!({
                "name": call.name, "args": call.arguments, "id": call.id, "error": error.to_string(), "type": "invalid_tool_call"
            })),
        }
    }
    (calls, invalid)
}

fn additional(item: &Item, mut metadata: Map<String, Value>) -> Map<String, Value> {
    let mut additional = match metadata.remove("additional_kwargs") {
        Some(Value::Object(map)) => map,
        Some(other) => Map::from_iter([("additional_kwargs".to_owned(), other)]),
        None => Map::new(),
    };
    let mut shown = Vec::new();
    for key in SHOWN {
        if let Some(value) = metadata.get(key).filter(|_| !additional.contains_key(key)) {
            additional.insert(key.to_owned(), value.clone());
            shown.push(key);
        }
    }
    // An import removes the keys that are copied only for other readers.
    let mut own = json!({"created_at": item.created_at.0, "metadata": metadata, "shown": shown});
    if let Some(count) = item.token_count {
        own["token_count"] = json!(count);
    }
    additional.insert(OWN_KEY.to_owned(), own);
    additional
}
