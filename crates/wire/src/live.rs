//! Messages from owners to gateways on `live.<gateway>`, `live.owners` and `live.facts`.

use std::sync::Arc;

use bytes::Bytes;
use model::{
    AnswerReport, Chunk, ErrorClass, FinishReason, FrameNumber, IdRange, LiveFrame, MessageEnd,
    MessageFailure, MessageKey, MessageOutcome, ModelCall, PartitionId, Position, RetryHint, ThreadId,
    TurnError, WaitNotice,
};
use prost::Message as _;

use crate::zero_copy::{ChunkRef, Fields};
use crate::{DecodeError, InvalidField, convert, pb, status};

/// The payload of a frame.
pub fn encode(frame: &LiveFrame) -> Bytes {
    let text: usize = frame.chunks.iter().map(|chunk| chunk.text.len() + 24).sum();
    let mut out = ProtobufWriter(Vec::with_capacity(
        text + frame.thread.as_str().len() + frame.message.as_str().len() + 48,
    ));
    out.bytes(1, frame.thread.as_str().as_bytes());
    out.bytes(2, frame.message.as_str().as_bytes());
    out.varint_field(3, frame.attempt.into());
    out.varint_field(4, frame.role as u64);
    let mut scratch = ProtobufWriter(Vec::with_capacity(512));
    for chunk in &frame.chunks {
        scratch.0.clear();
        scratch.chunk(chunk);
        out.bytes(5, &scratch.0);
    }
    if let Some(end) = &frame.terminal {
        out.bytes(6, &pb_terminal(end).encode_to_vec());
    }
    out.varint_field(7, frame.number.epoch);
    out.varint_field(8, frame.number.number);
    out.varint_field(9, frame.number.after);
    out.varint_field(10, frame.batch_type as u64);
    if let Some(input) = &frame.input {
        out.bytes(12, &convert::pb_open_input(input).encode_to_vec());
    }
    out.0.into()
}

/// The payload of a notice, which is sent like frames.
pub fn encode_notice(notice: &WaitNotice) -> Bytes {
    let mut out = ProtobufWriter(Vec::with_capacity(128));
    out.bytes(1, notice.thread.as_str().as_bytes());
    out.bytes(2, notice.message.as_str().as_bytes());
    out.bytes(11, &status::pb_reason(notice.reason).encode_to_vec());
    out.0.into()
}

/// A message from an owner to a gateway.
#[derive(Debug, Clone, PartialEq)]
pub enum FromOwner {
    /// A live frame, encoded by [`encode`].
    Frame(LiveFrame),
    /// A notice, encoded by [`encode_notice`].
    Notice(WaitNotice),
}

impl FromOwner {
    pub fn into_frame(self) -> Option<LiveFrame> {
        match self {
            Self::Frame(frame) => Some(frame),
            Self::Notice(_) => None,
        }
    }
}

/// Frames for one gateway, collected in one payload.
#[derive(Debug, Default)]
pub struct FrameBatch(Vec<u8>);

impl FrameBatch {
    /// Adds a frame or notice encoded by [`encode`] or [`encode_notice`].
    pub fn push(&mut self, frame: &[u8]) {
        let mut out = ProtobufWriter(std::mem::take(&mut self.0));
        out.bytes(1, frame);
        self.0 = out.0;
    }

    /// Current size of the payload in bytes.
    pub fn size(&self) -> usize {
        self.0.len()
    }

    pub fn into_payload(self) -> Bytes {
        self.0.into()
    }
}

/// Splits a payload of [`FrameBatch`] into frames, each with its thread. The frames stay encoded
/// and share the payload's memory.
///
/// # Errors
/// The bytes are not such a payload, or the id of a thread is invalid.
pub fn frames(payload: &Bytes) -> Result<Vec<(ThreadId, Bytes)>, DecodeError> {
    let mut fields = Fields(payload);
    let mut frames = Vec::new();
    while let Some(mut field) = fields.next()? {
        match field.tag {
            1 => {
                let frame = payload.slice_ref(field.bytes()?);
                frames.push((thread_of(&frame)?, frame));
            }
            _ => field.skip()?,
        }
    }
    Ok(frames)
}

fn thread_of(frame: &[u8]) -> Result<ThreadId, DecodeError> {
    let mut fields = Fields(frame);
    while let Some(mut field) = fields.next()? {
        match field.tag {
            1 => return Ok(parse_thread(field.text()?)?),
            _ => field.skip()?,
        }
    }
    Err(InvalidField::Missing("session_id").into())
}

fn parse_thread(id: &str) -> Result<ThreadId, InvalidField> {
    ThreadId::parse(id).map_err(|error| InvalidField::Id("session_id", error))
}

/// The payload that announces the owner of a partition, with its epoch.
pub fn encode_owner(partition: PartitionId, epoch: u64) -> Bytes {
    pb::OwnerAnnouncement { partition: partition.0.into(), epoch }.encode_to_vec().into()
}

/// Decodes the output of [`encode_owner`]: the partition, and the epoch of its owner.
///
/// # Errors
/// The bytes are not an announcement.
pub fn decode_owner(payload: &Bytes) -> Result<(PartitionId, u64), DecodeError> {
    let owner = pb::OwnerAnnouncement::decode(payload.as_ref())?;
    let partition = u16::try_from(owner.partition).map_err(|_| InvalidField::Missing("partition"))?;
    Ok((PartitionId(partition), owner.epoch))
}

/// The payload that announces facts found with an answer.
pub fn encode_remembered(answer: &MessageKey) -> Bytes {
    let (session_id, message_id) = (answer.thread.to_string(), answer.message.to_string());
    pb::Remembered { session_id, message_id }.encode_to_vec().into()
}

/// Decodes the output of [`encode_remembered`].
///
/// # Errors
/// The bytes are not such a payload, or an id is invalid.
pub fn decode_remembered(payload: &Bytes) -> Result<MessageKey, DecodeError> {
    let remembered = pb::Remembered::decode(payload.as_ref())?;
    let (thread, message) =
        (parse_thread(&remembered.session_id)?, convert::message_id(&remembered.message_id)?);
    Ok(MessageKey { thread, message })
}

/// Decodes a frame or a notice.
///
/// # Errors
/// The bytes are neither, or a field breaks a rule of the model.
pub fn decode(payload: &Bytes) -> Result<FromOwner, DecodeError> {
    let (mut thread, mut message, mut attempt, mut role, mut batch_type) = ("", "", 0, 0, 0);
    let mut number = FrameNumber { epoch: 0, number: 0, after: 0 };
    let (mut chunks, mut end, mut reason) = (Vec::with_capacity(1), None::<pb::Terminal>, None);
    let mut input = None;
    let mut fields = Fields(payload);
    while let Some(mut field) = fields.next()? {
        match field.tag {
            1 => thread = field.text()?,
            2 => message = field.text()?,
            3 => attempt = field.varint()? as u32,
            4 => role = field.varint()? as i32,
            5 => chunks.push(convert::chunk(ChunkRef::read(field.bytes()?)?)?),
            6 => end.get_or_insert_default().merge(field.bytes()?)?,
            7 => number.epoch = field.varint()?,
            8 => number.number = field.varint()?,
            9 => number.after = field.varint()?,
            10 => batch_type = field.varint()? as i32,
            11 => reason = Some(pb::WaitReason::decode(field.bytes()?)?),
            12 => input = Some(convert::open_input(pb::OpenInput::decode(field.bytes()?)?)?),
            _ => field.skip()?,
        }
    }
    let (thread, message) = (parse_thread(thread)?, convert::message_id(message)?);
    if let Some(reason) = reason {
        return Ok(FromOwner::Notice(WaitNotice { thread, message, reason: status::reason(reason)? }));
    }
    Ok(FromOwner::Frame(LiveFrame {
        thread,
        message,
        attempt,
        role: convert::role(role)?,
        batch_type: convert::batch_type(batch_type)?,
        number,
        chunks,
        terminal: end.map(terminal).transpose()?,
        input: input.map(Arc::new),
    }))
}

fn terminal(terminal: pb::Terminal) -> Result<MessageEnd, InvalidField> {
    let outcome = match terminal.failed {
        Some(failed) => MessageOutcome::Failed(failure(failed)?),
        None if terminal.stopped => MessageOutcome::Stopped,
        None => MessageOutcome::Complete,
    };
    let report = AnswerReport {
        finish_reason: FinishReason::from_name(&terminal.finish_reason),
        usage: terminal.usage.map(|usage| Box::new(model_call(usage))),
    };
    let position = Position::from_stored(terminal.position);
    Ok(MessageEnd { position, chunks: terminal.chunks, outcome, report })
}

fn model_call(usage: pb::Usage) -> ModelCall {
    ModelCall {
        model: ModelCall::name(&usage.model),
        input_tokens: usage.input_tokens,
        output_tokens: usage.output_tokens,
        cached_tokens: usage.cached_tokens,
        reasoning_tokens: usage.reasoning_tokens,
        is_estimated: usage.estimated,
    }
}

fn failure(failed: pb::Failed) -> Result<MessageFailure, InvalidField> {
    Ok(match failed.code.as_str() {
        "gap_timeout" => MessageFailure::GapTimeout {
            missing: failed.missing.iter().map(|ids| IdRange { first: ids.first, last: ids.last }).collect(),
        },
        "stalled" => MessageFailure::Stalled,
        "final_conflict" => {
            MessageFailure::FinalConflict { final_id: failed.final_id, other_id: failed.other_id }
        }
        "too_many_chunks" => MessageFailure::TooManyChunks { limit: failed.limit as u32 },
        "message_too_large" => MessageFailure::MessageTooLarge { limit: failed.limit as usize },
        // The retry delay is left out, because only the owner needs it.
        "producer_error" => {
            let class = ErrorClass::from_name(&failed.class).unwrap_or(ErrorClass::Transient);
            MessageFailure::ProducerError {
                text: failed.text,
                code: (!failed.own_code.is_empty()).then_some(failed.own_code),
                hint: RetryHint { class, retry_after_ms: None },
            }
        }
        "chunk_refused" => MessageFailure::Refused {
            code: failed.own_code,
            detail: failed.text,
            dead_letter: failed.dead_letter,
        },
        "request_invalid" => MessageFailure::Unrequestable { detail: failed.text },
        "unknown_thread" => MessageFailure::UnknownThread,
        "rejected_by_database" => MessageFailure::Unstorable { detail: failed.text },
        code => match TurnError::from_code(code) {
            Some(fault) => MessageFailure::Turn(fault),
            None => return Err(InvalidField::Enum("code", failed.code)),
        },
    })
}

fn pb_terminal(end: &MessageEnd) -> pb::Terminal {
    let failed = match &end.outcome {
        MessageOutcome::Complete | MessageOutcome::Stopped => None,
        MessageOutcome::Failed(failure) => Some(pb_failed(failure)),
    };
    let stopped = end.outcome == MessageOutcome::Stopped;
    let finish_reason = end.report.finish_reason.map_or("", FinishReason::name).to_owned();
    let usage = end.report.usage.as_deref().map(pb_usage);
    pb::Terminal { position: end.position.get(), failed, chunks: end.chunks, stopped, finish_reason, usage }
}

fn pb_usage(call: &ModelCall) -> pb::Usage {
    pb::Usage {
        input_tokens: call.input_tokens,
        output_tokens: call.output_tokens,
        cached_tokens: call.cached_tokens,
        reasoning_tokens: call.reasoning_tokens,
        estimated: call.is_estimated,
        model: call.model.as_deref().unwrap_or_default().to_owned(),
    }
}

fn pb_failed(failure: &MessageFailure) -> pb::Failed {
    let failed =
        pb::Failed { code: failure.kind().to_owned(), text: failure.to_string(), ..pb::Failed::default() };
    match failure {
        MessageFailure::GapTimeout { missing } => {
            let missing = missing.iter().map(|ids| pb::IdRange { first: ids.first, last: ids.last });
            pb::Failed { missing: missing.collect(), ..failed }
        }
        MessageFailure::FinalConflict { final_id, other_id } => {
            pb::Failed { final_id: *final_id, other_id: *other_id, ..failed }
        }
        MessageFailure::TooManyChunks { limit } => pb::Failed { limit: (*limit).into(), ..failed },
        MessageFailure::MessageTooLarge { limit } => pb::Failed { limit: *limit as u64, ..failed },
        MessageFailure::Unstorable { detail } | MessageFailure::Unrequestable { detail } => {
            pb::Failed { text: detail.clone(), ..failed }
        }
        MessageFailure::ProducerError { hint, code, .. } => pb::Failed {
            class: hint.class.name().to_owned(),
            own_code: code.clone().unwrap_or_default(),
            ..failed
        },
        MessageFailure::Refused { code, detail, dead_letter } => pb::Failed {
            own_code: code.clone(),
            text: detail.clone(),
            dead_letter: dead_letter.clone(),
            ..failed
        },
        MessageFailure::Stalled | MessageFailure::UnknownThread | MessageFailure::Turn(_) => failed,
    }
}

/// Writes protobuf fields directly from the model. The generated types would first copy every text
/// into a `String`, and this code runs for every chunk of the fleet.
struct ProtobufWriter(Vec<u8>);

impl ProtobufWriter {
    fn varint(&mut self, value: u64) {
        prost::encoding::encode_varint(value, &mut self.0);
    }

    fn varint_field(&mut self, field: u64, value: u64) {
        if value != 0 {
            self.varint(field << 3);
            self.varint(value);
        }
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn chunk(&mut self, chunk: &Chunk) {
        self.varint_field(3, chunk.id.into());
        self.bytes(4, chunk.text.as_bytes());
        self.varint_field(5, chunk.kind as u64);
        self.varint_field(6, chunk.is_final.into());
        if let Some(metadata) = convert::pb_metadata(&chunk.metadata) {
            self.bytes(7, &metadata.encode_to_vec());
        }
        if let Some(timestamp) = &chunk.timestamp {
            self.bytes(8, timestamp.as_bytes());
        }
        if let Some(correlation_id) = &chunk.correlation_id {
            self.bytes(9, correlation_id.as_bytes());
        }
    }
}
