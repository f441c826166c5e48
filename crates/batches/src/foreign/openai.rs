//! Lists of messages with roles: OpenAI's chat messages with legacy function calls, items of its Responses API, messages of Anthropic,
//! Google, Bedrock and the AI SDK, and this project's own.

use model::Role;
use serde_json::{Map, Value};

use super::message::{Content, Draft, calls_of, content_of, rest, time_of};
use super::notes::NoteKind;
use super::parts::{Part, arguments, parts_of, result_text, text_at};
use super::reading::ReadMessage;
use super::thread::FormatError;

const READ: &[&str] = &[
    "id",
    "message_id",
    "role",
    "content",
    "parts",
    "refusal",
    "tool_calls",
    "tool_call_id",
    "toolCallId",
    "function_call",
    "metadata",
    "created_at",
    "createdAt",
    "create_time",
    "created",
    "timestamp",
];
/// Where the content may be, the first that is there.
const CONTENTS: [&str; 6] = ["content", "text", "value", "message", "body", "output_text"];

/// The role that a name says.
pub(super) fn role_of(name: &str) -> Option<Role> {
    match name.to_ascii_lowercase().as_str() {
        "user" | "human" => Some(Role::User),
        "assistant" | "ai" | "model" | "bot" | "agent" | "chatbot" => Some(Role::Assistant),
        "system" | "developer" => Some(Role::System),
        "tool" | "function" | "ipython" | "toolresult" | "tool_result" => Some(Role::Tool),
        _ => None,
    }
}

pub(super) fn message(message: &Value) -> Result<ReadMessage, FormatError> {
    let map = message.as_object().ok_or(FormatError::NotAnObject)?;
    let Some(said) = map.get("role").or_else(|| map.get("sender")).and_then(Value::as_str) else {
        return item(message, map);
    };
    let role = role_of(said).ok_or_else(|| FormatError::Role(format!("{said:?}")))?;
    let mut notes = Vec::new();
    let (content, key) = content(map, role)?;
    let mut extra = map.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    let fields = rest(map, READ);
    let has_other_fields = !fields.is_empty();
    extra.extend(fields);
    if let Some(key) = key {
        extra.remove(key);
    }
    if !content.kept.is_empty() {
        extra.insert("content_parts".to_owned(), Value::Array(content.kept));
    }
    if let Some(Value::String(text)) =
        extra.remove("reasoning_content").filter(|_| !extra.contains_key("reasoning"))
    {
        extra.insert("reasoning".to_owned(), Value::String(text));
    }
    let calls = calls(map)?;
    let mut parts = content.parts;
    let says_nothing = parts.is_empty() && calls.is_empty();
    if says_nothing && key.is_none() && has_other_fields {
        let names: Vec<&str> = map.keys().map(String::as_str).filter(|key| *key != "role").take(8).collect();
        notes.push(NoteKind::NotUnderstood { what: format!("its fields: {}", names.join(", ")) });
        parts.push((0, Part::Medium("[not understood]".to_owned())));
    }
    // Legacy results name the function, because legacy calls have no id.
    let answers = match said {
        "function" => text_at(map, &["name"]),
        _ => text_at(map, &["tool_call_id", "toolCallId"]),
    };
    let draft = Draft {
        id: text_at(map, &["id", "message_id"]),
        parts,
        calls,
        answers,
        created_at: time_of(map),
        extra,
        token_count: None,
    };
    Ok(ReadMessage { messages: draft.into_messages(role, &mut notes)?, notes, joins: false })
}

/// An item without a role, of the Responses API: a call, a result, or reasoning.
fn item(message: &Value, map: &Map<String, Value>) -> Result<ReadMessage, FormatError> {
    let kind = map.get("type").unwrap_or(&Value::Null);
    let parts = parts_of(message);
    let role = match parts.first() {
        Some(Part::Call { .. } | Part::Reasoning(_)) => Role::Assistant,
        Some(Part::Result(_)) => Role::Tool,
        Some(Part::Mark) if kind.is_string() => return Ok(ReadMessage::none()),
        _ => return Err(FormatError::Role(kind.to_string())),
    };
    let joins = matches!(parts.as_slice(), [Part::Call { .. }]);
    let mut notes = Vec::new();
    let draft = Draft {
        id: text_at(map, &["id"]),
        parts: parts.into_iter().map(|part| (0, part)).collect(),
        created_at: time_of(map),
        ..Draft::default()
    };
    Ok(ReadMessage { messages: draft.into_messages(role, &mut notes)?, notes, joins })
}

/// The content, and the field that has it.
fn content(map: &Map<String, Value>, role: Role) -> Result<(Content, Option<&'static str>), FormatError> {
    // The AI SDK has the texts of the parts in `content` as well.
    if map.get("parts").and_then(Value::as_array).is_some_and(|parts| !parts.is_empty()) {
        return Ok((content_of(map.get("parts"))?, Some("parts")));
    }
    let key = CONTENTS.into_iter().find(|key| map.get(*key).is_some_and(|value| !value.is_null()));
    let said = key.and_then(|key| map.get(key));
    let mut content = match said {
        // A message within the message.
        Some(Value::Object(inner)) if key == Some("message") => content_of(inner.get("content"))?,
        Some(said) if role == Role::Tool => tool_content(said)?,
        said => content_of(said)?,
    };
    let has_text = content.parts.iter().any(|(_, part)| matches!(part, Part::Text(text) if !text.is_empty()));
    if !has_text {
        let transcript =
            map.get("audio").and_then(|audio| audio.get("transcript")?.as_str()).map(str::to_owned);
        let text = text_at(map, &["refusal"]).or(transcript);
        content.parts.extend(text.map(|text| (content.kept.len(), Part::Text(text))));
    }
    Ok((content, key.or_else(|| map.contains_key("content").then_some("content"))))
}

/// A tool may answer with any JSON.
fn tool_content(said: &Value) -> Result<Content, FormatError> {
    let content = match said {
        Value::Number(_) | Value::Bool(_) => Content::default(),
        said => content_of(Some(said))?,
    };
    let is_known = |(_, part): &(usize, Part)| !matches!(part, Part::Unknown(_));
    if content.parts.iter().all(is_known) && !content.parts.is_empty() {
        return Ok(content);
    }
    Ok(Content { parts: vec![(0, Part::Text(result_text(said)))], kept: Vec::new() })
}

fn calls(map: &Map<String, Value>) -> Result<Vec<Value>, FormatError> {
    match (map.get("tool_calls"), map.get("function_call")) {
        (Some(calls), _) if !calls.is_null() => calls_of(calls),
        (_, Some(call)) if call.is_object() => {
            let name = call.get("name").and_then(Value::as_str).unwrap_or_default();
            Ok(vec![
                serde_json::json!({"id": name, "name": name, "arguments": arguments(call.get("arguments"))}),
            ])
        }
        _ => Ok(Vec::new()),
    }
}
