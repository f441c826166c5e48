//! The native stream read back: how the other protocols get what happens to one message.
//!
//! Every reader of a message, whatever its protocol, so follows the very stream that is ordered, repaired and resumed for native
//! clients, and there is one definition of what a viewer was sent.

use model::{Chunk, ChunkKind, IdRange, MessageId, Metadata, Position, Role};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::StreamError;

/// An event of the native stream.
#[derive(Debug, Clone, PartialEq)]
pub enum NativeEvent {
    /// The next chunk of a message.
    Chunk {
        /// Which message.
        message: MessageId,
        /// The attempt that it comes from.
        attempt: u32,
        /// Who speaks.
        role: Role,
        /// The chunk.
        chunk: Chunk,
        /// It holds what the store has of several chunks.
        is_compacted: bool,
    },
    /// A message starts again.
    Reset {
        /// Which message.
        message: MessageId,
        /// The new attempt.
        attempt: u32,
    },
    /// A message is committed.
    Complete {
        /// Which message.
        message: MessageId,
        /// Where it stands.
        position: Position,
        /// As far as it had come when its turn was stopped.
        is_stopped: bool,
    },
    /// A message was given up.
    Failed {
        /// Which message.
        message: MessageId,
        /// Its place among the ends of the thread.
        position: Position,
        /// Why.
        note: StreamError,
    },
    /// Earlier events of the thread are void: its store went back in time. What follows repeats what is valid.
    Restart,
    /// The gateway stops.
    Drain,
}

/// Reads a native stream piece by piece. Only for streams of this crate: what it does not know it passes over.
#[derive(Debug, Default)]
pub struct NativeEventReader {
    rest: Vec<u8>,
}

impl NativeEventReader {
    /// What is whole with these bytes.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<NativeEvent> {
        self.rest.extend_from_slice(bytes);
        let (mut events, mut start) = (Vec::new(), 0);
        while let Some(length) = self.rest[start..].windows(2).position(|pair| pair == b"\n\n") {
            events.extend(event(&self.rest[start..start + length]));
            start += length + 2;
        }
        self.rest.drain(..start);
        events
    }
}

/// One event; `None` for a comment.
fn event(bytes: &[u8]) -> Option<NativeEvent> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (mut name, mut data) = ("", None);
    for line in text.lines() {
        if let Some(value) = line.strip_prefix("event: ") {
            name = value;
        } else if let Some(value) = line.strip_prefix("data: ") {
            data = Some(value);
        }
    }
    match (name, data) {
        ("drain", _) => Some(NativeEvent::Drain),
        ("restart", _) => Some(NativeEvent::Restart),
        (name, Some(data)) => native_event(name, serde_json::from_str(data).ok()?),
        (_, None) => None,
    }
}

#[derive(Deserialize)]
struct EventData {
    message_id: MessageId,
    #[serde(default)]
    attempt: u32,
    role: Option<String>,
    #[serde(default)]
    chunk_id: Option<u32>,
    #[serde(default)]
    chunk: String,
    #[serde(default)]
    chunk_type: String,
    #[serde(default)]
    is_final: bool,
    #[serde(default)]
    metadata: Map<String, Value>,
    timestamp: Option<String>,
    correlation_id: Option<String>,
    #[serde(default)]
    compacted: bool,
    position: Option<Position>,
    #[serde(default)]
    status: String,
}

fn native_event(name: &str, said: EventData) -> Option<NativeEvent> {
    let message = said.message_id.clone();
    match (name, said.chunk_type.as_str()) {
        ("reset", _) => Some(NativeEvent::Reset { message, attempt: said.attempt }),
        ("", "system") => {
            let is_stopped = said.status == "stopped";
            Some(NativeEvent::Complete { message, position: said.position?, is_stopped })
        }
        // An `error` chunk of the producer is not shown: this is the message's end.
        ("", "error") => Some(NativeEvent::Failed { message, position: said.position?, note: note(&said) }),
        ("", _) => chunk(message, said),
        _ => None,
    }
}

fn chunk(message: MessageId, said: EventData) -> Option<NativeEvent> {
    let role = said.role.as_deref().map_or(Some(Role::Assistant), Role::from_name)?;
    let kind = ChunkKind::from_name(&said.chunk_type)?;
    let chunk = Chunk {
        kind,
        metadata: Metadata::new(said.metadata).ok()?,
        timestamp: said.timestamp.map(Into::into),
        correlation_id: said.correlation_id.map(Into::into),
        ..Chunk::content(said.chunk_id?, &said.chunk, said.is_final)
    };
    Some(NativeEvent::Chunk { message, attempt: said.attempt, role, chunk, is_compacted: said.compacted })
}

fn note(said: &EventData) -> StreamError {
    let text = |key: &str| said.metadata.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let range = |value: &Value| {
        let id = |key: &str| value.get(key)?.as_u64().and_then(|id| u32::try_from(id).ok());
        Some(IdRange { first: id("first")?, last: id("last")? })
    };
    let missing = said.metadata.get("missing").and_then(Value::as_array);
    StreamError {
        code: text("code"),
        text: said.chunk.clone(),
        missing: missing.into_iter().flatten().filter_map(range).collect(),
        is_retryable: said.metadata.get("retryable") == Some(&Value::Bool(true)),
    }
}

#[cfg(test)]
mod tests {
    use model::ThreadId;
    use serde_json::json;

    use super::*;
    use crate::{Cursor, MessageHeader, MessageProgress, Native, native};

    fn message() -> MessageId {
        MessageId::parse("m").unwrap()
    }

    fn stream() -> (Vec<u8>, Vec<NativeEvent>) {
        let thread = ThreadId::parse("t").unwrap();
        let mut native = Native::new(thread, Cursor::at(Position::from_stored(0)));
        let (mut bytes, mut wanted) = (native::OPEN.to_vec(), Vec::new());
        let metadata = Metadata::new(json!({"tool_call_id": "c"}).as_object().unwrap().clone()).unwrap();
        let chunks = [
            Chunk::content(0, "a\u{2028}b\n\nc", false),
            Chunk { kind: ChunkKind::ToolCall, metadata, ..Chunk::content(1, "{}", false) },
        ];
        let header =
            |attempt, role| MessageHeader::new(message(), attempt, role, model::BatchType::SystemTrigger);
        let mut progress = MessageProgress::new(3, false);
        for chunk in chunks {
            let role = if chunk.id == 0 { Role::Assistant } else { Role::Tool };
            progress.advance(&chunk);
            bytes.extend(native.chunk(&header(3, role), progress.seen().clone(), &chunk, false).bytes());
            wanted.push(NativeEvent::Chunk {
                message: message(),
                attempt: 3,
                role,
                chunk,
                is_compacted: false,
            });
        }
        bytes.extend(native::HEARTBEAT);
        bytes.extend(native.reset(&message(), 4));
        wanted.push(NativeEvent::Reset { message: message(), attempt: 4 });
        let header = header(4, Role::Assistant);
        for (position, is_stopped) in [(77, false), (78, true)] {
            let position = Position::from_stored(position);
            bytes.extend(native.complete(&header, position, is_stopped).bytes());
            wanted.push(NativeEvent::Complete { message: message(), position, is_stopped });
        }
        let mut note = StreamError::new("gap_timeout", "a gap", true);
        note.missing = vec![IdRange { first: 3, last: 5 }];
        bytes.extend(native.failed(&header, Position::from_stored(79), &note).bytes());
        wanted.push(NativeEvent::Failed { message: message(), position: Position::from_stored(79), note });
        bytes.extend(native::drain(250));
        wanted.push(NativeEvent::Drain);
        (bytes, wanted)
    }

    #[test]
    fn what_was_written_is_read_however_it_is_cut() {
        let (bytes, wanted) = stream();
        assert_eq!(NativeEventReader::default().feed(&bytes), wanted);
        for size in [1, 2, 3, 7, 50] {
            let mut reader = NativeEventReader::default();
            let events: Vec<NativeEvent> = bytes.chunks(size).flat_map(|piece| reader.feed(piece)).collect();
            assert_eq!(events, wanted, "pieces of {size}");
        }
    }
}
