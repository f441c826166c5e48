//! The parts of a request of chat completions, of which the requests of other interfaces are made.

use serde_json::{Map, Value, json};

/// What an answer bears for its provider; a key that never leaves this process.
pub(crate) const NATIVE: &str = "native";

pub(super) fn text_of<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

pub(super) fn list_of<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The arguments of a call as an object.
pub(super) fn arguments_of(call: &Value) -> Value {
    let text = call.pointer("/function/arguments").and_then(Value::as_str).unwrap_or_default();
    serde_json::from_str(text).ok().filter(Value::is_object).unwrap_or_else(|| json!({}))
}

pub(super) fn name_of(call: &Value) -> &str {
    call.pointer("/function/name").and_then(Value::as_str).unwrap_or_default()
}

/// Copies a field that is there under another name.
pub(super) fn copy(from: &Value, key: &str, to: &mut Map<String, Value>, name: &str) {
    if let Some(value) = from.get(key).filter(|value| !value.is_null()) {
        to.insert(name.to_owned(), value.clone());
    }
}

/// The limit of tokens that the model may write.
pub(super) fn limit_of(chat: &Value) -> Option<u64> {
    ["max_completion_tokens", "max_tokens"].iter().find_map(|key| chat[*key].as_u64())
}

/// The instructions at the beginning, and the rest. A later message of the system keeps its place: what was said before it does not follow it.
pub(super) fn instructions_of(chat: &Value) -> (Vec<&str>, Vec<&Value>) {
    let messages = list_of(chat, "messages");
    let leading = messages.iter().take_while(|message| message["role"] == "system").count();
    let (system, rest) = messages.split_at(leading);
    (system.iter().map(|message| text_of(message, "content")).collect(), rest.iter().collect())
}

/// The names of functions of the tools.
pub(super) fn functions_of(chat: &Value) -> impl Iterator<Item = &Value> {
    list_of(chat, "tools").iter().filter_map(|tool| tool.get("function"))
}
