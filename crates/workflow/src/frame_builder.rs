//! Turns parts into numbered chunks: joins text of one kind, splits large text and counts steps.
//!
//! Pure: the writer decides when a frame ends.

use std::sync::Arc;

use model::{Chunk, ChunkKind, Halves, IncomingChunk, ListedCall, MessageId, Metadata, ModelCall, Role};
use serde_json::{Map, Value, json};

use crate::engine_event::{CallName, Failure};

/// Maximum text of a chunk in bytes. By default, owners accept 64 KiB including the metadata.
const CHUNK_BYTES: usize = 16 << 10;
/// A frame with this many bytes is published without waiting for more.
const FRAME_BYTES: usize = 128 << 10;

/// The chunks of one attempt. Published chunks have their numbers; later ones may still grow.
pub(crate) struct FrameBuilder {
    message: MessageId,
    attempt: u32,
    correlation_id: Option<Box<str>>,
    next_id: u32,
    step: u32,
    /// The last chunk was a tool result: the next text of the model belongs to a new step.
    results_came: bool,
    pieces: Vec<Piece>,
    bytes: usize,
    /// Whether the last piece may take more text.
    is_open: bool,
}

struct Piece {
    kind: ChunkKind,
    step: u32,
    text: String,
    metadata: Map<String, Value>,
    is_final: bool,
}

impl FrameBuilder {
    pub(crate) fn new(message: MessageId, attempt: u32, correlation_id: Option<Box<str>>) -> Self {
        Self {
            message,
            attempt,
            correlation_id,
            next_id: 0,
            step: 0,
            results_came: false,
            pieces: Vec::new(),
            bytes: 0,
            is_open: false,
        }
    }

    pub(crate) fn text(&mut self, text: &str) {
        if !text.is_empty() {
            self.add(ChunkKind::Content, text, Map::new());
        }
    }

    pub(crate) fn reasoning(&mut self, text: &str) {
        if !text.is_empty() {
            self.add(ChunkKind::Reasoning, text, Map::new());
        }
    }

    pub(crate) fn call(&mut self, call: &CallName, arguments: &str) {
        self.add(ChunkKind::ToolCall, arguments, call_metadata(call));
    }

    pub(crate) fn result(&mut self, call: &CallName, text: &str, is_error: bool) {
        let mut metadata = call_metadata(call);
        if is_error {
            metadata.insert("is_error".to_owned(), json!(true));
        }
        self.add(ChunkKind::ToolResult, text, metadata);
    }

    /// Adds an empty chunk, which shows that the turn is still being worked on.
    pub(crate) fn keepalive(&mut self) {
        self.push(ChunkKind::Metadata, String::new(), Map::new());
        self.close();
    }

    /// Adds a chunk that tells why the answer waits.
    pub(crate) fn notice(&mut self, metadata: Map<String, Value>) {
        self.push(ChunkKind::Metadata, String::new(), metadata);
        self.close();
    }

    /// Adds a chunk that reports the usage of a model call. It is sent at once, so that the usage
    /// is known even if the answer fails. Counts are capped: owners refuse a chunk that reports
    /// more than a call may use, and that would fail the answer.
    pub(crate) fn model_call(&mut self, call: &ListedCall) {
        let bounded = ListedCall { id: call.id.clone(), call: call.call.clone().bounded() };
        let calls = json!([bounded.to_value()]);
        self.push(ChunkKind::Metadata, String::new(), Map::from_iter([(ModelCall::KEY.to_owned(), calls)]));
        self.close();
    }

    /// Adds the last chunk of a complete answer.
    pub(crate) fn finish(&mut self, metadata: Map<String, Value>) {
        let is_open_text =
            self.is_open && self.pieces.last().is_some_and(|last| last.kind == ChunkKind::Content);
        if !is_open_text {
            self.push(ChunkKind::Content, String::new(), Map::new());
        }
        if let Some(last) = self.pieces.last_mut() {
            last.metadata = metadata;
            last.is_final = true;
        }
        self.close();
    }

    /// Adds the last chunk of a failed answer.
    pub(crate) fn fail(&mut self, failure: &Failure) {
        self.push(ChunkKind::Error, without_nul(&failure.text), failure.metadata());
        if let Some(last) = self.pieces.last_mut() {
            last.is_final = true;
        }
        self.close();
    }

    /// The next part starts a new chunk.
    pub(crate) fn close(&mut self) {
        self.is_open = false;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    pub(crate) fn is_large(&self) -> bool {
        self.bytes >= FRAME_BYTES
    }

    /// The pieces since the last frame, as numbered chunks.
    pub(crate) fn take_frame(&mut self) -> Vec<IncomingChunk> {
        self.bytes = 0;
        self.close();
        let pieces = std::mem::take(&mut self.pieces);
        pieces.into_iter().map(|piece| self.number(piece)).collect()
    }

    fn number(&mut self, piece: Piece) -> IncomingChunk {
        let id = self.next_id;
        self.next_id += 1;
        let chunk = Chunk {
            id,
            kind: piece.kind,
            is_final: piece.is_final,
            text: piece.text.into(),
            halves: Halves::NONE,
            metadata: keepable(piece.metadata),
            timestamp: None,
            correlation_id: self.correlation_id.clone(),
        };
        IncomingChunk {
            message: self.message.clone(),
            attempt: self.attempt,
            step: piece.step,
            role: if piece.kind == ChunkKind::ToolResult { Role::Tool } else { Role::Assistant },
            chunk: Arc::new(chunk),
        }
    }

    fn add(&mut self, kind: ChunkKind, text: &str, metadata: Map<String, Value>) {
        let text = without_nul(text);
        let mut rest = text.as_str();
        if let Some(last) = self.pieces.last_mut().filter(|last| {
            self.is_open && last.kind == kind && last.metadata == metadata && last.text.len() < CHUNK_BYTES
        }) {
            let (fits, remains) = split_at_most(rest, CHUNK_BYTES - last.text.len());
            last.text.push_str(fits);
            self.bytes += fits.len();
            rest = remains;
            if rest.is_empty() {
                return;
            }
        }
        loop {
            let (piece, remains) = split_at_most(rest, CHUNK_BYTES);
            self.push(kind, piece.to_owned(), metadata.clone());
            rest = remains;
            if rest.is_empty() {
                return;
            }
        }
    }

    fn push(&mut self, kind: ChunkKind, text: String, metadata: Map<String, Value>) {
        let speaks = matches!(kind, ChunkKind::Content | ChunkKind::Reasoning | ChunkKind::ToolCall);
        if speaks && self.results_came {
            self.step += 1;
            self.results_came = false;
        }
        self.results_came |= kind == ChunkKind::ToolResult;
        self.bytes += text.len() + 256;
        self.is_open = true;
        self.pieces.push(Piece { kind, step: self.step, text, metadata, is_final: false });
    }
}

fn call_metadata(call: &CallName) -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("tool_call_id".to_owned(), json!(&*call.id));
    map.insert("tool_name".to_owned(), json!(&*call.tool));
    map
}

/// Postgres cannot store a NUL, so owners refuse it; models and tools may write one.
fn without_nul(text: &str) -> String {
    text.replace('\0', "\u{FFFD}")
}

/// The keys of the metadata are ours, but values may come from a model or an endpoint.
fn keepable(mut map: Map<String, Value>) -> Metadata {
    for value in map.values_mut() {
        if let Value::String(text) = value {
            *text = without_nul(text);
        }
    }
    Metadata::new(map).unwrap_or_default()
}

/// Splits the text after at most `bytes` bytes, at a character boundary.
fn split_at_most(text: &str, bytes: usize) -> (&str, &str) {
    if text.len() <= bytes {
        return (text, "");
    }
    let at = (0..=bytes).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text.split_at(at)
}

#[cfg(test)]
mod tests;
