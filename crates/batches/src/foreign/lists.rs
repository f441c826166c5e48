//! Finds the list of messages in an input, and its order.

use serde_json::{Map, Value};

use super::notes::{ImportNote, NoteKind};
use super::openai::role_of;
use super::times::time_of;

/// A list of messages.
#[derive(Debug)]
pub(super) struct SourceList<'a> {
    /// The messages with their index in the input, the oldest first.
    pub(super) messages: Vec<(usize, &'a Value)>,
    /// Notes about the whole list.
    pub(super) notes: Vec<ImportNote>,
}

/// The list of messages, wherever the input has it.
pub(super) fn list_of(input: &Value) -> Option<&Vec<Value>> {
    let places = [
        "/messages",
        "/channel_values/messages",
        "/checkpoint/channel_values/messages",
        "/values/messages",
        "/contents",
        "/input",
        "/items",
        "/data",
    ];
    input.as_array().or_else(|| places.iter().find_map(|place| input.pointer(place)?.as_array()))
}

/// Reads the list in chronological order. An API that returns a page of a list puts the newest
/// first by default.
pub(super) fn source_list(input: &Value) -> Option<SourceList<'_>> {
    let list = list_of(input)?;
    let mut messages: Vec<(usize, &Value)> = list.iter().enumerate().collect();
    let mut notes = Vec::new();
    let mut note = |what| notes.push(ImportNote { index: 0, id: None, what });
    if ["has_more", "hasMore"].iter().any(|key| input.get(*key) == Some(&Value::Bool(true))) {
        note(NoteKind::HasMore);
    }
    if is_page(input, list) && is_newest_first(list) {
        note(NoteKind::NewestFirst);
        messages.reverse();
    }
    Some(SourceList { messages, notes })
}

/// True if the list is an API response, or the list of its elements.
fn is_page(input: &Value, list: &[Value]) -> bool {
    let is_of_page =
        |message: &Value| message["object"].as_str().is_some_and(|kind| kind.starts_with("thread."));
    input["object"] == "list"
        || input["data"].is_array()
        || input["items"].is_array()
        || list.iter().any(is_of_page)
}

/// True if the order is newest first. This is decided by times, or else by calls and their results,
/// or else by the roles of the first and last message.
fn is_newest_first(list: &[Value]) -> bool {
    let times: Vec<_> = list.iter().filter_map(Value::as_object).filter_map(time_of).collect();
    if times.first() != times.last() {
        return times.is_sorted_by(|a, b| a >= b);
    }
    if let Some(is_call_first) = list.iter().filter_map(Value::as_object).find_map(is_call) {
        return !is_call_first;
    }
    let said = |message: Option<&Value>| message.and_then(|message| role_of(message.get("role")?.as_str()?));
    said(list.first()) == Some(model::Role::Assistant) && said(list.last()) == Some(model::Role::User)
}

/// `Some(true)` for a call, `Some(false)` for a result.
fn is_call(message: &Map<String, Value>) -> Option<bool> {
    let kind = message.get("type").and_then(Value::as_str).unwrap_or_default();
    let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
    let has_calls =
        message.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty());
    match () {
        () if kind.ends_with("_call_output") || role == "tool" => Some(false),
        () if kind == "function_call" || kind == "custom_tool_call" || has_calls => Some(true),
        () => None,
    }
}
