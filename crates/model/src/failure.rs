//! Why an input was given up on, and what is kept of it.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;

use crate::{BatchType, Chunk, ErrorClass, Message, MessageKey, Position, RetryHint, Role, Seq, TurnError};

/// Chunk ids from `first` to `last`, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct IdRange {
    /// Lowest id.
    pub first: u32,
    /// Highest id.
    pub last: u32,
}

impl fmt::Display for IdRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

/// Why a message failed. A message that failed has one terminal error event and one dead letter.
#[derive(Debug, Clone, PartialEq)]
pub enum MessageFailure {
    /// A gap stayed open for too long; what was missing (at most 64 ranges are named).
    GapTimeout {
        /// The missing ids.
        missing: Vec<IdRange>,
    },
    /// No chunk arrived for too long.
    Stalled,
    /// Two finals, a chunk beyond the final, a final below an accepted id, or an accepted chunk that comes again as final.
    FinalConflict {
        /// The id of the final chunk that was known or came.
        final_id: u32,
        /// The id that contradicts it.
        other_id: u32,
    },
    /// More chunks, or a higher id, than a message may have.
    TooManyChunks {
        /// The limit.
        limit: u32,
    },
    /// More text than a message may have.
    MessageTooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// The producer said so with an `error` chunk; its text.
    ProducerError {
        /// What the producer wrote.
        text: String,
        /// What it said of trying again.
        hint: RetryHint,
    },
    /// A turn that failed for a reason of its own.
    Turn(TurnError),
    /// The turn request could not be made: the context is too large for one message, for example.
    Unrequestable {
        /// Why.
        detail: String,
    },
    /// Its thread does not exist, and chunks may not create threads here.
    UnknownThread,
    /// The store refused the message itself (SQLSTATE class 22, 23, 54).
    Unstorable {
        /// What the store said: SQLSTATE and its text.
        detail: String,
    },
}

impl MessageFailure {
    /// The code that metrics, clients and dead letters carry.
    pub fn code(&self) -> &'static str {
        match self {
            Self::GapTimeout { .. } => "gap_timeout",
            Self::Stalled => "stalled",
            Self::FinalConflict { .. } => "final_conflict",
            Self::TooManyChunks { .. } => "too_many_chunks",
            Self::MessageTooLarge { .. } => "message_too_large",
            Self::ProducerError { .. } => "producer_error",
            Self::Turn(fault) => fault.code(),
            Self::Unrequestable { .. } => "request_invalid",
            Self::UnknownThread => "unknown_thread",
            Self::Unstorable { .. } => "rejected_by_database",
        }
    }

    /// What it means for the queue, and for a client that thinks of trying again.
    pub fn hint(&self) -> RetryHint {
        match self {
            Self::ProducerError { hint, .. } => *hint,
            // Trying again would bring the same.
            Self::TooManyChunks { .. }
            | Self::MessageTooLarge { .. }
            | Self::Unstorable { .. }
            | Self::UnknownThread
            | Self::Unrequestable { .. }
            | Self::Turn(TurnError::Unknown) => {
                RetryHint { class: ErrorClass::Permanent, retry_after_ms: None }
            }
            Self::GapTimeout { .. }
            | Self::Stalled
            | Self::FinalConflict { .. }
            | Self::Turn(
                TurnError::Deadline | TurnError::Busy | TurnError::Stopped | TurnError::RolledBack,
            ) => RetryHint::TRANSIENT,
        }
    }

    /// Whether the same again may succeed.
    pub fn is_retryable(&self) -> bool {
        self.hint().class != ErrorClass::Permanent
    }
}

impl fmt::Display for MessageFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GapTimeout { missing } => {
                f.write_str("chunks never arrived:")?;
                missing.iter().try_for_each(|range| write!(f, " {range}"))
            }
            Self::Stalled => f.write_str("no chunk arrived for too long"),
            Self::FinalConflict { final_id, other_id } => {
                write!(f, "chunk {final_id} is final, but chunk {other_id} contradicts it")
            }
            Self::TooManyChunks { limit } => write!(f, "the message has more than {limit} chunks"),
            Self::MessageTooLarge { limit } => write!(f, "the message has more than {limit} bytes"),
            Self::ProducerError { text, .. } => f.write_str(text),
            Self::Turn(fault) => f.write_str(fault.text()),
            Self::Unrequestable { detail } => write!(f, "the turn request could not be made: {detail}"),
            Self::UnknownThread => {
                f.write_str("the thread does not exist, and chunks may not create threads here")
            }
            Self::Unstorable { detail } => write!(f, "the store refused the message: {detail}"),
        }
    }
}

/// A message that failed, as clients that come later see it.
#[derive(Debug, Clone, PartialEq)]
pub struct FailedMessage {
    /// The thread and the message.
    pub key: MessageKey,
    /// Its place among the ends of the thread.
    pub position: Position,
    /// The attempt that failed.
    pub attempt: u32,
    /// Who spoke.
    pub role: Role,
    /// What its batch began with.
    pub batch_type: BatchType,
    /// Why.
    pub failure: MessageFailure,
}

impl FailedMessage {
    /// A message that was complete, or the answer of a turn that was, and that the store refuses: it fails where it would have stood.
    pub fn unstorable(message: &Message, detail: String) -> Self {
        Self {
            key: message.key.clone(),
            position: message.placement.position,
            attempt: message.attempt,
            role: message.role,
            batch_type: message.placement.batch_type,
            failure: MessageFailure::Unstorable { detail },
        }
    }
}

/// Why one stream entry was refused as a whole; nothing else changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedEntry {
    /// A closed set of codes: `malformed`, `invalid_chunk`, `invalid_subject`, `wrong_partition`, `session_mismatch`,
    /// `chunk_too_large`, `metadata_error`, `invalid_command`, `turn_mismatch`, `wrong_subject`, `empty_input`, `input_too_large`, `task_conflict`,
    /// `unknown_agent`.
    pub code: &'static str,
    /// What was wrong, for people.
    pub detail: String,
}

/// What a dead letter keeps.
#[derive(Debug, Clone, PartialEq)]
pub enum DeadLetterSource {
    /// A stream entry, raw.
    Entry {
        /// Its subject.
        subject: String,
        /// Its payload.
        payload: Bytes,
        /// Why.
        refusal: RejectedEntry,
    },
    /// A message that failed, with every chunk that was accepted of it, by id.
    Message {
        /// Which.
        key: MessageKey,
        /// Its attempt.
        attempt: u32,
        /// Its chunks by id.
        chunks: Vec<Arc<Chunk>>,
        /// Why.
        failure: MessageFailure,
    },
}

/// An input given up on, written in the transaction that passes it.
#[derive(Debug, Clone, PartialEq)]
pub struct DeadLetter {
    /// The entry, or the first entry of the message.
    pub seq: Seq,
    /// What is kept.
    pub source: DeadLetterSource,
}

impl DeadLetter {
    /// Bytes that it counts against the size of a commit.
    pub fn size(&self) -> usize {
        match &self.source {
            DeadLetterSource::Entry { payload, .. } => payload.len() + 128,
            DeadLetterSource::Message { chunks, .. } => {
                chunks.iter().map(|chunk| chunk.size() + 64).sum::<usize>() + 128
            }
        }
    }
}
