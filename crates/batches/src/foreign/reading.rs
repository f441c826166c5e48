//! Reads a thread: matches calls and results, even without ids, and moves reasoning to its answer.

use std::collections::{BTreeMap, HashSet};

use model::{Metadata, Role, Timestamp};
use serde_json::{Map, Value, json};

use super::notes::{ImportNote, LeftOut, LeftOutKind, NoteKind};
use super::open_calls::{CallKey, OpenCall, OpenCalls};
use super::thread::{ForeignMessage, MAX_CALLS};

/// A chat in the export of a chat service.
#[derive(Debug)]
pub(super) struct SourceThread<'a> {
    pub(super) id: Option<String>,
    pub(super) title: Option<String>,
    pub(super) created_at: Option<Timestamp>,
    /// True if the chat does not name its current branch.
    pub(super) is_guessed: bool,
    /// Number of messages outside the current branch.
    pub(super) others: u64,
    /// Messages of the current branch.
    pub(super) messages: Vec<&'a Value>,
    /// The person's instructions to the model for this chat.
    pub(super) instructions: Option<String>,
}

/// The chats of a file: the value itself, a list, or a list under one of the usual names.
pub(super) fn chats_of(input: &Value, is_chat: fn(&Value) -> bool) -> Option<Vec<&Value>> {
    if is_chat(input) {
        return Some(vec![input]);
    }
    let lists = ["conversations", "chats", "data", "items"];
    let list = input.as_array().or_else(|| lists.iter().find_map(|key| input.get(*key)?.as_array()))?;
    Some(list.iter().collect())
}

/// The result of reading a foreign message.
#[derive(Debug, Default)]
pub(super) struct ReadMessage {
    pub(super) messages: Vec<ForeignMessage>,
    pub(super) notes: Vec<NoteKind>,
    /// True if the message continues the previous message with a call, or continues the previous
    /// result.
    pub(super) joins: bool,
}

impl ReadMessage {
    /// The result for a value that is not a message.
    pub(super) fn none() -> Self {
        Self { notes: vec![NoteKind::NoMessage], ..Self::default() }
    }
}

/// Selects the calls without a result that are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GivenUp {
    /// All of them: chats continue with a new input.
    All,
    /// Calls after which the model has answered. Other calls may still get their result.
    Answered,
}

/// The messages of a thread read so far.
#[derive(Debug, Default)]
pub(super) struct ThreadReader {
    pub(super) messages: Vec<ForeignMessage>,
    pub(super) notes: Vec<ImportNote>,
    pub(super) left_out: LeftOut,
    open: OpenCalls,
    /// Messages that were merged into another one, by its index, without the parts that were
    /// merged.
    joined: BTreeMap<usize, Vec<ForeignMessage>>,
    /// Texts in the input that look like a generated id.
    taken_ids: HashSet<String>,
    made_ids: usize,
}

impl ThreadReader {
    /// Reserves ids in these messages, so that generated ids differ from them.
    pub(super) fn avoid_ids<'a>(&mut self, messages: impl IntoIterator<Item = &'a Value>) {
        messages.into_iter().for_each(|message| taken_ids(message, &mut self.taken_ids));
    }

    /// Closes the first open call with this key and returns its id.
    pub(super) fn answered_call(&mut self, key: Option<&CallKey>) -> Option<String> {
        self.open.close_first(key)
    }

    /// Adds a message. Calls without an id get one; a result without one answers the open call of
    /// its tool.
    pub(super) fn push(&mut self, mut message: ForeignMessage, joins: bool) {
        if message.role == Role::Tool {
            match message.tool_call_id.as_deref().filter(|id| !id.is_empty()) {
                Some(id) => self.open.close_id(id),
                None if joins => return self.join_result(message),
                None => {
                    let tool = message.metadata.get("name").and_then(Value::as_str);
                    let key = tool.map(|tool| CallKey::Name(tool.to_owned()));
                    message.tool_call_id = self.answered_call(key.as_ref());
                }
            }
        }
        self.make_ids(&mut message);
        let opened = open_calls(&message);
        let before = self.place(message, joins);
        let at = self.messages.len().saturating_sub(1);
        for (index, id, name) in opened {
            self.open.open(OpenCall { message: at, call: before + index, id, name });
        }
    }

    fn make_ids(&mut self, message: &mut ForeignMessage) {
        for call in message.tool_calls.iter_mut().filter_map(Value::as_array_mut).flatten() {
            while call["id"].as_str().is_none_or(str::is_empty) {
                self.made_ids += 1;
                let id = format!("call-{}", self.made_ids);
                if !self.taken_ids.contains(&id) {
                    call["id"] = Value::String(id);
                }
            }
        }
    }

    /// Adds the message to the thread, or merges it into the last message. Returns the number of
    /// calls that the resulting message had before.
    fn place(&mut self, mut message: ForeignMessage, joins: bool) -> usize {
        let at = self.messages.len().saturating_sub(1);
        let both = |last: &ForeignMessage| last.role == Role::Assistant && message.role == Role::Assistant;
        let Some(last) = self.messages.last_mut().filter(|last| both(last)) else {
            self.messages.push(message);
            return 0;
        };
        let before = count(last);
        if joins && before + count(&message) <= MAX_CALLS {
            if let Some(Value::Array(more)) = message.tool_calls.take() {
                match &mut last.tool_calls {
                    Some(Value::Array(calls)) => calls.extend(more),
                    none => *none = Some(Value::Array(more)),
                }
            }
            self.joined.entry(at).or_default().push(message);
            return before;
        }
        if is_only_reasoning(last) {
            let replaced = replaced_by(last, &message);
            *last = with_reasoning_of(last, message);
            self.joined.entry(at).or_default().extend(replaced);
        } else {
            self.messages.push(message);
        }
        0
    }

    fn join_result(&mut self, mut message: ForeignMessage) {
        let at = self.messages.len().saturating_sub(1);
        let Some(last) = self.messages.last_mut().filter(|last| last.role == Role::Tool) else {
            return self.left_out.add(LeftOutKind::LooseResult, 1);
        };
        if !last.content.is_empty() && !message.content.is_empty() {
            last.content.push_str("\n\n");
        }
        last.content.push_str(&std::mem::take(&mut message.content));
        self.joined.entry(at).or_default().push(message);
    }

    /// Ends the thread and appends the last notes.
    pub(super) fn finish(&mut self, given_up: GivenUp) {
        for (at, joined) in std::mem::take(&mut self.joined) {
            if let Some(message) = self.messages.get_mut(at) {
                keep_joined(message, joined, &mut self.notes);
            }
        }
        self.drop_unanswered(given_up);
    }

    /// Moves calls without a result into the metadata, so that these calls do not make their turn
    /// incomplete.
    fn drop_unanswered(&mut self, given_up: GivenUp) {
        let last_answer = self.messages.iter().rposition(is_answer);
        for (at, open) in self.open.by_message() {
            let is_given_up = given_up == GivenUp::All || last_answer.is_some_and(|answer| answer > at);
            let Some(message) = self.messages.get_mut(at).filter(|_| is_given_up) else { continue };
            let Some(Value::Array(calls)) = message.tool_calls.take() else { continue };
            let (mut unanswered, mut answered) = (Vec::new(), Vec::new());
            for (index, call) in calls.into_iter().enumerate() {
                if open.contains(&index) { unanswered.push(call) } else { answered.push(call) }
            }
            message.tool_calls = (!answered.is_empty()).then_some(Value::Array(answered));
            for call in &unanswered {
                let name = call["name"].as_str().unwrap_or_default().to_owned();
                self.notes.push(note(message, NoteKind::Unanswered { name }));
            }
            set(message, "unanswered_calls", Value::Array(unanswered), &mut self.notes);
        }
    }
}

fn note(message: &ForeignMessage, what: NoteKind) -> ImportNote {
    ImportNote { index: message.index, id: message.id.clone(), what }
}

/// Collects texts such as `call-7` anywhere in the value.
fn taken_ids(value: &Value, taken: &mut HashSet<String>) {
    match value {
        Value::String(text) if text.starts_with("call-") && text.len() <= 32 => {
            taken.insert(text.clone());
        }
        Value::Array(items) => items.iter().for_each(|item| taken_ids(item, taken)),
        Value::Object(map) => map.values().for_each(|value| taken_ids(value, taken)),
        _ => {}
    }
}

fn count(message: &ForeignMessage) -> usize {
    message.tool_calls.as_ref().and_then(Value::as_array).map_or(0, Vec::len)
}

/// The calls of a message that have no result in their objects: index, id and name.
fn open_calls(message: &ForeignMessage) -> Vec<(usize, String, String)> {
    let text = |call: &Value, key: &str| call[key].as_str().unwrap_or_default().to_owned();
    let calls = message.tool_calls.iter().filter_map(Value::as_array).flatten().enumerate();
    let open = calls.filter(|(_, call)| call.get("result").is_none());
    open.map(|(index, call)| (index, text(call, "id"), text(call, "name"))).collect()
}

fn is_only_reasoning(message: &ForeignMessage) -> bool {
    message.content.is_empty() && message.tool_calls.is_none() && message.metadata.get("reasoning").is_some()
}

/// True if the model has continued: it wrote text or ended without calls.
fn is_answer(message: &ForeignMessage) -> bool {
    message.role == Role::Assistant && (!message.content.is_empty() || message.tool_calls.is_none())
}

/// The previous message, with only those of its metadata that the other message replaces.
fn replaced_by(before: &ForeignMessage, message: &ForeignMessage) -> Option<ForeignMessage> {
    let is_replaced = |(key, value): &(&String, &Value)| {
        *key != "reasoning" && message.metadata.get(key).is_some_and(|other| other != *value)
    };
    let map: Map<String, Value> = before
        .metadata
        .as_map()
        .into_iter()
        .flatten()
        .filter(is_replaced)
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let metadata = Metadata::new(map).unwrap_or_default();
    (!metadata.is_empty()).then(|| ForeignMessage { metadata, ..before.clone() })
}

/// The message, with the previous message's reasoning before its own.
fn with_reasoning_of(before: &ForeignMessage, mut message: ForeignMessage) -> ForeignMessage {
    let text = |message: &ForeignMessage| Some(message.metadata.get("reasoning")?.as_str()?.to_owned());
    let said = text(before).into_iter().chain(text(&message)).filter(|text| !text.is_empty());
    let said = said.collect::<Vec<_>>().join("\n\n");
    let mut map = before.metadata.as_map().cloned().unwrap_or_default();
    map.extend(message.metadata.as_map().cloned().unwrap_or_default());
    match said.is_empty() && !is_only_reasoning(&message) {
        true => map.remove("reasoning"),
        false => map.insert("reasoning".to_owned(), Value::String(said)),
    };
    // Both maps were validated when they were read.
    message.metadata = Metadata::new(map).unwrap_or_default();
    message
}

/// Keeps the remaining data of merged messages: media among the parts, other data as a list.
fn keep_joined(message: &mut ForeignMessage, joined: Vec<ForeignMessage>, notes: &mut Vec<ImportNote>) {
    let mut parts = match message.metadata.get("content_parts") {
        Some(Value::Array(parts)) => parts.clone(),
        _ => Vec::new(),
    };
    let (had_parts, mut records) = (parts.len(), Vec::new());
    for joined in joined {
        let mut map = joined.metadata.as_map().cloned().unwrap_or_default();
        if let Some(Value::Array(more)) = map.remove("content_parts") {
            parts.extend(more);
        }
        let mut record = Map::new();
        record.extend(joined.id.map(|id| ("id".to_owned(), Value::String(id))));
        record.extend(joined.created_at.map(|at| ("created_at".to_owned(), json!(at.0))));
        if !map.is_empty() {
            record.insert("metadata".to_owned(), Value::Object(map));
        }
        if !record.is_empty() {
            records.push(Value::Object(record));
        }
    }
    if parts.len() > had_parts {
        set(message, "content_parts", Value::Array(parts), notes);
    }
    if !records.is_empty() {
        set(message, "joined_messages", Value::Array(records), notes);
    }
}

fn set(message: &mut ForeignMessage, key: &str, value: Value, notes: &mut Vec<ImportNote>) {
    let mut map: Map<String, Value> = message.metadata.as_map().cloned().unwrap_or_default();
    map.insert(key.to_owned(), value);
    match Metadata::new(map) {
        Ok(new) => message.metadata = new,
        // Metadata at the depth limit is too deep when it is nested in the list.
        Err(_) => notes.push(note(message, NoteKind::TooDeep { field: key.to_owned() })),
    }
}
