//! OpenAI's chat messages, including legacy function calls.

use model::Role;
use serde_json::{Map, Value, json};

use super::parts::{arguments, metadata, openai_calls, rest, text_of, time_of};
use super::{ForeignMessage, FormatError};

const READ: &[&str] = &[
    "id",
    "message_id",
    "role",
    "content",
    "tool_calls",
    "tool_call_id",
    "function_call",
    "metadata",
    "created_at",
    "createdAt",
    "created",
    "timestamp",
];

pub(super) fn message(message: &Value) -> Result<ForeignMessage, FormatError> {
    let map = message.as_object().ok_or(FormatError::NotAnObject)?;
    let said = map.get("role").and_then(Value::as_str);
    let role = match said {
        Some("user" | "human") => Role::User,
        Some("assistant" | "ai") => Role::Assistant,
        Some("system" | "developer") => Role::System,
        Some("tool" | "function") => Role::Tool,
        _ => return Err(FormatError::Role(map.get("role").unwrap_or(&Value::Null).to_string())),
    };
    let (content, parts) = text_of(map.get("content"))?;
    let text = |key: &str| map.get(key).and_then(Value::as_str).map(str::to_owned);
    // Legacy results name the function, because legacy calls have no id.
    let answers = if said == Some("function") { text("name") } else { text("tool_call_id") };
    let mut extra = map.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    extra.extend(rest(map, READ));
    Ok(ForeignMessage {
        id: text("id").or_else(|| text("message_id")).filter(|id| !id.is_empty()),
        role,
        content,
        tool_calls: calls(map)?,
        tool_call_id: answers.filter(|_| role == Role::Tool),
        created_at: time_of(map),
        metadata: metadata(extra, parts)?,
        token_count: None,
    })
}

fn calls(map: &Map<String, Value>) -> Result<Option<Value>, FormatError> {
    let calls = match (map.get("tool_calls"), map.get("function_call")) {
        (Some(calls), _) if !calls.is_null() => {
            // This project's own form is accepted as well.
            let own =
                calls.as_array().is_some_and(|calls| calls.iter().all(|call| call.get("function").is_none()));
            if own { plain_calls(calls)? } else { openai_calls(calls)? }
        }
        (_, Some(call)) if call.is_object() => {
            let name = call.get("name").and_then(Value::as_str).unwrap_or_default();
            vec![json!({"id": name, "name": name, "arguments": arguments(call.get("arguments"))})]
        }
        _ => Vec::new(),
    };
    Ok((!calls.is_empty()).then_some(Value::Array(calls)))
}

fn plain_calls(calls: &Value) -> Result<Vec<Value>, FormatError> {
    let text = |call: &Value, key: &str| call.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let call = |call: &Value| {
        let arguments = arguments(call.get("arguments").or_else(|| call.get("args")));
        let is_call = call.is_object();
        is_call
            .then(|| json!({"id": text(call, "id"), "name": text(call, "name"), "arguments": arguments}))
            .ok_or(FormatError::Calls)
    };
    calls.as_array().ok_or(FormatError::Calls)?.iter().map(call).collect()
}
