//! A thread while it is read: calls and results find each other, also where they have no ids, and reasoning moves to its answer.

use model::{Metadata, Role, Timestamp};
use serde_json::{Map, Value};

use super::notes::{ImportNote, LeftOut, LeftOutKind, NoteKind};
use super::thread::ForeignMessage;

/// A chat as it is found in the export of a chat service.
#[derive(Debug)]
pub(super) struct SourceThread<'a> {
    pub(super) id: Option<String>,
    pub(super) title: Option<String>,
    pub(super) created_at: Option<Timestamp>,
    /// The chat does not name its current branch.
    pub(super) is_guessed: bool,
    /// Messages that are not of the current branch.
    pub(super) others: u64,
    /// Those of the current branch.
    pub(super) messages: Vec<&'a Value>,
    /// The person's instructions to the model for this chat.
    pub(super) instructions: Option<String>,
}

/// The chats of a file: the one itself, a list, or a list under one of the usual names.
pub(super) fn chats_of(input: &Value, is_chat: fn(&Value) -> bool) -> Option<Vec<&Value>> {
    if is_chat(input) {
        return Some(vec![input]);
    }
    let lists = ["conversations", "chats", "data", "items"];
    let list = input.as_array().or_else(|| lists.iter().find_map(|key| input.get(*key)?.as_array()))?;
    Some(list.iter().collect())
}

/// What a foreign message becomes.
#[derive(Debug, Default)]
pub(super) struct ReadMessage {
    pub(super) messages: Vec<ForeignMessage>,
    pub(super) notes: Vec<NoteKind>,
    /// A call that belongs to the message before it, or more of the result before it.
    pub(super) joins: bool,
}

impl ReadMessage {
    /// What was read is no message.
    pub(super) fn none() -> Self {
        Self { notes: vec![NoteKind::NoMessage], ..Self::default() }
    }
}

/// The messages of a thread that were read so far.
#[derive(Debug, Default)]
pub(super) struct ThreadReader {
    pub(super) messages: Vec<ForeignMessage>,
    pub(super) notes: Vec<ImportNote>,
    pub(super) left_out: LeftOut,
    /// Calls without a result yet: their ids and names.
    open: Vec<(String, String)>,
    made_ids: usize,
}

impl ThreadReader {
    /// The open call that a result of this tool answers: one of that name (`matches`), or the first.
    pub(super) fn answered_call(&mut self, matches: impl Fn(&str) -> bool) -> Option<String> {
        let at = self.open.iter().position(|(_, name)| matches(name))?;
        Some(self.open.remove(at).0)
    }

    /// Adds what a message has become. Calls without an id get one; a result without one answers the open call of its tool.
    pub(super) fn push(&mut self, mut message: ForeignMessage, joins: bool) {
        if message.role == Role::Tool {
            match message.tool_call_id.as_deref().filter(|id| !id.is_empty()) {
                Some(id) => self.open.retain(|(open, _)| open != id),
                None if joins => return self.join_result(message),
                None => {
                    let tool = message.metadata.get("name").and_then(Value::as_str).map(str::to_owned);
                    message.tool_call_id =
                        self.answered_call(|name| tool.as_deref().is_none_or(|tool| tool == name));
                }
            }
        }
        self.open_calls(&mut message);
        let last = self.messages.last_mut().filter(|last| {
            last.role == Role::Assistant
                && message.role == Role::Assistant
                && (joins || is_only_reasoning(last))
        });
        match last {
            Some(last) if joins => {
                let Some(Value::Array(more)) = message.tool_calls else { return };
                match &mut last.tool_calls {
                    Some(Value::Array(calls)) => calls.extend(more),
                    none => *none = Some(Value::Array(more)),
                }
            }
            Some(last) => *last = with_reasoning_of(last, message),
            None => self.messages.push(message),
        }
    }

    fn open_calls(&mut self, message: &mut ForeignMessage) {
        for call in message.tool_calls.iter_mut().filter_map(Value::as_array_mut).flatten() {
            if call["id"].as_str().is_none_or(str::is_empty) {
                self.made_ids += 1;
                call["id"] = Value::String(format!("call-{}", self.made_ids));
            }
            let text = |key: &str| call[key].as_str().unwrap_or_default().to_owned();
            if call.get("result").is_none() {
                self.open.push((text("id"), text("name")));
            }
        }
    }

    fn join_result(&mut self, message: ForeignMessage) {
        match self.messages.last_mut().filter(|last| last.role == Role::Tool) {
            Some(_) if message.content.is_empty() => {}
            Some(last) if last.content.is_empty() => last.content = message.content,
            Some(last) => last.content = format!("{}\n\n{}", last.content, message.content),
            None => self.left_out.add(LeftOutKind::LooseResult, 1),
        }
    }

    /// Calls that were given up do not keep their turn from being complete: those without a result move into the metadata.
    pub(super) fn drop_unanswered(&mut self) {
        for (index, message) in self.messages.iter_mut().enumerate() {
            let is_open = |call: &Value| self.open.iter().any(|(id, _)| call["id"] == id.as_str());
            let Some(Value::Array(calls)) = message.tool_calls.take() else { continue };
            let (open, answered): (Vec<Value>, Vec<Value>) = calls.into_iter().partition(is_open);
            message.tool_calls = (!answered.is_empty()).then_some(Value::Array(answered));
            if open.is_empty() {
                continue;
            }
            for call in &open {
                let name = call["name"].as_str().unwrap_or_default().to_owned();
                self.notes.push(ImportNote {
                    index,
                    id: message.id.clone(),
                    what: NoteKind::Unanswered { name },
                });
            }
            set(&mut message.metadata, "unanswered_calls", Value::Array(open));
        }
    }
}

fn is_only_reasoning(message: &ForeignMessage) -> bool {
    message.content.is_empty() && message.tool_calls.is_none() && message.metadata.get("reasoning").is_some()
}

/// The message, with the reasoning of the one before it before its own.
fn with_reasoning_of(before: &ForeignMessage, mut message: ForeignMessage) -> ForeignMessage {
    let text = |message: &ForeignMessage| Some(message.metadata.get("reasoning")?.as_str()?.to_owned());
    let said = text(before).into_iter().chain(text(&message)).collect::<Vec<_>>().join("\n\n");
    let mut map = before.metadata.as_map().cloned().unwrap_or_default();
    map.extend(message.metadata.as_map().cloned().unwrap_or_default());
    // Both were checked before.
    message.metadata = Metadata::new(map).unwrap_or_default();
    set(&mut message.metadata, "reasoning", Value::String(said));
    message
}

fn set(metadata: &mut Metadata, key: &str, value: Value) {
    let mut map: Map<String, Value> = metadata.as_map().cloned().unwrap_or_default();
    map.insert(key.to_owned(), value);
    // Texts and calls were checked before, and are not deep.
    if let Ok(new) = Metadata::new(map) {
        *metadata = new;
    }
}
