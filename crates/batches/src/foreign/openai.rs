//! Lists of messages with roles: OpenAI's chat messages with legacy function calls, items of its
//! Responses API, messages of Anthropic, Google, Bedrock and the AI SDK, and this project's own.

use model::Role;
use serde_json::{Map, Value};

use super::fields::text_at;
use super::message::{Content, Draft, calls_of, content_of, rest};
use super::notes::NoteKind;
use super::parts::{
    ARGUMENTS, CALL_IDS, NAMES, Part, REASONING_TEXTS, RESULTS, arguments, invocation_parts, parts_of, result,
};
use super::reading::ReadMessage;
use super::results::result_content;
use super::thread::FormatError;
use super::times::{TIMES, take_time};

/// Fields that are read; empty ones are not kept.
const READ: [&str; 9] = [
    "id",
    "message_id",
    "content",
    "parts",
    "refusal",
    "tool_calls",
    "tool_call_id",
    "toolCallId",
    "function_call",
];
/// Fields that may hold the content; the first existing one is used.
const CONTENTS: [&str; 6] = ["content", "text", "value", "message", "body", "output_text"];

/// The role with this name.
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
    let mut reading = FieldReader { map, used: TIMES.to_vec() };
    reading.used.push("role");
    let content = reading.content(role)?;
    let has_key = reading.used.iter().any(|key| CONTENTS.contains(key) || *key == "parts");
    let calls = reading.calls()?;
    let mut parts = reading.invocations(&content.parts);
    parts.extend(content.parts);
    let id = reading.text(&["id", "message_id"]);
    // Legacy results contain the function's name, because legacy calls have no id.
    let answers = match said {
        "function" => text_at(map, &["name"]),
        _ if role == Role::Tool => reading.text(&["tool_call_id", "toolCallId"]),
        _ => None,
    };
    let (mut extra, has_other_fields) = reading.extra();
    if !content.kept.is_empty() {
        extra.insert("content_parts".to_owned(), Value::Array(content.kept));
    }
    if !extra.contains_key("reasoning")
        && let Some(Value::String(text)) = extra.get("reasoning_content").cloned()
    {
        extra.remove("reasoning_content");
        extra.insert("reasoning".to_owned(), Value::String(text));
    }
    if let Some(name) = text_at(map, &["tool_name", "toolName"]).filter(|_| role == Role::Tool) {
        extra.entry("name").or_insert(Value::String(name));
    }
    let mut notes = Vec::new();
    if parts.is_empty() && calls.is_empty() && !has_key && has_other_fields {
        let names: Vec<&str> = map.keys().map(String::as_str).filter(|key| *key != "role").take(8).collect();
        notes.push(NoteKind::NotUnderstood { what: format!("its fields: {}", names.join(", ")) });
        parts.push((0, Part::Medium("[not understood]".to_owned())));
    }
    let created_at = take_time(map, &mut extra, &mut notes);
    let draft = Draft { id, parts, calls, answers, created_at, extra, token_count: None };
    Ok(ReadMessage { messages: draft.into_messages(role, &mut notes)?, notes, joins: false })
}

/// Reads an item of the Responses API that has no role: a call, a result, or reasoning.
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
    let mut extra = rest(map, &fields_of(map, &parts));
    let created_at = take_time(map, &mut extra, &mut notes);
    if matches!(parts.as_slice(), [Part::Reasoning(text)] if text.is_empty()) {
        // The reasoning may be available only in encrypted form; it is still moved to its answer.
        extra.insert("reasoning".to_owned(), Value::String(String::new()));
    }
    let draft = Draft {
        id: text_at(map, &["id"]),
        parts: parts.into_iter().map(|part| (0, part)).collect(),
        created_at,
        extra,
        ..Draft::default()
    };
    Ok(ReadMessage { messages: draft.into_messages(role, &mut notes)?, notes, joins })
}

/// The fields of an item from which its parts were read.
fn fields_of(map: &Map<String, Value>, parts: &[Part]) -> Vec<&'static str> {
    let mut fields = TIMES.to_vec();
    fields.push("type");
    let first = |keys: &[&'static str]| {
        keys.iter().find(|key| map.get(**key).is_some_and(|value| !value.is_null())).copied()
    };
    for part in parts {
        match part {
            Part::Call { .. } => {
                fields.extend(first(&NAMES));
                fields.extend(first(&ARGUMENTS).or(first(&["code"])));
                fields.extend(first(&["function"]));
            }
            Part::Result(_) => {
                fields.extend(first(&NAMES));
                fields.extend(first(&RESULTS));
            }
            Part::Reasoning(said) => {
                let has_text = |key: &&'static str| {
                    let alone = serde_json::json!({"type": "reasoning", *key: map.get(*key)});
                    matches!(parts_of(&alone).as_slice(), [Part::Reasoning(text)] if text == said)
                };
                fields.extend(REASONING_TEXTS.into_iter().find(has_text));
            }
            _ => {}
        }
    }
    fields.extend(CALL_IDS);
    if map.get("status").and_then(Value::as_str) == Some("completed") {
        fields.push("status");
    }
    fields
}

/// Reads fields of a message and records which were read. All others are kept in the metadata.
struct FieldReader<'a> {
    map: &'a Map<String, Value>,
    used: Vec<&'static str>,
}

impl FieldReader<'_> {
    fn has(&self, key: &str) -> bool {
        let is_something = |value: &Value| match value {
            Value::Null => false,
            Value::String(text) => !text.is_empty(),
            Value::Array(items) => !items.is_empty(),
            Value::Object(map) => !map.is_empty(),
            Value::Bool(_) | Value::Number(_) => true,
        };
        self.map.get(key).is_some_and(is_something)
    }

    /// The first of these fields that is a text.
    fn text(&mut self, keys: &[&'static str]) -> Option<String> {
        let key = keys.iter().find(|key| text_at(self.map, &[key]).is_some())?;
        self.used.push(key);
        text_at(self.map, &[key])
    }

    /// The content, whichever field has it.
    fn content(&mut self, role: Role) -> Result<Content, FormatError> {
        let map = self.map;
        let said = |key: &str| map.get(key).filter(|value| !value.is_null());
        // The AI SDK repeats the texts of the parts in `content`.
        if let Some(parts) = said("parts").filter(|parts| parts.is_array() && self.has("parts")) {
            let content = content_of(Some(parts))?;
            let texts = content.parts.iter().filter_map(|(_, part)| match part {
                Part::Text(text) => Some(text.as_str()),
                _ => None,
            });
            let texts = texts.collect::<Vec<_>>().join("\n");
            self.used.push("parts");
            if said("content").and_then(Value::as_str).is_some_and(|text| texts.contains(text.trim())) {
                self.used.push("content");
            }
            return Ok(content);
        }
        // A text under another name takes precedence over an empty content.
        let is_text = |key: &&str| map.get(*key).is_some_and(Value::is_string) && self.has(key);
        let with_text = CONTENTS.into_iter().find(|key| said(key).is_some());
        let with_text = match with_text {
            Some(key) if !self.has(key) => CONTENTS.into_iter().find(is_text).or(with_text),
            other => other,
        };
        // `parts` may also be a text or a single part.
        let key = match with_text {
            Some(key) if self.has(key) || !self.has("parts") => Some(key),
            _ if self.has("parts") => Some("parts"),
            _ => self.map.contains_key("content").then_some("content"),
        };
        let mut content = match key.and_then(said) {
            // A nested message.
            Some(Value::Object(inner)) if key == Some("message") && inner.contains_key("content") => {
                content_of(inner.get("content"))?
            }
            Some(said) if role == Role::Tool => tool_content(said)?,
            said => content_of(said)?,
        };
        self.used.extend(key);
        let has_text =
            content.parts.iter().any(|(_, part)| matches!(part, Part::Text(text) if !text.is_empty()));
        if !has_text {
            let transcript = || map.get("audio")?.get("transcript")?.as_str().map(str::to_owned);
            let transcript = transcript();
            let text = self.text(&["refusal"]).or(transcript);
            content.parts.extend(text.map(|text| (content.kept.len(), Part::Text(text))));
        }
        Ok(content)
    }

    /// Calls from fields of the message.
    fn calls(&mut self) -> Result<Vec<Value>, FormatError> {
        if let Some(key) = ["tool_calls", "toolCalls"].into_iter().find(|key| self.has(key)) {
            self.used.push(key);
            return calls_of(self.map.get(key).unwrap_or(&Value::Null));
        }
        let Some(call) = self.map.get("function_call").and_then(Value::as_object) else {
            return Ok(Vec::new());
        };
        self.used.push("function_call");
        let name = call.get("name").and_then(Value::as_str).unwrap_or_default();
        Ok(vec![serde_json::json!({"id": name, "name": name, "arguments": arguments(call.get("arguments"))})])
    }

    /// Calls and results of the AI SDK from fields of the message; its parts may repeat them.
    fn invocations(&mut self, parts: &[(usize, Part)]) -> Vec<(usize, Part)> {
        let is_of_call = |(_, part): &(usize, Part)| matches!(part, Part::Call { .. } | Part::Result(_));
        let is_said = parts.iter().any(is_of_call);
        let mut found = Vec::new();
        for key in ["toolInvocations", "toolResults"] {
            let Some(list) = self.map.get(key).and_then(Value::as_array).filter(|_| self.has(key)) else {
                continue;
            };
            let Some(list) = list.iter().map(Value::as_object).collect::<Option<Vec<_>>>() else { continue };
            self.used.push(key);
            if is_said {
                continue;
            }
            for map in list {
                match key {
                    "toolResults" => found.push((0, Part::Result(result(map)))),
                    _ => found.extend(invocation_parts(map).into_iter().map(|part| (0, part))),
                }
            }
        }
        found
    }

    /// The message's own metadata and the unread fields, and whether there are unread fields.
    fn extra(&self) -> (Map<String, Value>, bool) {
        let own = self.map.get("metadata").and_then(Value::as_object);
        let mut without = self.used.clone();
        if own.is_some() {
            without.push("metadata");
        }
        without.extend(READ.iter().filter(|key| !self.has(key)));
        let fields = rest(self.map, &without);
        let has_fields = !fields.is_empty();
        let mut extra = own.cloned().unwrap_or_default();
        // A field replaces metadata with the same name. The replaced value is kept separately.
        let differs = |(key, value): &(&String, &Value)| extra.get(*key).is_some_and(|own| own != *value);
        let replaced: Vec<String> = fields.iter().filter(differs).map(|(key, _)| key.clone()).collect();
        let replaced: Map<String, Value> =
            replaced.into_iter().filter_map(|key| extra.remove(&key).map(|value| (key, value))).collect();
        extra.extend(fields);
        if !replaced.is_empty() {
            extra.entry("metadata").or_insert(Value::Object(replaced));
        }
        (extra, has_fields)
    }
}

/// Reads the result of a tool, which may be any JSON.
fn tool_content(said: &Value) -> Result<Content, FormatError> {
    let content = match said {
        Value::Number(_) | Value::Bool(_) => Content::default(),
        said => content_of(Some(said))?,
    };
    let is_known = |(_, part): &(usize, Part)| !matches!(part, Part::Unknown(_));
    if content.parts.iter().all(is_known) && !content.parts.is_empty() {
        return Ok(content);
    }
    let content = result_content(said);
    Ok(Content { parts: vec![(0, Part::Text(content.text))], kept: content.kept })
}
