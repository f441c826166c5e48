//! Antiphon's own stream of server-sent events: the JSON of a chunk, its end, and how far the client has read.
//!
//! Entry type: [`Native`], one per thread and reader. Every event has an id ([`Cursor`]); it stands before the data,
//! so that the data of a chunk is encoded once and shared by clients that stand at different places.

use std::io::Write as _;

use bytes::Bytes;
use model::{Chunk, Failure, IdRange, MessageId, Position, Role, ThreadId};
use serde::{Serialize, Serializer, ser::SerializeMap};

use crate::{Cursor, Seen, sse};

mod reader;

pub use reader::{Reader, Told};

/// What a stream begins with: it makes proxies pass the headers on before the first chunk.
pub const OPEN: &[u8] = b": open\n\n";
/// A comment for idle times.
pub const HEARTBEAT: &[u8] = b": heartbeat\n\n";

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

/// What a client is told of a failure, wherever it was learnt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureNote {
    /// See [`Failure::code`].
    pub code: String,
    /// What went wrong, for people.
    pub text: String,
    /// Chunk ids that never came.
    pub missing: Vec<IdRange>,
    /// Whether the same again may succeed.
    pub is_retryable: bool,
}

impl FailureNote {
    /// A failure of which no more than this is known.
    pub fn new(code: impl Into<String>, text: impl Into<String>, is_retryable: bool) -> Self {
        Self { code: code.into(), text: text.into(), missing: Vec::new(), is_retryable }
    }
}

impl From<&Failure> for FailureNote {
    fn from(failure: &Failure) -> Self {
        let missing = match failure {
            Failure::GapTimeout { missing } => missing.clone(),
            _ => Vec::new(),
        };
        let (code, text) = (failure.code().to_owned(), failure.to_string());
        Self { code, text, missing, is_retryable: failure.is_retryable() }
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

    /// See [`Cursor::advance`].
    pub fn advance(&mut self, base: Position) {
        self.cursor.advance(base);
    }

    /// A message has begun, with this attempt, and nothing of it is shown yet.
    pub fn begin(&mut self, message: &MessageId, attempt: u32) {
        self.cursor.set(message, Seen { attempt, next: 0, bytes: 0 });
    }

    /// Forgets a message that was begun and never shown.
    pub fn forget(&mut self, message: &MessageId) {
        self.cursor.forget(message);
    }

    /// A message ended by failing without a word to this reader.
    pub fn bury(&mut self, message: &MessageId) {
        self.cursor.end(message, None);
    }

    /// The next chunk of a message.
    pub fn chunk(&mut self, message: &MessageId, attempt: u32, role: Role, chunk: &Chunk) -> Encoded {
        self.shown(message, attempt, role, chunk, false)
    }

    /// What the store has of a message beyond what was shown, as one chunk (`"compacted": true`): the text of all that is missing, and
    /// none of the calls and results between.
    pub fn compacted(&mut self, message: &MessageId, attempt: u32, role: Role, chunk: &Chunk) -> Encoded {
        self.shown(message, attempt, role, chunk, true)
    }

    fn shown(
        &mut self,
        message: &MessageId,
        attempt: u32,
        role: Role,
        chunk: &Chunk,
        is_compacted: bool,
    ) -> Encoded {
        let mut seen = self.seen_of(message, attempt);
        seen.advance(chunk);
        self.cursor.set(message, seen);
        let thread = &self.thread;
        self.event(
            chunk.text.len() + 256,
            &ChunkEvent { thread, message, attempt, role, chunk, is_compacted },
        )
    }

    /// A chunk that takes its number but is not shown.
    pub fn skip(&mut self, message: &MessageId, attempt: u32, chunk: &Chunk) {
        let mut seen = self.seen_of(message, attempt);
        seen.advance(chunk);
        self.cursor.set(message, seen);
    }

    /// The id line of a chunk whose data was encoded before ([`Encoded::data`] follows it), after which the reader has
    /// `seen` of its message.
    pub fn again(&mut self, message: &MessageId, seen: Seen) -> Bytes {
        self.cursor.set(message, seen);
        let mut out = Vec::with_capacity(96);
        write_id(&mut out, &self.cursor);
        out.into()
    }

    /// The text of the message starts again. It has an id: a reader that is cut here has forgotten the older attempt,
    /// and must not be continued by a gateway that has not heard of the newer one.
    pub fn reset(&mut self, message: &MessageId, attempt: u32) -> Bytes {
        self.cursor.set(message, Seen { attempt, next: 0, bytes: 0 });
        let mut out = Vec::with_capacity(256);
        write_id(&mut out, &self.cursor);
        out.extend_from_slice(b"event: reset\n");
        sse::data(
            &mut out,
            &ResetEvent { session_id: self.thread.name(), message_id: message.as_str(), attempt },
        );
        out.into()
    }

    /// The message is persisted at `position`.
    pub fn complete(&mut self, message: &MessageId, position: Position) -> Encoded {
        self.cursor.end(message, Some(position));
        let event = CompleteEvent {
            chunk_type: "system",
            chunk: "message_complete",
            session_id: self.thread.name(),
            message_id: message.as_str(),
            position,
        };
        self.event(256, &event)
    }

    /// The message was given up.
    pub fn failed(&mut self, message: &MessageId, failure: &FailureNote) -> Encoded {
        self.cursor.end(message, None);
        let event = ErrorEvent {
            chunk_type: "error",
            chunk: &failure.text,
            is_final: true,
            session_id: self.thread.name(),
            message_id: message.as_str(),
            metadata: ErrorMetadata {
                code: &failure.code,
                retryable: failure.is_retryable,
                missing: &failure.missing,
            },
        };
        self.event(384, &event)
    }

    fn seen_of(&self, message: &MessageId, attempt: u32) -> Seen {
        let same = self.cursor.seen(message).filter(|seen| seen.attempt == attempt);
        same.unwrap_or(Seen { attempt, ..Seen::default() })
    }

    fn event(&self, size: usize, data: &impl Serialize) -> Encoded {
        let mut out = Vec::with_capacity(size + 96);
        write_id(&mut out, &self.cursor);
        let id_len = out.len();
        sse::data(&mut out, data);
        Encoded { bytes: out.into(), id_len }
    }
}

/// Tells a client to connect again, to any gateway, after `retry_ms`.
pub fn drain(retry_ms: u32) -> Bytes {
    format!("event: drain\ndata: {{}}\nretry: {retry_ms}\n\n").into()
}

/// The last event of a stream whose credential counts no longer, and why: `credential_expired` or `credential_revoked`. Whoever comes
/// back without another one is refused.
pub fn auth_expired(code: &str) -> Bytes {
    format!("event: auth_expired\ndata: {{\"code\":\"{code}\"}}\n\n").into()
}

fn write_id(out: &mut Vec<u8>, cursor: &Cursor) {
    // Writing to memory cannot fail.
    let _ = writeln!(out, "id: {cursor}");
}

struct ChunkEvent<'a> {
    thread: &'a ThreadId,
    message: &'a MessageId,
    attempt: u32,
    role: Role,
    chunk: &'a Chunk,
    is_compacted: bool,
}

impl Serialize for ChunkEvent<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let chunk = self.chunk;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("session_id", self.thread.name())?;
        map.serialize_entry("message_id", self.message.as_str())?;
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
        if self.attempt > 0 {
            map.serialize_entry("attempt", &self.attempt)?;
        }
        if self.role != Role::Assistant {
            map.serialize_entry("role", self.role.name())?;
        }
        if self.is_compacted {
            map.serialize_entry("compacted", &true)?;
        }
        map.end()
    }
}

#[derive(Serialize)]
struct ResetEvent<'a> {
    session_id: &'a str,
    message_id: &'a str,
    attempt: u32,
}

#[derive(Serialize)]
struct CompleteEvent<'a> {
    chunk_type: &'static str,
    chunk: &'static str,
    session_id: &'a str,
    message_id: &'a str,
    position: Position,
}

#[derive(Serialize)]
struct ErrorEvent<'a> {
    chunk_type: &'static str,
    chunk: &'a str,
    is_final: bool,
    session_id: &'a str,
    message_id: &'a str,
    metadata: ErrorMetadata<'a>,
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
