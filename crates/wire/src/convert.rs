//! Converts between protobuf types and the model.

use std::sync::Arc;

use model::{
    BatchType, Chunk, ChunkKind, Halves, IncomingChunk, InvalidChunk, InvalidId, InvalidMetadata,
    InvalidTurnId, MAX_CHUNK_ID, MessageId, Metadata, OpenInput, Role, Timestamp, TurnId, TurnToken,
};
use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use serde_json::{Map, Number, Value as Json};

use crate::pb;
use crate::zero_copy::ChunkRef;

/// Maximum bytes of a delivery id.
const MAX_DELIVERY_ID: usize = 64;

/// A field breaks a rule; the error names the field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidField {
    #[error("{0}: {1}")]
    Id(&'static str, InvalidId),
    #[error("turn_id: {0}")]
    Turn(InvalidTurnId),
    /// The number is not a value of the enum.
    #[error("{0} has the unknown value {1}")]
    Enum(&'static str, String),
    /// A rule of chunks is broken.
    #[error(transparent)]
    Chunk(#[from] InvalidChunk),
    #[error("timestamp {0:?} is not RFC 3339")]
    Timestamp(String),
    #[error("correlation_id has {0} bytes; at most 256 are allowed")]
    CorrelationId(usize),
    /// The chunks of one frame have different tokens or deliveries.
    #[error("the chunks of one frame carry different turn tokens or delivery ids")]
    Tokens,
    /// The delivery id is longer than [`MAX_DELIVERY_ID`].
    #[error("delivery_id has {0} bytes; at most {MAX_DELIVERY_ID} are allowed")]
    DeliveryId(usize),
    #[error("{0} is missing")]
    Missing(&'static str),
}

impl From<InvalidMetadata> for InvalidField {
    fn from(error: InvalidMetadata) -> Self {
        Self::Chunk(error.into())
    }
}

/// The token of a frame, and its delivery.
pub(crate) fn token(token: &str, delivery: &str) -> Result<Option<TurnToken>, InvalidField> {
    if delivery.len() > MAX_DELIVERY_ID {
        return Err(InvalidField::DeliveryId(delivery.len()));
    }
    let token = (!token.is_empty()).then(|| TurnToken::received(token));
    Ok(match delivery {
        "" => token,
        delivery => token.map(|token| token.of_delivery(delivery)),
    })
}

pub(crate) fn message_id(text: &str) -> Result<MessageId, InvalidField> {
    MessageId::parse(text).map_err(|error| InvalidField::Id("message_id", error))
}

pub(crate) fn role(number: i32) -> Result<Role, InvalidField> {
    let known = usize::try_from(number).ok().and_then(|index| Role::ALL.get(index).copied());
    known.ok_or_else(|| InvalidField::Enum("role", number.to_string()))
}

pub(crate) fn batch_type(number: i32) -> Result<BatchType, InvalidField> {
    let known = usize::try_from(number).ok().and_then(|index| BatchType::ALL.get(index).copied());
    known.ok_or_else(|| InvalidField::Enum("batch_type", number.to_string()))
}

pub(crate) fn kind(number: i32) -> Result<ChunkKind, InvalidField> {
    let known = usize::try_from(number).ok().and_then(|index| ChunkKind::ALL.get(index).copied());
    known.ok_or_else(|| InvalidField::Enum("chunk_type", number.to_string()))
}

pub(crate) fn chunk_id(number: i64) -> Result<u32, InvalidField> {
    let id = u32::try_from(number).ok().filter(|id| *id <= MAX_CHUNK_ID);
    id.ok_or(InvalidField::Chunk(InvalidChunk::Id(number)))
}

/// Parses an RFC 3339 time, to the millisecond.
pub fn parse_rfc3339(text: &str) -> Option<Timestamp> {
    let at = time::OffsetDateTime::parse(text, &time::format_description::well_known::Rfc3339).ok()?;
    i64::try_from(at.unix_timestamp_nanos().div_euclid(1_000_000)).ok().map(Timestamp)
}

/// Formats a time as RFC 3339; `None` if it is outside the calendar's range.
pub fn rfc3339(at: Timestamp) -> Option<String> {
    let at = time::OffsetDateTime::from_unix_timestamp_nanos(i128::from(at.0) * 1_000_000).ok()?;
    at.format(&time::format_description::well_known::Rfc3339).ok()
}

pub(crate) fn timestamp(text: &str) -> Result<Option<Box<str>>, InvalidField> {
    if text.is_empty() {
        return Ok(None);
    }
    match time::OffsetDateTime::parse(text, &time::format_description::well_known::Rfc3339) {
        Ok(_) => Ok(Some(text.into())),
        Err(_) => Err(InvalidField::Timestamp(text.chars().take(40).collect())),
    }
}

pub(crate) fn correlation_id(text: &str) -> Result<Option<Box<str>>, InvalidField> {
    match text.len() {
        0 => Ok(None),
        1..=256 => Ok(Some(text.into())),
        bytes => Err(InvalidField::CorrelationId(bytes)),
    }
}

/// The chunk itself, without its message, attempt, step and role.
pub(crate) fn chunk(read: ChunkRef<'_>) -> Result<Arc<Chunk>, InvalidField> {
    let chunk = Chunk {
        id: chunk_id(read.chunk_id)?,
        kind: kind(read.chunk_type)?,
        is_final: read.is_final,
        text: read.chunk.into(),
        halves: Halves::NONE,
        metadata: metadata(read.metadata)?,
        timestamp: timestamp(read.timestamp)?,
        correlation_id: correlation_id(read.correlation_id)?,
    };
    chunk.check()?;
    Ok(Arc::new(chunk))
}

/// A chunk of a publisher's frame. `last` is the message id of the previous chunk: most frames have
/// one message.
pub(crate) fn arrival(read: ChunkRef<'_>, last: Option<&MessageId>) -> Result<IncomingChunk, InvalidField> {
    let message = match last {
        Some(last) if last.as_str() == read.message_id => last.clone(),
        _ => message_id(read.message_id)?,
    };
    let (attempt, step, role) = (read.attempt, read.step, role(read.role)?);
    let chunk = chunk(read)?;
    chunk.metadata.check_from_client()?;
    Ok(IncomingChunk { message, attempt, step, role, chunk })
}

pub(crate) fn metadata(fields: Option<Struct>) -> Result<Metadata, InvalidField> {
    match fields {
        None => Ok(Metadata::EMPTY),
        Some(fields) => Ok(Metadata::new(json_map(fields)?)?),
    }
}

fn json_map(fields: Struct) -> Result<Map<String, Json>, InvalidField> {
    fields.fields.into_iter().map(|(key, value)| Ok((key, json_value(value)?))).collect()
}

fn json_value(value: Value) -> Result<Json, InvalidField> {
    Ok(match value.kind {
        None | Some(Kind::NullValue(_)) => Json::Null,
        Some(Kind::BoolValue(bool)) => Json::Bool(bool),
        Some(Kind::NumberValue(number)) => Json::Number(json_number(number)?),
        Some(Kind::StringValue(text)) => Json::String(text),
        Some(Kind::ListValue(list)) => {
            Json::Array(list.values.into_iter().map(json_value).collect::<Result<_, _>>()?)
        }
        Some(Kind::StructValue(fields)) => Json::Object(json_map(fields)?),
    })
}

/// Converts a number of protobuf's Struct, which has only doubles. Whole numbers become integers
/// again, as their publisher wrote them.
fn json_number(number: f64) -> Result<Number, InvalidField> {
    let exact = model::MAX_EXACT_INTEGER as f64;
    if number.fract() == 0.0 && number.abs() <= exact && !(number == 0.0 && number.is_sign_negative()) {
        return Ok(Number::from(number as i64));
    }
    Number::from_f64(number).ok_or_else(|| InvalidMetadata::Number.into())
}

pub(crate) fn pb_open_input(input: &OpenInput) -> pb::OpenInput {
    pb::OpenInput {
        turn_id: input.turn.as_str().to_owned(),
        run: input.run,
        content: input.content.clone(),
        metadata: pb_metadata(&input.metadata),
        accepted_ms: input.accepted_at.0,
    }
}

pub(crate) fn open_input(input: pb::OpenInput) -> Result<OpenInput, InvalidField> {
    Ok(OpenInput {
        turn: TurnId::parse(&input.turn_id).map_err(InvalidField::Turn)?,
        run: input.run,
        content: input.content,
        metadata: metadata(input.metadata)?,
        accepted_at: Timestamp(input.accepted_ms),
    })
}

pub(crate) fn pb_metadata(metadata: &Metadata) -> Option<Struct> {
    metadata.as_map().map(pb_struct)
}

fn pb_struct(map: &Map<String, Json>) -> Struct {
    Struct { fields: map.iter().map(|(key, value)| (key.clone(), pb_value(value))).collect() }
}

fn pb_value(value: &Json) -> Value {
    let kind = match value {
        Json::Null => Kind::NullValue(0),
        Json::Bool(bool) => Kind::BoolValue(*bool),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Json::String(text) => Kind::StringValue(text.clone()),
        Json::Array(items) => Kind::ListValue(ListValue { values: items.iter().map(pb_value).collect() }),
        Json::Object(map) => Kind::StructValue(pb_struct(map)),
    };
    Value { kind: Some(kind) }
}

/// The protobuf form of a chunk, without the ids of its thread and message.
pub(crate) fn pb_chunk(chunk: &Chunk) -> pb::Chunk {
    pb::Chunk {
        chunk_id: chunk.id.into(),
        chunk: chunk.text.to_string(),
        chunk_type: chunk.kind as i32,
        is_final: chunk.is_final,
        metadata: pb_metadata(&chunk.metadata),
        timestamp: chunk.timestamp.as_deref().unwrap_or_default().to_owned(),
        correlation_id: chunk.correlation_id.as_deref().unwrap_or_default().to_owned(),
        ..pb::Chunk::default()
    }
}
