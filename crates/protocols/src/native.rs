//! Antiphon's own stream of server-sent events: the JSON of a chunk, its end, and how far the client has read.
//!
//! Entry type: [`Native`], one per thread and reader. Every event has an id ([`Cursor`]); it stands before the data,
//! so that the data of a chunk is encoded once and shared by clients that stand at different places.

use std::io::Write as _;

use bytes::Bytes;
use model::{BatchType, Chunk, IdRange, MessageFailure, MessageId, Position, Role, ThreadId, TurnId};
use serde::{Serialize, Serializer, ser::SerializeMap};

use crate::{Cursor, MessageOffset, sse};

mod reader;

pub use reader::{NativeEvent, NativeEventReader};

/// What a stream begins with: it makes proxies pass the headers on before the first chunk. A comment is a line; a blank line after it would
/// be an event without data to some clients.
pub const OPEN: &[u8] = b": open\n";
/// A comment for idle times.
pub const HEARTBEAT: &[u8] = b": heartbeat\n";

/// An encoded event: shared, never copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    bytes: Bytes,
    id_len: usize,
}

impl Encoded {
    /// The whole event.
    pub fn bytes(&self) -> Bytes {
        self.bytes.clone()
    }

    /// The event without its id line.
    pub fn data(&self) -> Bytes {
        self.bytes.slice(self.id_len..)
    }

    /// Length of the whole event in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True when there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// What a client is shown of a failure, however the gateway learnt of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamError {
    /// See [`MessageFailure::code`].
    pub code: String,
    /// What went wrong, for people.
    pub text: String,
    /// Chunk ids that never came.
    pub missing: Vec<IdRange>,
    /// Whether the same again may succeed.
    pub is_retryable: bool,
}

impl StreamError {
    /// A failure of which no more than this is known.
    pub fn new(code: impl Into<String>, text: impl Into<String>, is_retryable: bool) -> Self {
        Self { code: code.into(), text: text.into(), missing: Vec::new(), is_retryable }
    }
}

impl From<&MessageFailure> for StreamError {
    fn from(failure: &MessageFailure) -> Self {
        let missing = match failure {
            MessageFailure::GapTimeout { missing } => missing.clone(),
            _ => Vec::new(),
        };
        let (code, text) = (failure.code().to_owned(), failure.to_string());
        Self { code, text, missing, is_retryable: failure.is_retryable() }
    }
}

/// What every event of a message says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageHeader {
    /// Its id.
    pub message: MessageId,
    /// The attempt.
    pub attempt: u32,
    /// Who speaks.
    pub role: Role,
    /// What its batch began with.
    pub batch_type: BatchType,
    /// The turn whose answer it is; `None` when no turn asked for it.
    turn: Option<TurnId>,
}

impl MessageHeader {
    /// The turn follows from the message's id.
    pub fn new(message: MessageId, attempt: u32, role: Role, batch_type: BatchType) -> Self {
        let turn = TurnId::of_answer(&message).map(|(turn, _)| turn);
        Self { message, attempt, role, batch_type, turn }
    }

    /// It is the answer of a turn, and has steps.
    pub fn is_answer(&self) -> bool {
        self.turn.is_some()
    }
}

/// The fold: encodes what happens in a thread and keeps the cursor that each event carries.
#[derive(Debug, Clone)]
pub struct Native {
    thread: ThreadId,
    cursor: Cursor,
}

impl Native {
    /// Continues from `cursor`.
    pub fn new(thread: ThreadId, cursor: Cursor) -> Self {
        Self { thread, cursor }
    }

    /// Where a reader stands who got every event so far.
    pub fn cursor(&self) -> &Cursor {
        &self.cursor
    }

    /// The reader has nothing of a message any more.
    pub fn remove(&mut self, message: &MessageId) {
        self.cursor.forget(message);
    }

    /// Nothing ended between where the reader stands and here.
    pub fn pass(&mut self, position: Position) {
        self.cursor.pass(position);
    }

    /// The next chunk of a message, after which the reader has `seen` of it. `is_compacted`: it holds what the store has of all chunks of a
    /// kind that the reader lacks.
    pub fn chunk(
        &mut self,
        header: &MessageHeader,
        seen: MessageOffset,
        chunk: &Chunk,
        is_compacted: bool,
    ) -> Encoded {
        self.cursor.set(&header.message, seen);
        let thread = &self.thread;
        self.event(chunk.text.len() + 320, &NativeChunk { thread, header, chunk, is_compacted })
    }

    /// A chunk that takes its number but is not shown.
    pub fn advance_silently(&mut self, message: &MessageId, seen: MessageOffset) {
        self.cursor.set(message, seen);
    }

    /// The id line of a chunk whose data was encoded before ([`Encoded::data`] follows it), after which the reader has
    /// `seen` of its message.
    pub fn replay(&mut self, message: &MessageId, seen: MessageOffset) -> Bytes {
        self.cursor.set(message, seen);
        let mut out = Vec::with_capacity(96);
        write_id(&mut out, &self.cursor);
        out.into()
    }

    /// The text of the message starts again. It has an id: a reader that is cut here has forgotten the older attempt,
    /// and must not be continued by a gateway that has not heard of the newer one.
    pub fn reset(&mut self, message: &MessageId, attempt: u32) -> Bytes {
        self.cursor.set(message, MessageOffset::nothing(attempt));
        let mut out = Vec::with_capacity(256);
        write_id(&mut out, &self.cursor);
        out.extend_from_slice(b"event: reset\n");
        sse::data(
            &mut out,
            &ResetEvent { thread_id: self.thread.name(), message_id: message.as_str(), attempt },
        );
        out.into()
    }

    /// What the reader has does not exist (any more): it forgets all that came after `cursor`, and all that is open.
    pub fn restart(&mut self, cursor: Cursor) -> Bytes {
        self.cursor = cursor;
        let mut out = Vec::with_capacity(128);
        write_id(&mut out, &self.cursor);
        out.extend_from_slice(b"event: restart\n");
        sse::data(&mut out, &RestartEvent { thread_id: self.thread.name(), after: self.cursor.base() });
        out.into()
    }

    /// The message is persisted at `position`; `is_stopped`: as far as it had come when its turn was stopped.
    pub fn complete(&mut self, header: &MessageHeader, position: Position, is_stopped: bool) -> Encoded {
        self.cursor.end(&header.message, position);
        let event = CompleteEvent {
            chunk_type: "system",
            chunk: "message_complete",
            session_id: self.thread.name(),
            message_id: header.message.as_str(),
            position,
            status: if is_stopped { "stopped" } else { "completed" },
            role: header.role.name(),
            batch_type: header.batch_type.name(),
            turn_id: header.turn.as_ref().map(TurnId::as_str),
        };
        self.event(320, &event)
    }

    /// The message was given up. `position`: its place among the ends of the thread.
    pub fn failed(&mut self, header: &MessageHeader, position: Position, failure: &StreamError) -> Encoded {
        self.cursor.end(&header.message, position);
        let event = ErrorEvent {
            chunk_type: "error",
            chunk: &failure.text,
            is_final: true,
            session_id: self.thread.name(),
            message_id: header.message.as_str(),
            metadata: ErrorMetadata {
                code: &failure.code,
                retryable: failure.is_retryable,
                missing: &failure.missing,
            },
            position,
            role: header.role.name(),
            batch_type: header.batch_type.name(),
            turn_id: header.turn.as_ref().map(TurnId::as_str),
        };
        self.event(448, &event)
    }

    fn event(&self, size: usize, data: &impl Serialize) -> Encoded {
        let mut out = Vec::with_capacity(size + 96);
        write_id(&mut out, &self.cursor);
        let id_len = out.len();
        sse::data(&mut out, data);
        Encoded { bytes: out.into(), id_len }
    }
}

/// Asks a client to connect again, to any gateway, after `retry_ms`.
pub fn drain(retry_ms: u32) -> Bytes {
    format!("event: drain\ndata: {{}}\nretry: {retry_ms}\n\n").into()
}

/// The last event of a stream whose credential counts no longer, and why: `credential_expired` or `credential_revoked`. A client
/// that comes back with the same one is refused.
pub fn auth_expired(code: &str) -> Bytes {
    format!("event: auth_expired\ndata: {{\"code\":\"{code}\"}}\n\n").into()
}

fn write_id(out: &mut Vec<u8>, cursor: &Cursor) {
    // Writing to memory cannot fail.
    let _ = writeln!(out, "id: {cursor}");
}

struct NativeChunk<'a> {
    thread: &'a ThreadId,
    header: &'a MessageHeader,
    chunk: &'a Chunk,
    is_compacted: bool,
}

impl Serialize for NativeChunk<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { header, chunk, .. } = self;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("session_id", self.thread.name())?;
        map.serialize_entry("message_id", header.message.as_str())?;
        map.serialize_entry("chunk_id", &chunk.id)?;
        map.serialize_entry("chunk", &chunk.text)?;
        map.serialize_entry("chunk_type", chunk.kind.name())?;
        map.serialize_entry("is_final", &chunk.is_final)?;
        map.serialize_entry("metadata", &chunk.metadata)?;
        if let Some(timestamp) = &chunk.timestamp {
            map.serialize_entry("timestamp", timestamp)?;
        }
        if let Some(correlation_id) = &chunk.correlation_id {
            map.serialize_entry("correlation_id", correlation_id)?;
        }
        if header.attempt > 0 {
            map.serialize_entry("attempt", &header.attempt)?;
        }
        map.serialize_entry("role", header.role.name())?;
        map.serialize_entry("batch_type", header.batch_type.name())?;
        if let Some(turn) = &header.turn {
            map.serialize_entry("turn_id", turn.as_str())?;
        }
        if self.is_compacted {
            map.serialize_entry("compacted", &true)?;
        }
        map.end()
    }
}

#[derive(Serialize)]
struct ResetEvent<'a> {
    thread_id: &'a str,
    message_id: &'a str,
    attempt: u32,
}

#[derive(Serialize)]
struct RestartEvent<'a> {
    thread_id: &'a str,
    after: Position,
}

#[derive(Serialize)]
struct CompleteEvent<'a> {
    chunk_type: &'static str,
    chunk: &'static str,
    session_id: &'a str,
    message_id: &'a str,
    position: Position,
    status: &'static str,
    role: &'static str,
    batch_type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    turn_id: Option<&'a str>,
}

#[derive(Serialize)]
struct ErrorEvent<'a> {
    chunk_type: &'static str,
    chunk: &'a str,
    is_final: bool,
    session_id: &'a str,
    message_id: &'a str,
    metadata: ErrorMetadata<'a>,
    position: Position,
    role: &'static str,
    batch_type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    turn_id: Option<&'a str>,
}

#[derive(Serialize)]
struct ErrorMetadata<'a> {
    code: &'a str,
    retryable: bool,
    #[serde(skip_serializing_if = "<[IdRange]>::is_empty")]
    missing: &'a [IdRange],
}

#[cfg(test)]
mod tests;
