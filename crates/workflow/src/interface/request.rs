//! Parts of a chat completions request from which the requests of other interfaces are built.

use serde_json::{Map, Value, json};

/// Key of the provider's own data in an answer. It never leaves this process.
pub(crate) const NATIVE: &str = "native";

pub(super) fn text_of<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

pub(super) fn list_of<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The arguments of a call, as an object.
pub(super) fn arguments_of(call: &Value) -> Value {
    let text = call.pointer("/function/arguments").and_then(Value::as_str).unwrap_or_default();
    serde_json::from_str(text).ok().filter(Value::is_object).unwrap_or_else(|| json!({}))
}

pub(super) fn name_of(call: &Value) -> &str {
    call.pointer("/function/name").and_then(Value::as_str).unwrap_or_default()
}

/// Copies a field, if it is present, under another name.
pub(super) fn copy(from: &Value, key: &str, to: &mut Map<String, Value>, name: &str) {
    if let Some(value) = from.get(key).filter(|value| !value.is_null()) {
        to.insert(name.to_owned(), value.clone());
    }
}

/// Maximum number of tokens that the model may write.
pub(super) fn limit_of(chat: &Value) -> Option<u64> {
    ["max_completion_tokens", "max_tokens"].iter().find_map(|key| chat[*key].as_u64())
}

/// Splits the messages into the leading instructions and the rest. A later system message keeps its
/// place, because it does not apply to the messages before it.
pub(super) fn instructions_of(chat: &Value) -> (Vec<&str>, Vec<&Value>) {
    let messages = list_of(chat, "messages");
    let leading = messages.iter().take_while(|message| message["role"] == "system").count();
    let (system, rest) = messages.split_at(leading);
    (system.iter().map(|message| text_of(message, "content")).collect(), rest.iter().collect())
}

/// The function definitions of the tools.
pub(super) fn functions_of(chat: &Value) -> impl Iterator<Item = &Value> {
    list_of(chat, "tools").iter().filter_map(|tool| tool.get("function"))
}
