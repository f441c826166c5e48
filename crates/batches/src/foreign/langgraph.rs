//! LangChain's messages, as LangGraph's checkpoints hold them: `{"lc", "type": "constructor", "id": […, "HumanMessage"], "kwargs"}`,
//! `{"type": "human", "data"}`, or the fields themselves beside `type`.

use model::Role;
use serde_json::{Map, Value, json};

use super::parts::{arguments, metadata, openai_calls, rest, text_of, time_of};
use super::{ForeignMessage, FormatError};

const READ: &[&str] =
    &["id", "type", "content", "tool_calls", "tool_call_id", "tool_call_chunks", "lc", "example"];
/// What this project has in the metadata itself, and systems on LangGraph have in `additional_kwargs`.
const OURS: &[&str] = &["synthetic", "trigger_type", "trigger_reason"];

/// `None` for what is no message but an instruction to remove one.
pub(super) fn message(message: &Value) -> Result<Option<ForeignMessage>, FormatError> {
    let outer = message.as_object().ok_or(FormatError::NotAnObject)?;
    let (kind, fields) = taken_apart(outer)?;
    let Some(role) = role(&kind, fields)? else { return Ok(None) };
    let (content, parts) = text_of(fields.get("content"))?;
    let text = |key: &str| fields.get(key).and_then(Value::as_str).map(str::to_owned);
    let additional = fields.get("additional_kwargs").and_then(Value::as_object);
    let answers = if kind == "function" { text("name") } else { text("tool_call_id") };
    let mut extra = rest(fields, READ);
    for key in OURS {
        if let Some(value) = additional.and_then(|additional| additional.get(*key)) {
            extra.entry(*key).or_insert_with(|| value.clone());
        }
    }
    let response = fields.get("response_metadata").and_then(Value::as_object);
    let times = [Some(fields), additional, response];
    let output = fields.get("usage_metadata").and_then(|usage| usage.get("output_tokens"));
    Ok(Some(ForeignMessage {
        id: text("id").filter(|id| !id.is_empty()),
        role,
        content,
        tool_calls: if role == Role::Assistant { calls(fields, additional)? } else { None },
        tool_call_id: answers.filter(|_| role == Role::Tool),
        created_at: times.into_iter().flatten().find_map(time_of),
        metadata: metadata(extra, parts)?,
        token_count: output.and_then(Value::as_u64),
    }))
}

/// The kind in small letters, without `message` and `chunk`, and the fields.
fn taken_apart(outer: &Map<String, Value>) -> Result<(String, &Map<String, Value>), FormatError> {
    let kind = outer.get("type").and_then(Value::as_str).unwrap_or_default();
    if kind == "constructor" {
        let path = outer.get("id").and_then(Value::as_array);
        let class = path.and_then(|path| path.last()?.as_str()).unwrap_or_default();
        let fields = outer.get("kwargs").and_then(Value::as_object).ok_or(FormatError::NotAnObject)?;
        return Ok((plain(class), fields));
    }
    let fields = outer.get("data").and_then(Value::as_object).unwrap_or(outer);
    Ok((plain(kind), fields))
}

fn plain(kind: &str) -> String {
    let kind = kind.strip_suffix("Chunk").unwrap_or(kind);
    kind.strip_suffix("Message").unwrap_or(kind).to_ascii_lowercase()
}

fn role(kind: &str, fields: &Map<String, Value>) -> Result<Option<Role>, FormatError> {
    match kind {
        "human" | "user" => Ok(Some(Role::User)),
        "ai" | "assistant" => Ok(Some(Role::Assistant)),
        "tool" | "function" => Ok(Some(Role::Tool)),
        "system" | "developer" => Ok(Some(Role::System)),
        "remove" => Ok(None),
        "chat" => {
            let said = fields.get("role").and_then(Value::as_str).unwrap_or_default();
            match said {
                "chat" | "remove" => Err(FormatError::Role(format!("{said:?}"))),
                other => role(&other.to_ascii_lowercase(), fields),
            }
        }
        other => Err(FormatError::Role(format!("{other:?}"))),
    }
}

fn calls(
    fields: &Map<String, Value>,
    additional: Option<&Map<String, Value>>,
) -> Result<Option<Value>, FormatError> {
    let list = |key: &str| match fields.get(key) {
        None | Some(Value::Null) => Ok(&[][..]),
        Some(calls) => calls.as_array().map(Vec::as_slice).ok_or(FormatError::Calls),
    };
    let text = |call: &Value, key: &str| call.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let call = |call: &Value| {
        let said = arguments(call.get("args"));
        call.is_object()
            .then(|| json!({"id": text(call, "id"), "name": text(call, "name"), "arguments": said}))
            .ok_or(FormatError::Calls)
    };
    // Calls whose arguments were no JSON are answered like any other.
    let both = list("tool_calls")?.iter().chain(list("invalid_tool_calls")?);
    let mut calls: Vec<Value> = both.map(call).collect::<Result<_, _>>()?;
    if let Some(openai) =
        additional.and_then(|additional| additional.get("tool_calls")).filter(|_| calls.is_empty())
    {
        calls = openai_calls(openai)?;
    }
    Ok((!calls.is_empty()).then_some(Value::Array(calls)))
}
