//! Antiphon's own stream of server-sent events: the JSON of a chunk, its end, and how far the client has read.
//!
//! Entry type: [`Native`], one per thread and reader. Every event has an id ([`Cursor`]); it stands before the data,
//! so that the data of a chunk is encoded once and shared by clients that stand at different places.

use std::io::Write as _;

use bytes::Bytes;
use model::{
    AnswerReport, BatchType, Chunk, FinishReason, FollowUpHint, IdRange, MessageFailure, MessageId, Metadata,
    Position, Role, ThreadId, TurnId, WaitReason,
};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{AnswerUsage, Cursor, MessageOffset, schemas, sse};

mod event;
mod remembered;

pub use event::NativeEvent;
pub use remembered::{RememberedEvent, RememberedFact, UndoRequest, remembered};

/// The first bytes of a stream: they make proxies forward the headers before the first chunk. The comment is not followed by a blank line,
/// which some clients would take for an event without data.
pub const OPEN: &[u8] = b": open\n";
/// The comment that is sent while a stream is idle.
pub const HEARTBEAT: &[u8] = b": heartbeat\n";

/// Bytes that a chunk's event takes beside its id, text, metadata and names, as a rule.
const CHUNK_FIELDS: usize = 192;

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

/// A failure as clients are shown it, whatever its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamError {
    /// See [`MessageFailure::code`].
    pub code: String,
    /// What went wrong, for people.
    pub text: String,
    /// Chunk ids that never came.
    pub missing: Vec<IdRange>,
    /// Whether a retry may succeed.
    pub is_retryable: bool,
}

impl StreamError {
    /// A failure without further details.
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

/// What every event of a message names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageHeader {
    /// Its id.
    pub message: MessageId,
    /// The attempt.
    pub attempt: u32,
    /// The author's role.
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

    /// The cursor of a reader that got every event so far.
    pub fn cursor(&self) -> &Cursor {
        &self.cursor
    }

    /// Removes what the reader has of a message.
    pub fn remove(&mut self, message: &MessageId) {
        self.cursor.forget(message);
    }

    /// Advances the cursor to `position`: nothing ended in between.
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
        let metadata = FollowUpHint::hidden_in(&chunk.metadata);
        let event = ChunkEvent {
            session_id: self.thread.name(),
            message_id: header.message.as_str(),
            chunk_id: chunk.id,
            chunk: &chunk.text,
            chunk_type: chunk.kind.name(),
            is_final: chunk.is_final,
            metadata: &metadata,
            timestamp: chunk.timestamp.as_deref(),
            correlation_id: chunk.correlation_id.as_deref(),
            attempt: Some(header.attempt).filter(|attempt| *attempt > 0),
            role: header.role.name(),
            batch_type: header.batch_type.name(),
            turn_id: header.turn.as_ref().map(TurnId::as_str),
            compacted: is_compacted.then_some(true),
        };
        // A close estimate: the event is kept while its message is open, together with its unused capacity.
        let ids = self.thread.name().len() + 2 * header.message.as_str().len();
        self.event(chunk.text.len() + chunk.metadata.size() + ids + CHUNK_FIELDS, &event)
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

    /// The text of the message starts again. It has an id: a reader that is disconnected here has dropped the older
    /// attempt, and must not be continued by a gateway that does not know the newer one.
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

    /// Where a reader without a cursor begins: it gets every end after this position. It has an id, so that a reader whose connection breaks
    /// before anything has happened misses nothing.
    pub fn ready(&self) -> Bytes {
        let mut out = Vec::with_capacity(128);
        write_id(&mut out, &self.cursor);
        out.extend_from_slice(b"event: ready\n");
        sse::data(&mut out, &ReadyEvent { thread_id: self.thread.name(), after: self.cursor.base() });
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
    pub fn complete(
        &mut self,
        header: &MessageHeader,
        position: Position,
        is_stopped: bool,
        report: &AnswerReport,
    ) -> Encoded {
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
            finish_reason: report.finish_reason.map(FinishReason::name),
            usage: report.usage.as_deref().map(AnswerUsage::from),
        };
        self.event(448, &event)
    }

    /// The message was given up. `position`: its place among the ends of the thread.
    pub fn failed(&mut self, header: &MessageHeader, position: Position, failure: &StreamError) -> Encoded {
        self.cursor.end(&header.message, position);
        let event = FailedEvent {
            chunk_type: "error",
            chunk: &failure.text,
            is_final: true,
            session_id: self.thread.name(),
            message_id: header.message.as_str(),
            metadata: FailedMetadata {
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

/// What the turn of an answer waits for. It has no id: a client that reconnects gets it with the next repetition.
pub fn waiting(thread: &ThreadId, message: &MessageId, reason: WaitReason) -> Bytes {
    let mut out = Vec::with_capacity(384);
    out.extend_from_slice(b"event: waiting\n");
    let turn = TurnId::of_answer(message).map(|(turn, _)| turn);
    let (turn_id, message_id) = (turn.as_ref().map(TurnId::as_str), message.as_str());
    let (reason, message) = (reason.name(), reason.message());
    sse::data(&mut out, &WaitingEvent { thread_id: thread.name(), message_id, turn_id, reason, message });
    out.into()
}

/// The same for clients of other protocols: a comment, in a block of its own.
pub fn waiting_comment(reason: WaitReason) -> Bytes {
    format!(": waiting: {}: {}\n\n", reason.name(), reason.message()).into()
}

/// Says that not everything of the thread is shown while it comes: as many messages as a cursor can name are open.
pub fn left_out(thread: &ThreadId) -> Bytes {
    let mut out = Vec::with_capacity(256);
    out.extend_from_slice(b"event: left_out\n");
    let shown = crate::cursor::MAX_OPEN;
    let message = format!(
        "more than {shown} messages of the thread are open: the others are shown once one of these has ended"
    );
    sse::data(&mut out, &LeftOutEvent { thread_id: thread.name(), shown, message: &message });
    out.into()
}

/// Asks a client to connect again, to any gateway, after `retry_ms`.
pub fn drain(retry_ms: u32) -> Bytes {
    format!("event: drain\ndata: {{}}\nretry: {retry_ms}\n\n").into()
}

/// The last event of a stream whose credential is no longer valid, and why: `credential_expired`, `credential_revoked` or `tenant_erased`. A client
/// that reconnects with the same one is refused.
pub fn auth_expired(code: &str) -> Bytes {
    let mut out = b"event: auth_expired\n".to_vec();
    sse::data(&mut out, &AuthExpiredEvent { code });
    out.into()
}

fn write_id(out: &mut Vec<u8>, cursor: &Cursor) {
    // Writing to memory cannot fail.
    let _ = writeln!(out, "id: {cursor}");
}

/// A chunk.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChunkEvent<'a> {
    /// The thread.
    #[schema(value_type = schemas::ThreadIdSchema)]
    session_id: &'a str,
    #[schema(value_type = schemas::MessageIdSchema)]
    message_id: &'a str,
    /// 0, 1, 2, … within its message.
    chunk_id: u32,
    /// The text.
    chunk: &'a str,
    #[schema(value_type = schemas::ChunkTypeSchema)]
    chunk_type: &'static str,
    /// The last of its message.
    is_final: bool,
    #[schema(value_type = Object)]
    metadata: &'a Metadata,
    /// When it was made, as its publisher said.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    timestamp: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    correlation_id: Option<&'a str>,
    /// Of the message; absent for 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 1)]
    attempt: Option<u32>,
    #[schema(value_type = schemas::RoleSchema)]
    role: &'static str,
    #[schema(value_type = schemas::BatchTypeSchema)]
    batch_type: &'static str,
    /// The turn whose answer it is; absent when no turn asked for the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = schemas::TurnIdSchema, required = false)]
    turn_id: Option<&'a str>,
    /// True: what the store has of a text, a call or a result beyond what was shown, as one chunk. Pieces are not kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    compacted: Option<bool>,
}

/// A message starts again.
#[derive(Debug, Serialize, ToSchema)]
pub struct ResetEvent<'a> {
    #[schema(value_type = schemas::ThreadIdSchema)]
    thread_id: &'a str,
    #[schema(value_type = schemas::MessageIdSchema)]
    message_id: &'a str,
    attempt: u32,
}

/// The turn of an answer waits. It has no id, is repeated about every ten seconds while it is so, and means nothing once a chunk has come.
#[derive(Debug, Serialize, ToSchema)]
pub struct WaitingEvent<'a> {
    #[schema(value_type = schemas::ThreadIdSchema)]
    thread_id: &'a str,
    /// The answer.
    #[schema(value_type = schemas::MessageIdSchema)]
    message_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = schemas::TurnIdSchema, required = false)]
    turn_id: Option<&'a str>,
    /// What it waits for: `no_workflow`, `handed_back`, `lost_service`, `no_answer`, `unfinished`, `no_token`, `gap`; `taken` when one of
    /// these is over, or after five seconds without a chunk; `chunk_conflict` when a chunk was set aside.
    reason: &'static str,
    /// For people: what is so, and what to do.
    message: &'static str,
}

/// The credential of the stream is no longer valid. It is the last event.
#[derive(Debug, Serialize, ToSchema)]
pub struct AuthExpiredEvent<'a> {
    /// `credential_expired`, `credential_revoked` or `tenant_erased`.
    code: &'a str,
}

/// More messages of the thread are open than a stream shows at once. It has no id and ends nothing.
#[derive(Debug, Serialize, ToSchema)]
pub struct LeftOutEvent<'a> {
    #[schema(value_type = schemas::ThreadIdSchema)]
    thread_id: &'a str,
    /// How many open messages are shown.
    shown: usize,
    /// For people.
    message: &'a str,
}

/// The first event of a stream without a cursor.
#[derive(Debug, Serialize, ToSchema)]
pub struct ReadyEvent<'a> {
    #[schema(value_type = schemas::ThreadIdSchema)]
    thread_id: &'a str,
    /// Every message that ends after it is shown; 0 when none has ended.
    #[schema(value_type = schemas::PositionSchema)]
    after: Position,
}

/// What the client has does not exist any more.
#[derive(Debug, Serialize, ToSchema)]
pub struct RestartEvent<'a> {
    #[schema(value_type = schemas::ThreadIdSchema)]
    thread_id: &'a str,
    /// All that ended up to here stays; 0 when nothing does.
    #[schema(value_type = schemas::PositionSchema)]
    after: Position,
}

/// A message is stored.
#[derive(Debug, Serialize, ToSchema)]
pub struct CompleteEvent<'a> {
    #[schema(value_type = schemas::SystemSchema)]
    chunk_type: &'static str,
    #[schema(value_type = schemas::MessageCompleteSchema)]
    chunk: &'static str,
    #[schema(value_type = schemas::ThreadIdSchema)]
    session_id: &'a str,
    #[schema(value_type = schemas::MessageIdSchema)]
    message_id: &'a str,
    #[schema(value_type = schemas::PositionSchema)]
    position: Position,
    #[schema(value_type = schemas::StatusSchema)]
    status: &'static str,
    #[schema(value_type = schemas::RoleSchema)]
    role: &'static str,
    #[schema(value_type = schemas::BatchTypeSchema)]
    batch_type: &'static str,
    /// The turn whose answer it is; absent when no turn asked for the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = schemas::TurnIdSchema, required = false)]
    turn_id: Option<&'a str>,
    /// Why the answer ended; absent when the message is no answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = schemas::FinishReasonSchema, required = false)]
    finish_reason: Option<&'static str>,
    /// What its calls of models used together; absent when none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    usage: Option<AnswerUsage>,
}

/// A message was given up.
#[derive(Debug, Serialize, ToSchema)]
pub struct FailedEvent<'a> {
    #[schema(value_type = schemas::ErrorSchema)]
    chunk_type: &'static str,
    /// Why, for people.
    chunk: &'a str,
    is_final: bool,
    #[schema(value_type = schemas::ThreadIdSchema)]
    session_id: &'a str,
    #[schema(value_type = schemas::MessageIdSchema)]
    message_id: &'a str,
    metadata: FailedMetadata<'a>,
    #[schema(value_type = schemas::PositionSchema)]
    position: Position,
    #[schema(value_type = schemas::RoleSchema)]
    role: &'static str,
    #[schema(value_type = schemas::BatchTypeSchema)]
    batch_type: &'static str,
    /// The turn whose answer it is; absent when no turn asked for the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = schemas::TurnIdSchema, required = false)]
    turn_id: Option<&'a str>,
}

/// Why a message was given up.
#[derive(Debug, Serialize, ToSchema)]
struct FailedMetadata<'a> {
    /// For programs.
    code: &'a str,
    /// Whether a retry may succeed.
    retryable: bool,
    /// Chunks that never came.
    #[serde(skip_serializing_if = "<[IdRange]>::is_empty")]
    #[schema(value_type = Vec<MissingChunks>, required = false)]
    missing: &'a [IdRange],
}

/// Ids of chunks, both included.
#[derive(ToSchema)]
#[allow(dead_code, reason = "it lends its form to `IdRange`")]
struct MissingChunks {
    first: u32,
    last: u32,
}

#[cfg(test)]
mod tests;
