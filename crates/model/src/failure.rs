//! Why a message failed.

use std::fmt;

use serde::Serialize;

use crate::{ErrorClass, Metadata, RetryHint, TurnError};

/// Chunk ids from `first` to `last`, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct IdRange {
    pub first: u32,
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

/// Why a message failed. A failed message has one terminal error event and one dead letter.
#[derive(Debug, Clone, PartialEq)]
pub enum MessageFailure {
    /// A gap was open for too long.
    GapTimeout {
        /// Missing ids, at most 64 ranges.
        missing: Vec<IdRange>,
    },
    /// No chunk arrived for too long.
    Stalled,
    /// Two finals, a chunk beyond the final, a final below an accepted id, or an accepted chunk
    /// repeated as final.
    FinalConflict {
        /// Id of the final chunk.
        final_id: u32,
        /// Id that contradicts it.
        other_id: u32,
    },
    /// More chunks, or a higher id, than allowed.
    TooManyChunks { limit: u32 },
    /// More text than allowed.
    MessageTooLarge {
        /// Limit in bytes.
        limit: usize,
    },
    /// The producer reported it with an `error` chunk.
    ProducerError {
        /// Text of the chunk.
        text: String,
        /// The producer's own code, if any: see [`MessageFailure::own_code`].
        code: Option<String>,
        /// The producer's hint about retries.
        hint: RetryHint,
    },
    /// A payload of the answer was refused: it had the turn's token but violated the contract, so
    /// the answer can never be complete.
    Refused {
        /// See [`crate::RejectedEntry::code`].
        code: String,
        /// What was wrong with the payload.
        detail: String,
        /// Dead letter that keeps the payload.
        dead_letter: String,
    },
    /// A turn failed for a reason other than its answer.
    Turn(TurnError),
    /// The turn request could not be made, for example because the context is too large for one
    /// message.
    Unrequestable { detail: String },
    /// The thread does not exist, and chunks are not allowed to create threads here.
    UnknownThread,
    /// The store refused the message itself (SQLSTATE class 22, 23, 54).
    Unstorable {
        /// SQLSTATE and error text of the store.
        detail: String,
    },
}

impl MessageFailure {
    /// Code in rows, dead letters and messages to clients; the producer's own code if it gave one.
    pub fn code(&self) -> &str {
        match self {
            Self::ProducerError { code: Some(code), .. } | Self::Refused { code, .. } => code,
            _ => self.kind(),
        }
    }

    /// The producer's own error code: `code` in the metadata of the `error` chunk, 1 to 64 of the
    /// characters `A-Z a-z 0-9 _ . -`. Anything else is ignored.
    pub fn own_code(metadata: &Metadata) -> Option<String> {
        let code = metadata.get("code")?.as_str()?;
        let is_code = |code: &str| {
            (1..=64).contains(&code.len())
                && code.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'))
        };
        is_code(code).then(|| code.to_owned())
    }

    /// Closed set of names, for metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::GapTimeout { .. } => "gap_timeout",
            Self::Stalled => "stalled",
            Self::FinalConflict { .. } => "final_conflict",
            Self::TooManyChunks { .. } => "too_many_chunks",
            Self::MessageTooLarge { .. } => "message_too_large",
            Self::ProducerError { .. } => "producer_error",
            Self::Refused { .. } => "chunk_refused",
            Self::Turn(fault) => fault.code(),
            Self::Unrequestable { .. } => "request_invalid",
            Self::UnknownThread => "unknown_thread",
            Self::Unstorable { .. } => "rejected_by_database",
        }
    }

    /// Effect on the queue, and on a client that considers a retry.
    pub fn hint(&self) -> RetryHint {
        match self {
            Self::ProducerError { hint, .. } => *hint,
            // A retry would fail the same way.
            Self::TooManyChunks { .. }
            | Self::MessageTooLarge { .. }
            | Self::Unstorable { .. }
            | Self::UnknownThread
            | Self::Refused { .. }
            | Self::Unrequestable { .. }
            | Self::Turn(TurnError::Unknown) => {
                RetryHint { class: ErrorClass::Permanent, retry_after_ms: None }
            }
            Self::GapTimeout { .. }
            | Self::Stalled
            | Self::FinalConflict { .. }
            | Self::Turn(
                TurnError::Deadline
                | TurnError::Unanswered(_)
                | TurnError::Busy
                | TurnError::Stopped
                | TurnError::RolledBack,
            ) => RetryHint::TRANSIENT,
        }
    }

    /// True if a retry may succeed.
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
            Self::Refused { detail, dead_letter, .. } => {
                write!(f, "a chunk of the answer was refused: {detail} (dead letter {dead_letter})")
            }
            Self::Turn(fault) => f.write_str(fault.text()),
            Self::Unrequestable { detail } => write!(f, "the turn request could not be made: {detail}"),
            Self::UnknownThread => {
                f.write_str("the thread does not exist, and chunks may not create threads here")
            }
            Self::Unstorable { detail } => write!(f, "the store refused the message: {detail}"),
        }
    }
}
