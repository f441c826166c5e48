//! What publishers send: frames of chunks, as protobuf or JSON.

use bytes::Bytes;
use model::{
    Arrival, Bucket, Frame, InvalidChunk, InvalidMetadata, PartitionCount, PartitionId, Refusal, ThreadId,
};
use prost::Message as _;

use crate::borrowed::{ChunkRef, Fields, Malformed};
use crate::convert::{self, InvalidField};
use crate::json::{JsonChunk, JsonChunkOut};
use crate::pb;
use crate::subject::{Stored, parse_stored};

/// Content type of a JSON payload.
pub const CONTENT_TYPE_JSON: &str = "application/json";
/// Content type of a protobuf payload.
pub const CONTENT_TYPE_PROTOBUF: &str = "application/x-protobuf";

/// What an entry must obey.
#[derive(Debug, Clone, Copy)]
pub struct DecodeLimits {
    /// Bytes of text and metadata of one chunk.
    pub chunk_bytes: usize,
    /// Partitions of the fleet: a thread in a stream that is not its own is refused, or two owners would write it.
    pub partitions: PartitionCount,
}

/// Decodes one entry of the stream of partition `p`.
///
/// # Errors
/// A [`Refusal`] says what was wrong with the entry as a whole: nothing of it is used.
pub fn decode_entry(
    p: PartitionId,
    subject: &str,
    content_type: Option<&str>,
    payload: &Bytes,
    limits: &DecodeLimits,
) -> Result<Frame, Refusal> {
    let thread = thread_of(p, subject, limits)?;
    let chunks = match form(content_type, payload) {
        Form::Json => decode_json(&thread, payload),
        Form::Protobuf => decode_protobuf(&thread, payload),
    }?;
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
    Ok(Frame { thread, chunks, token: None })
}

fn refuse<T>(code: &'static str, detail: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { code, detail: detail.into() })
}

fn thread_of(p: PartitionId, subject: &str, limits: &DecodeLimits) -> Result<ThreadId, Refusal> {
    let token = match parse_stored(p, subject) {
        Some(Stored::Chunks(token)) => token,
        Some(Stored::Tasks(_)) => return refuse("unsupported", "this version of the fleet runs no tasks"),
        None => return refuse("invalid_subject", format!("{subject:?} is no subject of partition {p}")),
    };
    let thread = match ThreadId::parse(token) {
        Ok(thread) => thread,
        Err(error) => return refuse("invalid_subject", format!("the thread in the subject: {error}")),
    };
    let right = Bucket::of(&thread).partition(limits.partitions);
    if right != p {
        return refuse("wrong_partition", format!("thread {thread} belongs to partition {right}, not {p}"));
    }
    Ok(thread)
}

enum Form {
    Json,
    Protobuf,
}

/// The Content-Type header tells; without it the first byte that is no white space. A protobuf frame begins with
/// 0x0A, which is also a line feed, so that a brace must follow white space to count as JSON.
fn form(content_type: Option<&str>, payload: &[u8]) -> Form {
    let json = match content_type {
        Some(kind) if kind.trim_start().starts_with(CONTENT_TYPE_JSON) => true,
        Some(kind) if kind.contains("protobuf") => false,
        _ => looks_like_json(payload),
    };
    if json { Form::Json } else { Form::Protobuf }
}

fn looks_like_json(payload: &[u8]) -> bool {
    match payload.first() {
        Some(b'{' | b'[' | b' ' | b'\t' | b'\r' | 0xEF) => true,
        Some(b'\n') => matches!(payload.trim_ascii_start().first(), Some(b'{' | b'[')) && !is_frame(payload),
        _ => false,
    }
}

/// True when the whole payload reads as a protobuf frame. Seldom asked: only where a line feed comes first.
fn is_frame(payload: &[u8]) -> bool {
    pb::Frame::decode(payload).is_ok()
}

fn decode_protobuf(thread: &ThreadId, payload: &[u8]) -> Result<Vec<Arrival>, Refusal> {
    let mut chunks: Vec<Arrival> = Vec::with_capacity(1);
    let mut fields = Fields(payload);
    while let Some(chunk) = next_chunk(&mut fields).map_err(malformed)? {
        same_session(thread, chunk.session_id)?;
        let last = chunks.last().map(|arrival| &arrival.message);
        let arrival = convert::arrival(chunk, last).map_err(refusal)?;
        chunks.push(arrival);
    }
    Ok(chunks)
}

/// The next chunk of a frame; other fields are not for us.
fn next_chunk<'a>(fields: &mut Fields<'a>) -> Result<Option<ChunkRef<'a>>, Malformed> {
    while let Some(mut field) = fields.next()? {
        match field.tag {
            1 => return ChunkRef::read(field.bytes()?).map(Some),
            _ => field.skip()?,
        }
    }
    Ok(None)
}

fn malformed(error: Malformed) -> Refusal {
    Refusal { code: "malformed", detail: format!("not a protobuf frame: {error}") }
}

fn decode_json(thread: &ThreadId, payload: &[u8]) -> Result<Vec<Arrival>, Refusal> {
    let is_array = payload.trim_ascii_start().first() == Some(&b'[');
    let parsed = match is_array {
        true => serde_json::from_slice::<Vec<JsonChunk>>(payload),
        false => serde_json::from_slice::<JsonChunk>(payload).map(|chunk| vec![chunk]),
    };
    let chunks = match parsed {
        Ok(chunks) => chunks,
        Err(error) => return refuse("malformed", format!("not a chunk in JSON: {error}")),
    };
    let arrival = |chunk: JsonChunk| {
        same_session(thread, &chunk.session_id)?;
        chunk.arrival().map_err(refusal)
    };
    chunks.into_iter().map(arrival).collect()
}

fn same_session(thread: &ThreadId, session_id: &str) -> Result<(), Refusal> {
    if session_id == thread.as_str() {
        return Ok(());
    }
    let shown: String = session_id.chars().take(130).collect();
    refuse("session_mismatch", format!("session_id is {shown:?}, the subject says {thread}"))
}

fn refusal(error: InvalidField) -> Refusal {
    let code = match error {
        InvalidField::Chunk(InvalidChunk::Metadata(InvalidMetadata::TokensUsed(_))) => "metadata_error",
        _ => "invalid_chunk",
    };
    Refusal { code, detail: error.to_string() }
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
    pb::Frame { chunks: chunks.collect(), ..pb::Frame::default() }.encode_to_vec().into()
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
        })
        .collect();
    let json = match chunks.as_slice() {
        [one] => serde_json::to_vec(one),
        more => serde_json::to_vec(more),
    };
    json.unwrap_or_default().into()
}
