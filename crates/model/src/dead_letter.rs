//! Dead letters: inputs that were given up, and why.

use std::sync::Arc;

use bytes::Bytes;

use crate::{BatchType, Chunk, Message, MessageFailure, MessageKey, Position, Role, Seq};

/// A failed message, as shown to clients that connect later.
#[derive(Debug, Clone, PartialEq)]
pub struct FailedMessage {
    pub key: MessageKey,
    /// Position in the order in which messages of the thread end.
    pub position: Position,
    pub attempt: u32,
    pub role: Role,
    /// Type of the message's batch.
    pub batch_type: BatchType,
    pub failure: MessageFailure,
}

impl FailedMessage {
    /// A complete message that the store refuses. It fails at the position at which it would have
    /// been stored.
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

/// Why a stream entry was refused as a whole. No other state changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedEntry {
    /// One of the codes `malformed`, `invalid_chunk`, `invalid_subject`, `wrong_partition`,
    /// `session_mismatch`, `chunk_too_large`, `metadata_error`, `invalid_command`, `turn_mismatch`,
    /// `empty_input`, `input_too_large`, `task_conflict`, `unknown_agent`, and those of
    /// [`Self::FORBIDDEN`].
    pub code: &'static str,
    /// Description of the error, for people.
    pub detail: String,
}

impl RejectedEntry {
    /// A command on a subject that publishers outside the fleet may use.
    pub const WRONG_SUBJECT: &str = "wrong_subject";
    /// A bare message with a role that its subject does not allow.
    pub const ROLE_NOT_ALLOWED: &str = "role_not_allowed";
    /// Codes of entries that ask for more than their subject permits.
    pub const FORBIDDEN: [&str; 2] = [Self::WRONG_SUBJECT, Self::ROLE_NOT_ALLOWED];

    /// True if the publisher lacks a permission or poses as the fleet.
    pub fn is_forbidden(&self) -> bool {
        Self::FORBIDDEN.contains(&self.code)
    }
}

/// Content of a dead letter.
#[derive(Debug, Clone, PartialEq)]
pub enum DeadLetterSource {
    /// A stream entry with its raw payload.
    Entry { subject: String, payload: Bytes, refusal: RejectedEntry },
    /// A failed message with all its accepted chunks.
    Message {
        key: MessageKey,
        attempt: u32,
        /// Chunks in the order of ids.
        chunks: Vec<Arc<Chunk>>,
        failure: MessageFailure,
    },
}

/// An input given up on, written in the transaction that moves the checkpoint past it.
#[derive(Debug, Clone, PartialEq)]
pub struct DeadLetter {
    /// The entry, or the first entry of the message.
    pub seq: Seq,
    pub source: DeadLetterSource,
}

impl DeadLetter {
    /// Size in bytes for commit limits.
    pub fn size(&self) -> usize {
        match &self.source {
            DeadLetterSource::Entry { payload, .. } => payload.len() + 128,
            DeadLetterSource::Message { chunks, .. } => {
                chunks.iter().map(|chunk| chunk.size() + 64).sum::<usize>() + 128
            }
        }
    }
}
