//! Exports of Open WebUI. Each chat has its messages by id (`history.messages`) and the id of the
//! current message (`history.currentId`). An answer has its calls and reasoning in `output`, or in
//! older versions in `<details>` within its text.

use serde_json::{Map, Value};

use super::branch::{Node, current};
use super::details;
use super::fields::text_at;
use super::message::{Content, Draft, content_of, rest};
use super::notes::LeftOutKind;
use super::openai::role_of;
use super::parts::{Part, parts_of};
use super::reading::{ReadMessage, SourceThread, ThreadReader};
use super::thread::FormatError;
use super::times::{take_time, time_of};

const READ: &[&str] = &[
    "id",
    "role",
    "content",
    "output",
    "timestamp",
    "parentId",
    "childrenIds",
    "done",
    "error",
    "lastSentence",
    "modelIdx",
    "statusHistory",
];

/// True if the value is a chat of this export: the chat alone, or in its database row.
pub(super) fn is_chat(value: &Value) -> bool {
    inner(value).is_some()
}

fn inner(value: &Value) -> Option<&Map<String, Value>> {
    let has_history = |map: &&Map<String, Value>| {
        map.get("history").is_some_and(|history| history.get("messages").is_some())
    };
    let inner = value
        .get("chat")
        .and_then(Value::as_object)
        .filter(|chat| chat.contains_key("messages") || has_history(chat));
    inner.or_else(|| value.as_object().filter(has_history))
}

/// The chat with its current branch.
pub(super) fn chat(value: &Value) -> SourceThread<'_> {
    let empty = Map::new();
    let (outer, map) = (value.as_object(), inner(value));
    let history = map.and_then(|map| map.get("history")).filter(|history| history.is_object());
    let tree = history.and_then(|history| history.get("messages")?.as_object());
    let nodes: Vec<Node<'_>> = tree
        .into_iter()
        .flatten()
        .map(|(id, message)| Node {
            id,
            parent: message.get("parentId").and_then(Value::as_str),
            message: Some(message),
            at: message.get("timestamp").and_then(Value::as_f64).unwrap_or_default(),
        })
        .collect();
    let pointer = history.and_then(|history| history.get("currentId")?.as_str());
    let branch = current(&nodes, pointer);
    // A chat of the first versions has only a list of messages.
    let list = map.and_then(|map| map.get("messages")?.as_array()).filter(|_| nodes.is_empty());
    let about = |keys: &[&str]| [outer, map].into_iter().flatten().find_map(|map| text_at(map, keys));
    let parameters = map.and_then(|map| map.get("params")?.as_object()).unwrap_or(&empty);
    let instructions =
        text_at(parameters, &["system"]).or_else(|| map.and_then(|map| text_at(map, &["system"])));
    SourceThread {
        id: about(&["id"]).filter(|id| !id.is_empty()),
        title: about(&["title"]),
        created_at: outer.and_then(time_of).or_else(|| map.and_then(time_of)),
        is_guessed: branch.is_guessed,
        others: branch.others,
        messages: list.map_or(branch.messages, |list| list.iter().collect()),
        instructions,
    }
}

pub(super) fn message(message: &Value, reading: &mut ThreadReader) -> Result<ReadMessage, FormatError> {
    let map = message.as_object().ok_or(FormatError::NotAnObject)?;
    let said = text_at(map, &["role"]).unwrap_or_default();
    let role = role_of(&said).ok_or_else(|| FormatError::Role(format!("{said:?}")))?;
    let mut content = content(map)?;
    for file in map.get("files").and_then(Value::as_array).into_iter().flatten() {
        let name = |map: &Map<String, Value>| text_at(map, &["name", "filename", "type"]);
        let file =
            file.as_object().and_then(|file| name(file).or_else(|| name(file.get("file")?.as_object()?)));
        content.parts.push((0, Part::Medium(format!("[{}]", file.unwrap_or_else(|| "file".to_owned())))));
    }
    let mut extra = rest(map, READ);
    let error = map.get("error").filter(|error| !error.is_null() && **error != Value::Bool(false));
    let is_blank = |(_, part): &(usize, Part)| matches!(part, Part::Text(text) if text.trim().is_empty());
    if content.parts.iter().all(is_blank) {
        let left_out = if error.is_some() { LeftOutKind::Failed } else { LeftOutKind::Empty };
        reading.left_out.add(left_out, 1);
        return Ok(ReadMessage::default());
    }
    extra.extend(error.map(|error| ("error".to_owned(), error.clone())));
    if !content.kept.is_empty() {
        extra.insert("content_parts".to_owned(), Value::Array(content.kept));
    }
    let mut notes = Vec::new();
    let created_at = take_time(map, &mut extra, &mut notes);
    let id = text_at(map, &["id"]);
    let draft = Draft { id, parts: content.parts, created_at, extra, ..Draft::default() };
    Ok(ReadMessage { messages: draft.into_messages(role, &mut notes)?, notes, joins: false })
}

fn content(map: &Map<String, Value>) -> Result<Content, FormatError> {
    let output = map.get("output").and_then(Value::as_array).filter(|output| !output.is_empty());
    if let Some(output) = output {
        let mut content = Content::default();
        for (index, item) in output.iter().enumerate() {
            // A message in the output has its own parts.
            let parts = match item.get("type").and_then(Value::as_str) {
                Some("message") => {
                    content_of(item.get("content"))?.parts.into_iter().map(|(_, part)| part).collect()
                }
                _ => parts_of(item),
            };
            content.parts.extend(parts.into_iter().map(|part| (index, part)));
        }
        return Ok(content);
    }
    match map.get("content") {
        Some(Value::String(text)) if text.contains("<details") => {
            let parts = details::parts(text).into_iter().enumerate().collect();
            Ok(Content { parts, kept: Vec::new() })
        }
        content => content_of(content),
    }
}
