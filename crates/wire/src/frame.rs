//! Entries of a partition's stream: frames of chunks and tasks, as protobuf or JSON, and commands.

use std::sync::Arc;

use bytes::Bytes;
use model::{
    AgentId, Bucket, ChunkKind, Command, Frame, IncomingChunk, InvalidChunk, InvalidId, InvalidMetadata,
    PartitionCount, PartitionId, RejectedEntry, Role, ThreadId, TurnId, TurnToken,
};
use prost::Message as _;

use crate::command::{self, InvalidCommand};
use crate::convert::{self, InvalidField};
use crate::halves;
use crate::json::{JsonChunk, JsonChunkOut, JsonTask};
use crate::pb;
use crate::subject::{Stored, SubjectClass, parse_stored};
use crate::zero_copy::{ChunkRef, Fields, Malformed};

/// Content type of a JSON payload.
pub const CONTENT_TYPE_JSON: &str = "application/json";
/// Content type of a protobuf payload.
pub const CONTENT_TYPE_PROTOBUF: &str = "application/x-protobuf";

/// The limits for an entry.
#[derive(Debug, Clone, Copy)]
pub struct DecodeLimits {
    /// Maximum bytes of text and metadata of one chunk.
    pub chunk_bytes: usize,
    /// Number of partitions in the fleet. A thread in another partition's stream is refused,
    /// because otherwise two owners would write the thread.
    pub partitions: PartitionCount,
}

/// The content of a stream entry.
#[derive(Debug, Clone, PartialEq)]
pub enum Decoded {
    /// Chunks of one thread.
    Frame(Frame),
    Command(Command),
}

/// Decodes one entry of the stream of partition `p`. The class of its subject decides which content
/// is allowed, because the right to publish on that subject is the only proof of its sender.
///
/// # Errors
/// A [`RejectedEntry`] describes the error; the whole entry is rejected.
pub fn decode_entry(
    p: PartitionId,
    subject: &str,
    content_type: Option<&str>,
    payload: &Bytes,
    limits: &DecodeLimits,
) -> Result<Decoded, RejectedEntry> {
    let Some(Stored { class, key }) = parse_stored(p, subject) else {
        return refuse("invalid_subject", format!("{subject:?} is no subject of partition {p}"));
    };
    let invalid = |error: InvalidId| RejectedEntry {
        code: "invalid_subject",
        detail: format!("the last part of the subject: {error}"),
    };
    // Threads and agents have the same alphabet.
    let agent = AgentId::parse(key).map_err(invalid)?;
    in_its_partition(p, key, limits)?;
    match class {
        SubjectClass::Chunks | SubjectClass::Messages => {
            let thread = ThreadId::parse(key).map_err(invalid)?;
            Ok(Decoded::Frame(chunks_of(thread, class, content_type, payload, limits)?))
        }
        SubjectClass::Commands => command_of(&agent, payload),
        SubjectClass::Tasks => Ok(Decoded::Command(task_of(&agent, content_type, payload)?)),
    }
}

fn refuse<T>(code: &'static str, detail: impl Into<String>) -> Result<T, RejectedEntry> {
    Err(RejectedEntry { code, detail: detail.into() })
}

fn in_its_partition(p: PartitionId, key: &str, limits: &DecodeLimits) -> Result<(), RejectedEntry> {
    let right = Bucket::of_key(key).partition(limits.partitions);
    match right == p {
        true => Ok(()),
        false => refuse("wrong_partition", format!("{key} belongs to partition {right}, not {p}")),
    }
}

/// Checks the role of a message without a turn. Ordinary publishers may use only `assistant`. A
/// tool result is useless without its call, which is in another message.
fn check_role(role: Role, class: SubjectClass) -> Result<(), RejectedEntry> {
    match (role, class) {
        (Role::Assistant, _) | (Role::User | Role::System, SubjectClass::Messages) => Ok(()),
        (Role::Tool, _) => refuse(
            RejectedEntry::ROLE_NOT_ALLOWED,
            "a message of role tool without a turn answers no call; no subject takes it",
        ),
        (Role::User | Role::System, _) => refuse(
            RejectedEntry::ROLE_NOT_ALLOWED,
            format!(
                "a message of role {} without a turn goes to messages.<thread>, for which a NATS user needs a right of its own",
                role.name()
            ),
        ),
    }
}

fn chunks_of(
    thread: ThreadId,
    class: SubjectClass,
    content_type: Option<&str>,
    payload: &Bytes,
    limits: &DecodeLimits,
) -> Result<Frame, RejectedEntry> {
    let (mut chunks, token) = match form(content_type, payload, is_frame) {
        Form::Json => decode_json(&thread, payload)?,
        Form::Protobuf => decode_protobuf(&thread, class, payload)?,
    };
    if chunks.is_empty() {
        return refuse("malformed", "the payload holds no chunk");
    }
    if let Some(large) = chunks.iter().find(|arrival| arrival.chunk.size() > limits.chunk_bytes) {
        let (id, size, limit) = (large.chunk.id, large.chunk.size(), limits.chunk_bytes);
        return refuse(
            "chunk_too_large",
            format!("chunk {id} has {size} bytes; at most {limit} are allowed"),
        );
    }
    let bare = |arrival: &&IncomingChunk| TurnId::of_answer(&arrival.message).is_none();
    // A token is valid for one answer. If the chunk were accepted as an unrequested message, the
    // token would be ignored.
    if let (Some(_), Some(stray)) = (&token, chunks.iter().find(bare)) {
        let detail = format!("the frame bears a turn token, and {} is no turn's answer", stray.message);
        return refuse("turn_mismatch", detail);
    }
    if token.is_some() {
        chunks.iter().try_for_each(check_call)?;
    }
    for arrival in chunks.iter().filter(bare) {
        if thread.background_kind().is_some() {
            return Err(InvalidCommand::Internal(thread).into());
        }
        check_role(arrival.role, class)?;
    }
    for arrival in chunks.iter_mut().filter(|arrival| arrival.chunk.metadata.is_note_to_hide()) {
        hide_note(arrival, class)?;
    }
    Ok(Frame { thread, chunks, token })
}

/// Checks the id of a call or a result: in the answer of a turn the two are matched by it.
fn check_call(arrival: &IncomingChunk) -> Result<(), RejectedEntry> {
    let chunk = &arrival.chunk;
    let id = chunk.metadata.get("tool_call_id").and_then(|id| id.as_str()).unwrap_or_default();
    match chunk.kind {
        ChunkKind::ToolCall | ChunkKind::ToolResult if id.is_empty() => refuse(
            "invalid_chunk",
            format!(
                "chunk {} is of type {} and has no `tool_call_id` in its metadata",
                chunk.id,
                chunk.kind.name()
            ),
        ),
        _ => Ok(()),
    }
}

/// Hides a note that is only for models. Accepted only from publishers with the right to write as
/// `system`. The note must be one chunk, so that no part of it is shown before it is known to be
/// hidden. Other such notes are refused, because they would be shown.
fn hide_note(arrival: &mut IncomingChunk, class: SubjectClass) -> Result<(), RejectedEntry> {
    let is_whole = arrival.chunk.is_final && arrival.chunk.id == 0;
    let is_of_system = arrival.role == Role::System && class == SubjectClass::Messages;
    if !(is_whole && is_of_system && TurnId::of_answer(&arrival.message).is_none()) {
        return refuse(
            "invalid_chunk",
            "a hidden note is one chunk: role system, chunk_id 0, is_final true, on messages.<thread>, and no answer of a turn",
        );
    }
    let chunk = Arc::make_mut(&mut arrival.chunk);
    chunk.metadata = std::mem::take(&mut chunk.metadata).hidden();
    Ok(())
}

fn command_of(key: &AgentId, payload: &Bytes) -> Result<Decoded, RejectedEntry> {
    let entry = pb::CommandEntry::decode(payload.as_ref()).map_err(|error| malformed(error.into()))?;
    match (entry.opened, entry.control, entry.task, entry.note) {
        (Some(opened), None, None, None) => {
            let thread = key.thread();
            same_session(&thread, &opened.session_id)?;
            Ok(Decoded::Command(Command::Turn(Box::new(command::opened(&thread, opened)?))))
        }
        (None, Some(control), None, None) => {
            Ok(Decoded::Command(Command::Control(command::control(key, control)?)))
        }
        (None, None, Some(task), None) => Ok(Decoded::Command(command::task_of_fleet(key, task)?)),
        (None, None, None, Some(note)) => {
            let thread = key.thread();
            same_session(&thread, &note.session_id)?;
            let frame = command::note(&thread, note)?.into_frame();
            Ok(Decoded::Frame(frame.map_err(InvalidField::from).map_err(refusal)?))
        }
        (None, None, None, None) => refuse("malformed", "the payload holds no command"),
        _ => refuse("malformed", "the payload holds more than one command; one is allowed"),
    }
}

fn task_of(agent: &AgentId, content_type: Option<&str>, payload: &Bytes) -> Result<Command, RejectedEntry> {
    if let Form::Json = form(content_type, payload, is_task_entry) {
        check_utf8(payload)?;
        let parse = |payload: &[u8]| serde_json::from_slice::<JsonTask>(payload);
        let parsed = parse(payload).or_else(|error| match halves::replaced(payload, None) {
            Some(replaced) => parse(&replaced),
            None => Err(error),
        });
        let task = parsed.map_err(|error| RejectedEntry {
            code: "malformed",
            detail: format!("not a task in JSON: {error}"),
        })?;
        return Ok(task.command(agent)?);
    }
    let mut fields = Fields(payload);
    while let Some(mut field) = fields.next().map_err(malformed)? {
        if let 2 | 16..=19 = field.tag {
            return Err(InvalidCommand::WrongSubject("a command", SubjectClass::Tasks).into());
        }
        field.skip().map_err(malformed)?;
    }
    let entry = pb::TaskEntry::decode(payload.as_ref()).map_err(|error| malformed(error.into()))?;
    match entry.task {
        Some(task) => Ok(command::task(agent, task)?),
        None => refuse("malformed", "the payload holds no task"),
    }
}

pub(crate) enum Form {
    Json,
    Protobuf,
}

/// Detects the form of a payload by the Content-Type header, or without it by the first non-blank
/// byte. Protobuf may begin with 0x0A, which is also a line feed. So a payload that begins with
/// white space counts as JSON only if a brace follows.
pub(crate) fn form(content_type: Option<&str>, payload: &[u8], is_protobuf: impl Fn(&[u8]) -> bool) -> Form {
    let json = match content_type {
        Some(kind) if kind.trim_start().starts_with(CONTENT_TYPE_JSON) => true,
        Some(kind) if kind.contains("protobuf") => false,
        _ => looks_like_json(payload, is_protobuf),
    };
    if json { Form::Json } else { Form::Protobuf }
}

fn looks_like_json(payload: &[u8], is_protobuf: impl Fn(&[u8]) -> bool) -> bool {
    match payload.first() {
        Some(b'{' | b'[' | b' ' | b'\t' | b'\r' | 0xEF) => true,
        Some(b'\n') => {
            matches!(payload.trim_ascii_start().first(), Some(b'{' | b'[')) && !is_protobuf(payload)
        }
        _ => false,
    }
}

/// True when the whole payload decodes as a protobuf frame. It is needed only for the rare payloads
/// that begin with a line feed.
pub(crate) fn is_frame(payload: &[u8]) -> bool {
    pb::Frame::decode(payload).is_ok()
}

fn is_task_entry(payload: &[u8]) -> bool {
    pb::TaskEntry::decode(payload).is_ok()
}

/// The fields of a frame other than its chunks.
#[derive(Default)]
struct OtherFields<'a> {
    token: &'a str,
    delivery: &'a str,
    holds_command: bool,
}

fn decode_protobuf(
    thread: &ThreadId,
    class: SubjectClass,
    payload: &[u8],
) -> Result<(Vec<IncomingChunk>, Option<TurnToken>), RejectedEntry> {
    let mut chunks: Vec<IncomingChunk> = Vec::with_capacity(1);
    let mut rest = OtherFields::default();
    let mut fields = Fields(payload);
    while let Some(chunk) = next_chunk(&mut fields, &mut rest).map_err(malformed)? {
        same_session(thread, chunk.session_id)?;
        let last = chunks.last().map(|arrival| &arrival.message);
        let arrival = convert::arrival(chunk, last).map_err(refusal)?;
        chunks.push(arrival);
    }
    if rest.holds_command {
        return Err(InvalidCommand::WrongSubject("a command", class).into());
    }
    let token = convert::token(rest.token, rest.delivery).map_err(refusal)?;
    Ok((chunks, token))
}

/// The next chunk of a frame. Fields before it go into `rest`; unknown fields of later versions are
/// skipped.
fn next_chunk<'a>(
    fields: &mut Fields<'a>,
    rest: &mut OtherFields<'a>,
) -> Result<Option<ChunkRef<'a>>, Malformed> {
    while let Some(mut field) = fields.next()? {
        match field.tag {
            1 => return ChunkRef::read(field.bytes()?).map(Some),
            2 => rest.token = field.text()?,
            3 | 4 | 16..=19 => {
                rest.holds_command = true;
                field.skip()?;
            }
            5 => rest.delivery = field.text()?,
            _ => field.skip()?,
        }
    }
    Ok(None)
}

fn malformed(error: Malformed) -> RejectedEntry {
    RejectedEntry { code: "malformed", detail: format!("not a protobuf frame: {error}") }
}

/// Checks that JSON is UTF-8. Halves of UTF-16 pairs are accepted only as escapes, because their
/// raw bytes (CESU-8) are not UTF-8.
fn check_utf8(payload: &[u8]) -> Result<(), RejectedEntry> {
    match str::from_utf8(payload) {
        Ok(_) => Ok(()),
        Err(error) => {
            refuse("malformed", format!("the JSON is not UTF-8 from byte {} on", error.valid_up_to()))
        }
    }
}

fn decode_json(
    thread: &ThreadId,
    payload: &[u8],
) -> Result<(Vec<IncomingChunk>, Option<TurnToken>), RejectedEntry> {
    check_utf8(payload)?;
    let is_array = payload.trim_ascii_start().first() == Some(&b'[');
    let parse = |payload: &[u8]| match is_array {
        true => serde_json::from_slice::<Vec<JsonChunk>>(payload),
        false => serde_json::from_slice::<JsonChunk>(payload).map(|chunk| vec![chunk]),
    };
    let parsed = parse(payload).or_else(|error| match halves::replaced(payload, Some("chunk")) {
        Some(replaced) => parse(&replaced),
        None => Err(error),
    });
    let chunks = match parsed {
        Ok(chunks) => chunks,
        Err(error) => return refuse("malformed", format!("not a chunk in JSON: {error}")),
    };
    let token = token_of(&chunks).map_err(refusal)?;
    let arrival = |chunk: JsonChunk| {
        same_session(thread, &chunk.session_id)?;
        chunk.arrival().map_err(refusal)
    };
    let chunks = chunks.into_iter().map(arrival).collect::<Result<_, _>>()?;
    Ok((chunks, token))
}

/// The token and the delivery, which must be the same in all chunks of an array.
fn token_of(chunks: &[JsonChunk]) -> Result<Option<TurnToken>, InvalidField> {
    let mut all = chunks.iter().map(|chunk| {
        let [token, delivery] = [&chunk.turn_token, &chunk.delivery_id].map(|text| text.as_deref());
        (token.unwrap_or_default(), delivery.unwrap_or_default())
    });
    let (token, delivery) = all.next().unwrap_or_default();
    match all.all(|other| other == (token, delivery)) {
        true => convert::token(token, delivery),
        false => Err(InvalidField::Tokens),
    }
}

fn same_session(thread: &ThreadId, session_id: &str) -> Result<(), RejectedEntry> {
    if session_id == thread.as_str() {
        return Ok(());
    }
    let shown: String = session_id.chars().take(130).collect();
    refuse("session_mismatch", format!("session_id is {shown:?}, the subject says {thread}"))
}

fn refusal(error: InvalidField) -> RejectedEntry {
    let code = match error {
        InvalidField::Chunk(InvalidChunk::Metadata(
            InvalidMetadata::TokensUsed(_) | InvalidMetadata::Reserved(_) | InvalidMetadata::Inexact,
        )) => "metadata_error",
        _ => "invalid_chunk",
    };
    RejectedEntry { code, detail: error.to_string() }
}

/// The protobuf payload of a frame.
pub fn encode_frame(frame: &Frame) -> Bytes {
    let chunks = frame.chunks.iter().map(|arrival| pb::Chunk {
        session_id: frame.thread.as_str().to_owned(),
        message_id: arrival.message.as_str().to_owned(),
        attempt: arrival.attempt,
        step: arrival.step,
        role: arrival.role as i32,
        ..convert::pb_chunk(&arrival.chunk)
    });
    let turn_token = frame.token.as_ref().map(TurnToken::as_str).unwrap_or_default().to_owned();
    let delivery_id = frame.token.as_ref().and_then(TurnToken::delivery).unwrap_or_default().to_owned();
    pb::Frame { chunks: chunks.collect(), turn_token, delivery_id }.encode_to_vec().into()
}

/// The JSON payload of a frame: an object for one chunk, an array for more.
pub fn encode_json(frame: &Frame) -> Bytes {
    let chunks: Vec<_> = frame
        .chunks
        .iter()
        .map(|arrival| JsonChunkOut {
            session_id: frame.thread.as_str(),
            message_id: arrival.message.as_str(),
            chunk: &arrival.chunk,
            attempt: arrival.attempt,
            step: arrival.step,
            role: arrival.role.name(),
            turn_token: frame.token.as_ref().map(TurnToken::as_str),
            delivery_id: frame.token.as_ref().and_then(TurnToken::delivery),
        })
        .collect();
    let json = match chunks.as_slice() {
        [one] => serde_json::to_vec(one),
        more => serde_json::to_vec(more),
    };
    json.unwrap_or_default().into()
}
