//! Splits the parts of a foreign message into stored messages: a text with its calls, and one
//! message for each result.

use std::collections::HashSet;

use model::{InvalidMetadata, Metadata, Role, Timestamp};
use serde_json::{Map, Value, json};

use super::fields::{first_of, text_at};
use super::notes::NoteKind;
use super::parts::{CALL_IDS, NAMES, Part, PartResult, UnknownPart, arguments, parts_of};
use super::results::result_content;
use super::thread::{ForeignMessage, FormatError, MAX_CALLS};

/// A foreign message after parsing.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) id: Option<String>,
    /// The parts, each with its index in the content.
    pub(super) parts: Vec<(usize, Part)>,
    /// Calls from fields of the message, in the stored form.
    pub(super) calls: Vec<Value>,
    /// For a tool message: the id of the answered call.
    pub(super) answers: Option<String>,
    pub(super) created_at: Option<Timestamp>,
    pub(super) extra: Map<String, Value>,
    pub(super) token_count: Option<u64>,
}

/// Content after parsing.
#[derive(Debug, Default)]
pub(super) struct Content {
    /// The parts, each with its index.
    pub(super) parts: Vec<(usize, Part)>,
    /// The parts that cannot be fully represented as text.
    pub(super) kept: Vec<Value>,
}

/// Reads content: a text, a part, or a list of parts.
pub(super) fn content_of(content: Option<&Value>) -> Result<Content, FormatError> {
    let items = match content {
        None | Some(Value::Null) => return Ok(Content::default()),
        Some(Value::Array(items)) => items.as_slice(),
        Some(one @ (Value::String(_) | Value::Object(_))) => std::slice::from_ref(one),
        Some(Value::Bool(_) | Value::Number(_)) => return Err(FormatError::Content),
    };
    let mut read = Content::default();
    let mut is_plain = true;
    for (index, item) in items.iter().enumerate() {
        let parts = parts_of(item);
        // Calls and results become messages. Unless all other parts are text, these are kept in
        // their order.
        if !parts.iter().any(|part| matches!(part, Part::Call { .. } | Part::Result(_))) {
            read.kept.push(item.clone());
            let is_text = |part: &Part| matches!(part, Part::Text(_)) || matches!(part, Part::Mark);
            is_plain &= parts.iter().all(is_text);
        }
        read.parts.extend(parts.into_iter().map(|part| (index, part)));
    }
    if is_plain {
        read.kept.clear();
    }
    Ok(read)
}

/// A message that is made from a draft.
enum MessagePiece {
    Said(Said),
    Result(PartResult),
}

#[derive(Default)]
struct Said {
    texts: Vec<String>,
    placeholders: Vec<String>,
    reasoning: Vec<String>,
    calls: Vec<Value>,
}

impl Said {
    fn is_empty(&self) -> bool {
        self.texts.is_empty()
            && self.placeholders.is_empty()
            && self.reasoning.is_empty()
            && self.calls.is_empty()
    }

    /// The text. It has placeholders for media and unknown parts only if there is no other text.
    fn text(&self) -> String {
        let has_text = self.texts.iter().any(|text| !text.is_empty());
        if has_text { self.texts.join("\n") } else { self.placeholders.join("\n") }
    }
}

impl Draft {
    /// The resulting messages, and notes about parts that were not understood.
    pub(super) fn into_messages(
        mut self,
        role: Role,
        notes: &mut Vec<NoteKind>,
    ) -> Result<Vec<ForeignMessage>, FormatError> {
        let calls = std::mem::take(&mut self.calls);
        let parts = std::mem::take(&mut self.parts);
        let is_own_result =
            role == Role::Tool && !parts.iter().any(|(_, part)| matches!(part, Part::Result(_)));
        let mut pieces = pieces(parts, calls, notes);
        if role == Role::Tool && !is_own_result {
            pieces = with_texts_of_tool(pieces);
        }
        if matches!(role, Role::User | Role::Tool) {
            // Results come before the user's text, because they answer the previous message.
            pieces.sort_by_key(|piece| matches!(piece, MessagePiece::Said(_)));
        }
        let count: usize = pieces
            .iter()
            .map(|piece| if let MessagePiece::Said(said) = piece { said.calls.len() } else { 0 })
            .sum();
        if count > MAX_CALLS {
            return Err(FormatError::TooManyCalls(count));
        }
        if pieces.is_empty() {
            pieces.push(MessagePiece::Said(Said::default()));
        }
        let mut messages = Vec::with_capacity(pieces.len());
        for (index, piece) in pieces.into_iter().enumerate() {
            let id = match (&self.id, index) {
                (Some(id), 1..) => Some(format!("{id}-{}", index + 1)),
                (id, _) => id.clone(),
            };
            // Data of the whole message is kept with its first piece.
            let mut extra = std::mem::take(&mut self.extra);
            let mut message = ForeignMessage {
                index: 0,
                id,
                role,
                content: String::new(),
                tool_calls: None,
                tool_call_id: None,
                created_at: self.created_at,
                metadata: Metadata::EMPTY,
                token_count: self.token_count.take(),
            };
            match piece {
                MessagePiece::Said(said) => {
                    message.content = said.text();
                    if !said.calls.is_empty() {
                        // Only assistant messages have calls, even if the call was found in another
                        // message.
                        message.role = Role::Assistant;
                    } else if is_own_result {
                        message.tool_call_id = self.answers.take();
                    }
                    let reasoning = said.reasoning.join("\n\n");
                    if !reasoning.is_empty() && !extra.contains_key("reasoning") {
                        extra.insert("reasoning".to_owned(), Value::String(reasoning));
                    }
                    message.tool_calls = (!said.calls.is_empty()).then_some(Value::Array(said.calls));
                }
                MessagePiece::Result(result) => {
                    message.role = Role::Tool;
                    message.content = result.content.text;
                    if !result.content.kept.is_empty() {
                        let parts = extra.entry("content_parts").or_insert_with(|| json!([]));
                        if let Value::Array(parts) = parts {
                            parts.extend(result.content.kept);
                        }
                    }
                    message.tool_call_id =
                        Some(result.id).filter(|id| !id.is_empty()).or_else(|| self.answers.clone());
                    if let Some(name) = result.name {
                        extra.entry("name").or_insert(Value::String(name));
                    }
                    if result.is_error {
                        extra.entry("is_error").or_insert(Value::Bool(true));
                    }
                }
            }
            message.metadata = kept(extra, notes)?;
            messages.push(message);
        }
        Ok(messages)
    }
}

fn pieces(parts: Vec<(usize, Part)>, calls: Vec<Value>, notes: &mut Vec<NoteKind>) -> Vec<MessagePiece> {
    let mut pieces = Vec::new();
    let mut said = Said::default();
    let mut has_answers = false;
    let known: HashSet<String> =
        calls.iter().filter_map(|call| call["id"].as_str().map(str::to_owned)).collect();
    let mut fields = Some(calls);
    for (index, part) in parts {
        if let Part::Result(result) = part {
            // The first results answer the calls from fields.
            said.calls.extend(fields.take().into_iter().flatten());
            if !said.is_empty() {
                pieces.push(MessagePiece::Said(std::mem::take(&mut said)));
            }
            pieces.push(MessagePiece::Result(result));
            has_answers = true;
            continue;
        }
        match part {
            Part::Text(text) => said.texts.push(text),
            Part::Reasoning(text) => said.reasoning.extend(Some(text).filter(|text| !text.is_empty())),
            // LangChain has the same call both among the parts and in a field.
            Part::Call { id, .. } if known.contains(&id) => {}
            Part::Call { id, name, arguments } => {
                said.calls.push(json!({"id": id, "name": name, "arguments": arguments}));
            }
            Part::Medium(placeholder) => said.placeholders.push(placeholder),
            Part::Unknown(UnknownPart { kind, text }) => {
                let text_from = text.as_ref().map(|(field, _)| *field);
                notes.push(NoteKind::UnknownPart { part: index, kind: kind.clone(), text_from });
                match text {
                    Some((_, text)) => said.texts.push(text),
                    None => said.placeholders.push(format!("[{kind}]")),
                }
            }
            Part::Mark | Part::Result(_) => {}
        }
    }
    said.calls.extend(fields.take().into_iter().flatten());
    // An empty text after the results is dropped.
    let says_nothing = said.text().is_empty() && said.reasoning.is_empty() && said.calls.is_empty();
    if !(said.is_empty() || has_answers && says_nothing) {
        pieces.push(MessagePiece::Said(said));
    }
    pieces
}

/// In a tool message, text next to results comes from the tool. It belongs to the result before it,
/// or to the first one.
fn with_texts_of_tool(pieces: Vec<MessagePiece>) -> Vec<MessagePiece> {
    let mut kept = Vec::with_capacity(pieces.len());
    let mut before = Vec::new();
    for piece in pieces {
        match piece {
            MessagePiece::Said(said) if said.calls.is_empty() && said.reasoning.is_empty() => {
                match kept.last_mut() {
                    Some(MessagePiece::Result(result)) => append(&mut result.content.text, &said.text()),
                    _ => before.push(said.text()),
                }
            }
            MessagePiece::Result(mut result) => {
                if !before.is_empty() {
                    let mut text = std::mem::take(&mut before).join("\n");
                    append(&mut text, &result.content.text);
                    result.content.text = text;
                }
                kept.push(MessagePiece::Result(result));
            }
            said @ MessagePiece::Said(_) => kept.push(said),
        }
    }
    kept
}

fn append(text: &mut String, more: &str) {
    if !text.is_empty() && !more.is_empty() {
        text.push('\n');
    }
    text.push_str(more);
}

/// The metadata, without fields that cannot be stored.
fn kept(mut map: Map<String, Value>, notes: &mut Vec<NoteKind>) -> Result<Metadata, FormatError> {
    match Metadata::new(map.clone()) {
        Ok(metadata) => return Ok(metadata),
        Err(InvalidMetadata::TooDeep) => {}
        Err(other) => return Err(other.into()),
    }
    let is_too_deep = |(key, value): (&String, &Value)| {
        let alone = Map::from_iter([(key.clone(), value.clone())]);
        (Metadata::new(alone) == Err(InvalidMetadata::TooDeep)).then(|| key.clone())
    };
    let too_deep: Vec<String> = map.iter().filter_map(is_too_deep).collect();
    for field in too_deep {
        map.remove(&field);
        notes.push(NoteKind::TooDeep { field });
    }
    Ok(Metadata::new(map)?)
}

/// Reads a list of calls in OpenAI's, LangChain's or the stored form.
pub(super) fn calls_of(list: &Value) -> Result<Vec<Value>, FormatError> {
    let call = |call: &Value| {
        let map = call.as_object().ok_or(FormatError::Calls)?;
        let inner = map.get("function").and_then(Value::as_object).unwrap_or(map);
        let id = text_at(map, &CALL_IDS).unwrap_or_default();
        let name = text_at(inner, &NAMES).unwrap_or_default();
        let said = first_of(inner, &["arguments", "args", "input"]);
        let mut stored = json!({"id": id, "name": name, "arguments": arguments(said)});
        // In the stored form of a message without a turn, results are in the objects of their
        // calls.
        if let Some(result) = map.get("result").filter(|result| !result.is_null()) {
            stored["result"] = json!(result_content(result).text);
        }
        Ok(stored)
    };
    list.as_array().ok_or(FormatError::Calls)?.iter().map(call).collect()
}

/// The non-empty fields of the message, except these keys.
pub(super) fn rest(map: &Map<String, Value>, without: &[&str]) -> Map<String, Value> {
    let is_rest = |(key, value): &(&String, &Value)| !without.contains(&key.as_str()) && !is_empty(value);
    map.iter().filter(is_rest).map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn is_empty(value: &Value) -> bool {
    value.is_null()
        || value.as_array().is_some_and(Vec::is_empty)
        || value.as_object().is_some_and(Map::is_empty)
}
