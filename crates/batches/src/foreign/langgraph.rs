//! LangChain's messages, as LangGraph's checkpoints store them. Forms: `{"lc", "type":
//! "constructor", "id": […, "HumanMessage"], "kwargs"}`, `{"type": "human", "data"}`, or all fields
//! next to `type`.

use model::{Metadata, Role};
use serde_json::{Map, Value};

use super::fields::text_at;
use super::langchain::OWN_KEY;
use super::message::{Draft, calls_of, content_of, rest};
use super::openai::role_of;
use super::parts::Part;
use super::reading::ReadMessage;
use super::results::result_content;
use super::thread::FormatError;
use super::times::{take_time, time_of};

const READ: &[&str] = &[
    "id",
    "type",
    "content",
    "tool_calls",
    "invalid_tool_calls",
    "tool_call_id",
    "tool_call_chunks",
    "lc",
    "example",
];
/// Keys that Antiphon has in the metadata, and systems based on LangGraph in `additional_kwargs`.
const OURS: [&str; 3] = Metadata::RESERVED;

pub(super) fn message(message: &Value) -> Result<ReadMessage, FormatError> {
    let outer = message.as_object().ok_or(FormatError::NotAnObject)?;
    let (kind, fields) = taken_apart(outer)?;
    // An instruction to remove a message is not a message.
    let Some(role) = role(&kind, fields)? else { return Ok(ReadMessage::none()) };
    let additional = fields.get("additional_kwargs").and_then(Value::as_object);
    let mut content = content_of(fields.get("content"))?;
    let is_plain = content.parts.iter().all(|(_, part)| matches!(part, Part::Text(_)));
    if let (Role::Tool, Some(Value::Object(_))) = (role, fields.get("content")) {
        let result = result_content(fields.get("content").unwrap_or(&Value::Null));
        content.parts = vec![(0, Part::Text(result.text))];
        content.kept = result.kept;
    }
    let mut extra = rest(fields, READ);
    if fields.get("content").is_some_and(Value::is_object) && !content.kept.is_empty() {
        extra.insert("content_parts".to_owned(), Value::Array(content.kept));
    }
    for key in OURS {
        if let Some(value) = additional.and_then(|additional| additional.get(key)) {
            extra.entry(key).or_insert_with(|| value.clone());
        }
    }
    // All parts are kept, including calls, so that an export can return the original.
    if let Some(parts) = fields.get("content").filter(|content| content.is_array() && !is_plain) {
        extra.insert("content_parts".to_owned(), parts.clone());
    }
    let response = fields.get("response_metadata").and_then(Value::as_object);
    let mut notes = Vec::new();
    let mut created_at = take_time(fields, &mut extra, &mut notes);
    created_at = created_at.or_else(|| [additional, response].into_iter().flatten().find_map(time_of));
    let output = fields.get("usage_metadata").and_then(|usage| usage.get("output_tokens"));
    let mut token_count = output.and_then(Value::as_u64);
    if let Some(own) = own(&mut extra) {
        created_at = time_of(&own).or(created_at);
        token_count = own.get("token_count").and_then(Value::as_u64).or(token_count);
        for (key, value) in own.get("metadata").and_then(Value::as_object).into_iter().flatten() {
            extra.entry(key).or_insert_with(|| value.clone());
        }
    }
    let answers =
        if kind == "function" { text_at(fields, &["name"]) } else { text_at(fields, &["tool_call_id"]) };
    let draft = Draft {
        id: text_at(fields, &["id"]),
        parts: content.parts,
        calls: if role == Role::Assistant { calls(fields, additional)? } else { Vec::new() },
        answers,
        created_at,
        extra,
        token_count,
    };
    Ok(ReadMessage { messages: draft.into_messages(role, &mut notes)?, notes, joins: false })
}

/// The data that an export of this project put into `additional_kwargs`.
fn own(extra: &mut Map<String, Value>) -> Option<Map<String, Value>> {
    let additional = extra.get_mut("additional_kwargs")?.as_object_mut()?;
    let Value::Object(own) = additional.remove(OWN_KEY)? else { return None };
    for key in own.get("shown").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
        additional.remove(key);
    }
    if additional.is_empty() {
        extra.remove("additional_kwargs");
    }
    Some(own)
}

/// The kind in lower case, without `message` and `chunk`, and the fields.
fn taken_apart(outer: &Map<String, Value>) -> Result<(String, &Map<String, Value>), FormatError> {
    let kind = text_at(outer, &["type"]).unwrap_or_default();
    if kind == "constructor" {
        let path = outer.get("id").and_then(Value::as_array);
        let class = path.and_then(|path| path.last()?.as_str()).unwrap_or_default();
        let fields = outer.get("kwargs").and_then(Value::as_object).ok_or(FormatError::NotAnObject)?;
        return Ok((plain(class), fields));
    }
    let fields = outer.get("data").and_then(Value::as_object).unwrap_or(outer);
    Ok((plain(&kind), fields))
}

fn plain(kind: &str) -> String {
    let kind = kind.strip_suffix("Chunk").unwrap_or(kind);
    kind.strip_suffix("Message").unwrap_or(kind).to_ascii_lowercase()
}

fn role(kind: &str, fields: &Map<String, Value>) -> Result<Option<Role>, FormatError> {
    let said = match kind {
        "remove" => return Ok(None),
        // LangChain's JavaScript clients accept `role` as well.
        "chat" | "" => text_at(fields, &["role"]).unwrap_or_default(),
        other => other.to_owned(),
    };
    role_of(&said).map(Some).ok_or_else(|| FormatError::Role(format!("{said:?}")))
}

fn calls(
    fields: &Map<String, Value>,
    additional: Option<&Map<String, Value>>,
) -> Result<Vec<Value>, FormatError> {
    let list = |map: Option<&Map<String, Value>>, key: &str| match map.and_then(|map| map.get(key)) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(calls) => calls_of(calls),
    };
    // Calls whose arguments were not JSON are answered like any other.
    let mut calls = list(Some(fields), "tool_calls")?;
    calls.extend(list(Some(fields), "invalid_tool_calls")?);
    if calls.is_empty() { list(additional, "tool_calls") } else { Ok(calls) }
}
