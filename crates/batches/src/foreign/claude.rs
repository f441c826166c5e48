//! The `conversations.json` of an export of Claude. Each chat is a list of messages
//! (`chat_messages`), whose parents form a tree if a message was edited. An assistant message has
//! its texts, calls and results in one sequence.

use serde_json::{Map, Value};

use super::branch::{Node, current};
use super::fields::text_at;
use super::message::{Draft, content_of};
use super::openai::role_of;
use super::parts::Part;
use super::reading::{ReadMessage, SourceThread};
use super::thread::FormatError;
use super::times::{take_time, time_of};

/// True if the value is a chat of this export.
pub(super) fn is_chat(value: &Value) -> bool {
    value.get("chat_messages").is_some_and(Value::is_array)
}

/// The chat with its current branch. The account export does not name the current message and
/// orders messages by time.
pub(super) fn chat(value: &Value) -> SourceThread<'_> {
    let list = value.get("chat_messages").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let text = |message: &'_ Value, key: &str| message.get(key).and_then(Value::as_str).map(str::to_owned);
    let fields = value.as_object();
    let mut chat = SourceThread {
        id: fields.and_then(|map| text_at(map, &["uuid", "id"])),
        title: fields.and_then(|map| text_at(map, &["name", "title"])),
        created_at: fields.and_then(time_of),
        is_guessed: false,
        others: 0,
        messages: list.iter().collect(),
        instructions: None,
    };
    // Exports before 2025 have no parents: the list itself is the chat.
    if !list.iter().any(|message| text(message, "parent_message_uuid").is_some()) {
        return chat;
    }
    let nodes = list.iter().enumerate().map(|(index, message)| Node {
        id: message.get("uuid").and_then(Value::as_str).unwrap_or_default(),
        parent: message.get("parent_message_uuid").and_then(Value::as_str),
        message: Some(message),
        at: index as f64,
    });
    let pointer = text(value, "current_leaf_message_uuid");
    let branch = current(&nodes.collect::<Vec<_>>(), pointer.as_deref());
    chat.messages = branch.messages;
    chat.others = branch.others;
    chat.is_guessed = branch.is_guessed;
    chat
}

pub(super) fn message(message: &Value) -> Result<ReadMessage, FormatError> {
    let map = message.as_object().ok_or(FormatError::NotAnObject)?;
    let said = text_at(map, &["sender", "role"]).unwrap_or_default();
    let role = role_of(&said).ok_or_else(|| FormatError::Role(format!("{said:?}")))?;
    let mut content = content_of(map.get("content"))?;
    let has_more = |(_, part): &(usize, Part)| !matches!(part, Part::Text(text) if text.is_empty());
    if !content.parts.iter().any(has_more) {
        // Older exports have the text only in this field.
        content.parts.extend(text_at(map, &["text"]).map(|text| (0, Part::Text(text))));
    }
    let mut extra = Map::new();
    // Reasoning is not kept a second time among the parts, because it is kept as text.
    let is_more_than_text = |part: &Value| !matches!(part["type"].as_str(), Some("text" | "thinking"));
    if content.kept.iter().any(is_more_than_text) {
        extra.insert("content_parts".to_owned(), Value::Array(content.kept));
    }
    for key in ["attachments", "files", "files_v2"] {
        let list = map.get(key).and_then(Value::as_array).filter(|list| !list.is_empty());
        for file in list.into_iter().flatten() {
            let name =
                file.as_object().and_then(|file| text_at(file, &["file_name", "name"])).unwrap_or_default();
            let read = file.get("extracted_content").and_then(Value::as_str).filter(|text| !text.is_empty());
            // The model received the text of the file together with the message.
            content.parts.push((
                0,
                match read {
                    Some(text) => Part::Text(format!("[{name}]\n{text}")),
                    None => Part::Medium(format!("[{name}]")),
                },
            ));
        }
        if let Some(list) = list {
            let about = list.iter().map(|file| match file.as_object() {
                Some(file) => Value::Object(
                    file.iter()
                        .filter(|(key, _)| *key != "extracted_content")
                        .map(|(key, value)| (key.clone(), value.clone()))
                        .collect(),
                ),
                None => file.clone(),
            });
            extra.insert(key.to_owned(), Value::Array(about.collect()));
        }
    }
    let mut notes = Vec::new();
    let created_at = take_time(map, &mut extra, &mut notes);
    let id = text_at(map, &["uuid", "id"]);
    let draft = Draft { id, parts: content.parts, created_at, extra, ..Draft::default() };
    Ok(ReadMessage { messages: draft.into_messages(role, &mut notes)?, notes, joins: false })
}
