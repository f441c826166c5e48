//! Antiphon's own stream of server-sent events: chunks as JSON, the ends of messages, and the
//! client's reading position.
//!
//! Entry type: [`Native`], one per thread and reader. Every event has an id ([`Cursor`]) before its
//! data, so that the data of a chunk is encoded once and shared by clients at different positions.

use std::io::Write as _;

use bytes::Bytes;
use model::{
    AnswerReport, BatchType, Chunk, FinishReason, FollowUpHint, IdRange, MessageFailure, MessageId, Metadata,
    OpenInput, Position, Role, ThreadId, TurnId, WaitReason,
};
use serde::Serialize;
use utoipa::ToSchema;

use crate::cursor::InputMark;
use crate::{AnswerUsage, Cursor, MessageOffset, schemas, sse};

mod event;
mod input;
mod remembered;

pub use event::NativeEvent;
pub use input::{InputEvent, InputWithdrawnEvent};

pub use remembered::{RememberedEvent, RememberedFact, UndoRequest, remembered};

/// The first bytes of a stream: they make proxies forward the headers before the first chunk. No
/// blank line follows the comment, because some clients would read that as an event without data.
pub const OPEN: &[u8] = b": open\n";
/// The comment that is sent while a stream is idle.
pub const HEARTBEAT: &[u8] = b": heartbeat\n";

/// Typical bytes of a chunk's event besides its id, text, metadata and names.
const CHUNK_FIELDS: usize = 192;

/// An encoded event; clones share the bytes.
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

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// A failure as clients see it, whatever its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamError {
    /// See [`MessageFailure::code`].
    pub code: String,
    /// Explanation for people.
    pub text: String,
    /// Ids of chunks that never arrived.
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

/// The fields that all events of a message have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageHeader {
    pub message: MessageId,
    pub attempt: u32,
    pub role: Role,
    /// The kind of input that began its batch.
    pub batch_type: BatchType,
    /// The turn that the message answers; `None`: no turn asked for the message.
    turn: Option<TurnId>,
}

impl MessageHeader {
    /// Creates the header; the turn follows from the message's id.
    pub fn new(message: MessageId, attempt: u32, role: Role, batch_type: BatchType) -> Self {
        let turn = TurnId::of_answer(&message).map(|(turn, _)| turn);
        Self { message, attempt, role, batch_type, turn }
    }

    /// Whether the message is the answer of a turn, which has steps.
    pub fn is_answer(&self) -> bool {
        self.turn.is_some()
    }
}

/// Encodes the events of a thread and maintains the cursor that each event carries.
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

    /// Discards the reader's part of a message.
    pub fn remove(&mut self, message: &MessageId) {
        self.cursor.forget(message);
    }

    /// Advances the cursor to `position`: nothing ended in between.
    pub fn pass(&mut self, position: Position) {
        self.cursor.pass(position);
    }

    /// Encodes the next chunk of a message, after which the reader has `seen` of it.
    /// `is_compacted`: it holds the stored text of all missing chunks of one kind.
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
        // A close estimate matters: the event is kept, with its unused capacity, while its message
        // is open.
        let ids = self.thread.name().len() + 2 * header.message.as_str().len();
        self.event(chunk.text.len() + chunk.metadata.size() + ids + CHUNK_FIELDS, &event)
    }

    /// Advances past a chunk that has a number but is not shown.
    pub fn advance_silently(&mut self, message: &MessageId, seen: MessageOffset) {
        self.cursor.set(message, seen);
    }

    /// The id line of a chunk whose data was encoded before ([`Encoded::data`] follows it). After
    /// it the reader has `seen` of its message.
    pub fn replay(&mut self, message: &MessageId, seen: MessageOffset) -> Bytes {
        self.cursor.set(message, seen);
        let mut out = Vec::with_capacity(96);
        write_id(&mut out, &self.cursor);
        out.into()
    }

    /// Restarts the message. The event has an id: a reader that is disconnected here has dropped
    /// the older attempt, so a gateway that does not know the newer one must not continue it.
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

    /// The input that the message answers. From then on the reader's cursor includes the input.
    pub fn input(&mut self, header: &MessageHeader, input: &OpenInput) -> Encoded {
        self.cursor.set_input(&header.message, InputMark::Shown);
        let (message, answer) = (input.turn.input(), input.answer());
        let event = InputEvent::new(self.thread.name(), &message, &answer, input);
        self.named("input", input.size() + CHUNK_FIELDS, &event)
    }

    /// The input that the failed message answers leaves the thread. The failure follows.
    pub fn input_withdrawn(&mut self, header: &MessageHeader, failure: &StreamError) -> Encoded {
        self.cursor.set_input(&header.message, InputMark::Withdrawn);
        let message = header.turn.as_ref().map(TurnId::input);
        let (thread, turn) = (self.thread.name(), header.turn.as_ref());
        let event = InputWithdrawnEvent::new(thread, message.as_ref(), turn, failure);
        self.named("input_withdrawn", CHUNK_FIELDS, &event)
    }

    /// Notes without an event what a reader has of the input that the message answers.
    pub fn note_input(&mut self, message: &MessageId, mark: InputMark) {
        self.cursor.set_input(message, mark);
    }

    /// The id line of an input whose data has already been encoded.
    pub fn replay_input(&mut self, message: &MessageId) -> Bytes {
        self.cursor.set_input(message, InputMark::Shown);
        let mut out = Vec::with_capacity(96);
        write_id(&mut out, &self.cursor);
        out.into()
    }

    /// The starting position of a reader without a cursor, which gets every end after it. The event
    /// has an id, so that a reader whose connection breaks before the next event misses nothing.
    pub fn ready(&self) -> Bytes {
        let mut out = Vec::with_capacity(128);
        write_id(&mut out, &self.cursor);
        out.extend_from_slice(b"event: ready\n");
        sse::data(&mut out, &ReadyEvent { thread_id: self.thread.name(), after: self.cursor.base() });
        out.into()
    }

    /// The reader's position no longer exists: the reader discards everything after `cursor`, and
    /// all open messages.
    pub fn restart(&mut self, cursor: Cursor) -> Bytes {
        self.cursor = cursor;
        let mut out = Vec::with_capacity(128);
        write_id(&mut out, &self.cursor);
        out.extend_from_slice(b"event: restart\n");
        sse::data(&mut out, &RestartEvent { thread_id: self.thread.name(), after: self.cursor.base() });
        out.into()
    }

    /// The message is stored at `position`; `is_stopped`: incomplete, because its turn was stopped.
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

    /// The message failed. `position`: the position at which it ended in the thread.
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

    fn named(&self, name: &str, size: usize, data: &impl Serialize) -> Encoded {
        let mut out = Vec::with_capacity(size + 96);
        write_id(&mut out, &self.cursor);
        let id_len = out.len();
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(name.as_bytes());
        out.push(b'\n');
        sse::data(&mut out, data);
        Encoded { bytes: out.into(), id_len }
    }

    fn event(&self, size: usize, data: &impl Serialize) -> Encoded {
        let mut out = Vec::with_capacity(size + 96);
        write_id(&mut out, &self.cursor);
        let id_len = out.len();
        sse::data(&mut out, data);
        Encoded { bytes: out.into(), id_len }
    }
}

/// The reason why a turn waits. It has no id: a client that reconnects gets it with the next
/// repetition.
pub fn waiting(thread: &ThreadId, message: &MessageId, reason: WaitReason) -> Bytes {
    let mut out = Vec::with_capacity(384);
    out.extend_from_slice(b"event: waiting\n");
    let turn = TurnId::of_answer(message).map(|(turn, _)| turn);
    let (turn_id, message_id) = (turn.as_ref().map(TurnId::as_str), message.as_str());
    let (reason, message) = (reason.name(), reason.message());
    sse::data(&mut out, &WaitingEvent { thread_id: thread.name(), message_id, turn_id, reason, message });
    out.into()
}

/// The event as clients of other protocols get it: a comment in a block of its own.
pub fn waiting_comment(reason: WaitReason) -> Bytes {
    format!(": waiting: {}: {}\n\n", reason.name(), reason.message()).into()
}

/// Reports that some open messages are not shown: more are open than a cursor can list.
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

/// Asks a client to reconnect, to any gateway, after `retry_ms`.
pub fn drain(retry_ms: u32) -> Bytes {
    format!("event: drain\ndata: {{}}\nretry: {retry_ms}\n\n").into()
}

/// The last event of a stream whose credential is no longer valid. `code`: `credential_expired`,
/// `credential_revoked` or `tenant_erased`. A client that reconnects with the same credential is
/// refused.
pub fn auth_expired(code: &str) -> Bytes {
    let mut out = b"event: auth_expired\n".to_vec();
    sse::data(&mut out, &AuthExpiredEvent { code });
    out.into()
}

fn write_id(out: &mut Vec<u8>, cursor: &Cursor) {
    // Writing to memory cannot fail.
    let _ = writeln!(out, "id: {cursor}");
}

/// A chunk of a message.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChunkEvent<'a> {
    /// Id of the thread.
    #[schema(value_type = schemas::ThreadIdSchema)]
    session_id: &'a str,
    #[schema(value_type = schemas::MessageIdSchema)]
    message_id: &'a str,
    /// Number of the chunk in its message, from 0.
    chunk_id: u32,
    /// Text of the chunk.
    chunk: &'a str,
    #[schema(value_type = schemas::ChunkTypeSchema)]
    chunk_type: &'static str,
    /// Whether it is the last chunk of its message.
    is_final: bool,
    #[schema(value_type = Object)]
    metadata: &'a Metadata,
    /// Time of creation, as its publisher reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    timestamp: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    correlation_id: Option<&'a str>,
    /// Attempt of the message; absent for 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 1)]
    attempt: Option<u32>,
    #[schema(value_type = schemas::RoleSchema)]
    role: &'static str,
    #[schema(value_type = schemas::BatchTypeSchema)]
    batch_type: &'static str,
    /// The turn that the message answers; absent when no turn asked for the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = schemas::TurnIdSchema, required = false)]
    turn_id: Option<&'a str>,
    /// True: the chunk joins the stored rest of a text, a call or a result that was not shown.
    /// Pieces are not kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    compacted: Option<bool>,
}

/// A message restarts: clients discard its earlier chunks.
#[derive(Debug, Serialize, ToSchema)]
pub struct ResetEvent<'a> {
    #[schema(value_type = schemas::ThreadIdSchema)]
    thread_id: &'a str,
    #[schema(value_type = schemas::MessageIdSchema)]
    message_id: &'a str,
    attempt: u32,
}

/// The turn of an answer waits. The event has no id, repeats about every ten seconds while the turn
/// waits, and is void once a chunk has arrived.
#[derive(Debug, Serialize, ToSchema)]
pub struct WaitingEvent<'a> {
    #[schema(value_type = schemas::ThreadIdSchema)]
    thread_id: &'a str,
    /// Id of the answer.
    #[schema(value_type = schemas::MessageIdSchema)]
    message_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = schemas::TurnIdSchema, required = false)]
    turn_id: Option<&'a str>,
    /// Why the turn waits: `no_workflow`, `handed_back`, `lost_service`, `no_answer`, `unfinished`,
    /// `no_token`, `gap`; `taken` when one of these is over, or after five seconds without a chunk;
    /// `chunk_conflict` when a chunk was set aside.
    reason: &'static str,
    /// Explanation for people, with advice.
    message: &'static str,
}

/// The credential of the stream is no longer valid. This is the last event.
#[derive(Debug, Serialize, ToSchema)]
pub struct AuthExpiredEvent<'a> {
    /// `credential_expired`, `credential_revoked` or `tenant_erased`.
    code: &'a str,
}

/// More messages of the thread are open than a stream shows at once. The event has no id and ends
/// nothing.
#[derive(Debug, Serialize, ToSchema)]
pub struct LeftOutEvent<'a> {
    #[schema(value_type = schemas::ThreadIdSchema)]
    thread_id: &'a str,
    /// Number of open messages that are shown.
    shown: usize,
    /// Explanation for people.
    message: &'a str,
}

/// The first event of a stream without a cursor.
#[derive(Debug, Serialize, ToSchema)]
pub struct ReadyEvent<'a> {
    #[schema(value_type = schemas::ThreadIdSchema)]
    thread_id: &'a str,
    /// Every message that ends after this position is shown; 0 if none has ended.
    #[schema(value_type = schemas::PositionSchema)]
    after: Position,
}

/// The client's position no longer exists: the client discards later messages and all open ones.
#[derive(Debug, Serialize, ToSchema)]
pub struct RestartEvent<'a> {
    #[schema(value_type = schemas::ThreadIdSchema)]
    thread_id: &'a str,
    /// Messages that ended up to this position stay valid; 0 if none does.
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
    /// The turn that the message answers; absent when no turn asked for the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = schemas::TurnIdSchema, required = false)]
    turn_id: Option<&'a str>,
    /// Why the answer ended; absent when the message is not an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = schemas::FinishReasonSchema, required = false)]
    finish_reason: Option<&'static str>,
    /// Usage of all its model calls; absent when unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    usage: Option<AnswerUsage>,
}

/// A message failed and will not be completed.
#[derive(Debug, Serialize, ToSchema)]
pub struct FailedEvent<'a> {
    #[schema(value_type = schemas::ErrorSchema)]
    chunk_type: &'static str,
    /// Explanation for people.
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
    /// The turn that the message answers; absent when no turn asked for the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = schemas::TurnIdSchema, required = false)]
    turn_id: Option<&'a str>,
}

/// Why a message failed.
#[derive(Debug, Serialize, ToSchema)]
struct FailedMetadata<'a> {
    /// Machine-readable error code.
    code: &'a str,
    /// Whether a retry may succeed.
    retryable: bool,
    /// Ids of chunks that never arrived.
    #[serde(skip_serializing_if = "<[IdRange]>::is_empty")]
    #[schema(value_type = Vec<MissingChunks>, required = false)]
    missing: &'a [IdRange],
}

/// A range of chunk ids, both ends included.
#[derive(ToSchema)]
#[allow(dead_code, reason = "it lends its form to `IdRange`")]
struct MissingChunks {
    first: u32,
    last: u32,
}

#[cfg(test)]
mod tests;
