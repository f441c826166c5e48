//! An answer of which only the history is left, as chunks again, so that every protocol can tell it.
//!
//! Entry type: [`StoredAnswer`]. The steps, texts, calls and results are those of the answer as it was spoken, so that objects and
//! messages come out the same; the pieces are not, because the history does not keep them: a stream is not continued with
//! these chunks, it is told from its beginning (or by its end alone, see [`crate::Protocol::recall`]).

use model::{Chunk, ChunkKind, Metadata, Position, Role};
use serde_json::{Map, Value, json};

use crate::Happening;

/// A message of a turn after its input, as the history has it.
#[derive(Debug, Clone, Copy)]
pub struct StoredMessage<'a> {
    /// Assistant or tool.
    pub role: Role,
    /// Its text; of a tool message, the result.
    pub content: &'a str,
    /// Of an assistant message that calls tools: `[{"id", "name", "arguments"}]`.
    pub tool_calls: Option<&'a Value>,
    /// Of a tool message: the call that it answers.
    pub tool_call_id: Option<&'a str>,
    /// Its metadata.
    pub metadata: &'a Metadata,
}

/// A whole answer.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredAnswer {
    attempt: u32,
    chunks: Vec<Chunk>,
    is_stopped: bool,
    position: Position,
}

impl StoredAnswer {
    /// From the messages of the turn after its input, in their order. `attempt` and `position` are those of the last one.
    pub fn new<'a>(
        messages: impl IntoIterator<Item = StoredMessage<'a>>,
        attempt: u32,
        position: Position,
    ) -> Self {
        let mut writer = Writer::default();
        let mut last = None;
        for message in messages {
            writer.message(&message);
            last = Some(message.metadata);
        }
        let is_stopped = last.is_some_and(|metadata| has_mark(metadata, "stopped"));
        if !is_stopped {
            writer.finish(last.unwrap_or(&Metadata::EMPTY));
        }
        Self { attempt, chunks: writer.chunks, is_stopped, position }
    }

    /// What happened, one after another.
    pub fn happenings(&self) -> impl Iterator<Item = Happening<'_>> {
        let attempt = self.attempt;
        let chunks = self.chunks.iter().map(move |chunk| {
            let role = if chunk.kind == ChunkKind::ToolResult { Role::Tool } else { Role::Assistant };
            Happening::Chunk { attempt, role, chunk }
        });
        let end = match self.is_stopped {
            true => Happening::Stopped,
            false => Happening::Complete { position: self.position },
        };
        std::iter::once(Happening::Opened).chain(chunks).chain([end])
    }
}

#[derive(Default)]
struct Writer {
    chunks: Vec<Chunk>,
}

impl Writer {
    fn message(&mut self, message: &StoredMessage<'_>) {
        if message.role == Role::Tool {
            // A result that was made up for a call without one is made up again.
            if !has_mark(message.metadata, "missing") && !has_mark(message.metadata, "stopped") {
                let mut metadata = json!({"tool_call_id": message.tool_call_id.unwrap_or_default()});
                if has_mark(message.metadata, "is_error") {
                    metadata["is_error"] = true.into();
                }
                self.push(ChunkKind::ToolResult, message.content, fields(metadata));
            }
            return;
        }
        if let Some(reasoning) = message.metadata.get("reasoning").and_then(Value::as_str) {
            self.push(ChunkKind::Reasoning, reasoning, Metadata::EMPTY);
        }
        // An empty one begins its step, too.
        self.push(ChunkKind::Content, message.content, Metadata::EMPTY);
        for call in message.tool_calls.and_then(Value::as_array).into_iter().flatten() {
            let text = |key: &str| call.get(key).and_then(Value::as_str).unwrap_or_default();
            let metadata = json!({"tool_call_id": text("id"), "tool_name": text("name")});
            self.push(ChunkKind::ToolCall, text("arguments"), fields(metadata));
        }
    }

    /// The final chunk; reasoning has been said.
    fn finish(&mut self, metadata: &Metadata) {
        let mut map = metadata.as_map().cloned().unwrap_or_default();
        map.remove("reasoning");
        self.push(ChunkKind::Content, "", Metadata::new(map).unwrap_or_default());
        if let Some(last) = self.chunks.last_mut() {
            last.is_final = true;
        }
    }

    fn push(&mut self, kind: ChunkKind, text: &str, metadata: Metadata) {
        let id = self.chunks.len() as u32;
        self.chunks.push(Chunk { kind, metadata, ..Chunk::content(id, text, false) });
    }
}

fn fields(fields: Value) -> Metadata {
    let map = if let Value::Object(map) = fields { map } else { Map::new() };
    Metadata::new(map).unwrap_or_default()
}

fn has_mark(metadata: &Metadata, mark: &str) -> bool {
    metadata.get(mark) == Some(&Value::Bool(true))
}
