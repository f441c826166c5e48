//! The `conversations.json` of an export of ChatGPT. Each chat is a tree of messages (`mapping`)
//! with its current leaf (`current_node`).
//!
//! A message to a tool (`recipient`) is a call. The tool's next messages, joined, are its result.

use model::Role;
use serde_json::{Map, Value, json};

use super::branch::{Node, current};
use super::fields::text_at;
use super::message::{Content, Draft, content_of, rest};
use super::notes::{LeftOutKind, NoteKind};
use super::open_calls::CallKey;
use super::openai::role_of;
use super::parts::{Part, UnknownPart};
use super::reading::{ReadMessage, SourceThread, ThreadReader};
use super::thread::FormatError;
use super::times::{take_time, time_of};

/// True if the value is a chat of this export.
pub(super) fn is_chat(value: &Value) -> bool {
    value.get("mapping").is_some_and(Value::is_object)
}

/// The chat with its current branch.
pub(super) fn chat(value: &Value) -> SourceThread<'_> {
    let map = value.get("mapping").and_then(Value::as_object);
    let nodes: Vec<Node<'_>> = map
        .into_iter()
        .flatten()
        .map(|(id, node)| {
            let message = node.get("message").filter(|message| message.is_object());
            let at = message.and_then(|message| message.get("create_time")?.as_f64()).unwrap_or_default();
            Node { id, parent: node.get("parent").and_then(Value::as_str), message, at }
        })
        .collect();
    let branch = current(&nodes, value.get("current_node").and_then(Value::as_str));
    let fields = value.as_object();
    SourceThread {
        id: fields.and_then(|map| text_at(map, &["conversation_id", "id"])),
        title: fields.and_then(|map| text_at(map, &["title"])),
        created_at: fields.and_then(time_of),
        is_guessed: branch.is_guessed,
        others: branch.others,
        messages: branch.messages,
        instructions: None,
    }
}

pub(super) fn message(message: &Value, reading: &mut ThreadReader) -> Result<ReadMessage, FormatError> {
    let map = message.as_object().ok_or(FormatError::NotAnObject)?;
    let author = map.get("author").and_then(Value::as_object);
    let said = author.and_then(|author| text_at(author, &["role"])).unwrap_or_default();
    let role = role_of(&said).ok_or_else(|| FormatError::Role(format!("{said:?}")))?;
    let about = map.get("metadata").and_then(Value::as_object);
    let is_hidden =
        about.and_then(|about| about.get("is_visually_hidden_from_conversation")) == Some(&Value::Bool(true));
    let recipient =
        text_at(map, &["recipient"]).filter(|recipient| recipient != "all" && role == Role::Assistant);
    let (mut content, kind) = content(map.get("content"))?;
    let mut notes = Vec::new();
    let text =
        content.parts.iter().any(|(_, part)| !matches!(part, Part::Text(text) if text.trim().is_empty()));
    let left_out = match role {
        _ if kind == "reasoning_recap" => Some(LeftOutKind::Recap),
        Role::System if !text => Some(LeftOutKind::Empty),
        // ChatGPT's own instructions, and settings of people that the model sees in every chat.
        Role::System | Role::User if is_hidden || kind.ends_with("_editable_context") => {
            Some(LeftOutKind::Hidden)
        }
        Role::Assistant if is_hidden && recipient.is_none() && kind != "thoughts" => {
            Some(LeftOutKind::Hidden)
        }
        _ => None,
    };
    if let Some(left_out) = left_out {
        reading.left_out.add(left_out, 1);
        return Ok(ReadMessage::default());
    }
    let mut extra = Map::new();
    if let Some(about) = about {
        extra.extend(text_at(about, &["model_slug"]).map(|model| ("model".to_owned(), Value::String(model))));
        let attachments = about.get("attachments").and_then(Value::as_array).into_iter().flatten();
        let placeholder = |file: &Value| Some(Part::Medium(format!("[{}]", file.get("name")?.as_str()?)));
        content.parts.extend(attachments.filter_map(placeholder).map(|part| (0, part)));
        let source = rest(about, &["model_slug"]);
        if !source.is_empty() {
            extra.insert("chatgpt".to_owned(), Value::Object(source));
        }
    }
    if !content.kept.is_empty() {
        extra.insert("content_parts".to_owned(), Value::Array(content.kept));
    }
    let id = text_at(map, &["id"]);
    let created_at = take_time(map, &mut extra, &mut notes);
    let mut draft = Draft { id, parts: content.parts, created_at, extra, ..Draft::default() };
    if role == Role::Tool || recipient.is_some() {
        let parts = std::mem::take(&mut draft.parts);
        let texts = parts.into_iter().filter_map(|(index, part)| said_by_tool(index, part, &mut notes));
        let text = texts.collect::<Vec<_>>().join("\n");
        match recipient {
            Some(tool) => {
                let arguments = arguments(&text, &kind);
                draft.calls = vec![json!({"id": draft.id.clone(), "name": tool, "arguments": arguments})];
            }
            None => {
                let name = author.and_then(|author| text_at(author, &["name"]));
                // A message of `web` answers a call of `web.run`.
                draft.answers = reading.answered_call(name.as_deref().map(CallKey::family).as_ref());
                draft.extra.extend(name.map(|name| ("name".to_owned(), Value::String(name))));
                draft.parts = vec![(0, Part::Text(text))];
            }
        }
    } else if draft.parts.iter().all(|(_, part)| matches!(part, Part::Text(text) if text.trim().is_empty())) {
        reading.left_out.add(LeftOutKind::Empty, 1);
        return Ok(ReadMessage::default());
    }
    // A tool may write several messages for one call.
    let joins = role == Role::Tool && draft.answers.is_none();
    Ok(ReadMessage { messages: draft.into_messages(role, &mut notes)?, notes, joins })
}

/// The parts and the content type.
fn content(content: Option<&Value>) -> Result<(Content, String), FormatError> {
    let Some(map) = content.and_then(Value::as_object) else {
        return Ok((content_of(content)?, String::new()));
    };
    let kind = text_at(map, &["content_type"]).unwrap_or_default();
    let text = |keys: &[&str]| {
        let said = keys.iter().filter_map(|key| text_at(map, &[key])).collect::<Vec<_>>().join("\n");
        Content { parts: vec![(0, Part::Text(said))], kept: Vec::new() }
    };
    let read = match kind.as_str() {
        "text" | "multimodal_text" => content_of(map.get("parts"))?,
        "code" => text(&["text"]),
        "tether_quote" | "sonic_webpage" => text(&["title", "url", "text"]),
        "user_editable_context" => text(&["user_profile", "user_instructions"]),
        _ => {
            // A part of unknown type may still have its texts as `parts`.
            let read = content_of(content)?;
            match (&read.parts.as_slice(), map.get("parts")) {
                ([(_, Part::Unknown(_))], Some(parts)) => content_of(Some(parts))?,
                _ => read,
            }
        }
    };
    Ok((read, kind))
}

fn said_by_tool(index: usize, part: Part, notes: &mut Vec<NoteKind>) -> Option<String> {
    match part {
        Part::Text(text) | Part::Reasoning(text) | Part::Medium(text) => Some(text),
        Part::Unknown(UnknownPart { kind, text }) => {
            let text_from = text.as_ref().map(|(field, _)| *field);
            notes.push(NoteKind::UnknownPart { part: index, kind: kind.clone(), text_from });
            Some(text.map_or_else(|| format!("[{kind}]"), |(_, text)| text))
        }
        Part::Result(result) => Some(result.content.text),
        Part::Call { arguments, .. } => Some(arguments),
        Part::Mark => None,
    }
    .filter(|text| !text.is_empty())
}

/// The arguments as a JSON object, whatever the model wrote.
fn arguments(text: &str, kind: &str) -> String {
    match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(_)) => text.to_owned(),
        _ if kind == "code" => json!({"code": text}).to_string(),
        _ => json!({"input": text}).to_string(),
    }
}
