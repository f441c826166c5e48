//! What is kept of an input that was given up on.

use std::sync::Arc;

use bytes::Bytes;

use crate::{BatchType, Chunk, Message, MessageFailure, MessageKey, Position, Role, Seq};

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
    /// `chunk_too_large`, `metadata_error`, `invalid_command`, `turn_mismatch`, `empty_input`, `input_too_large`, `task_conflict`,
    /// `unknown_agent`, and those of [`Self::FORBIDDEN`].
    pub code: &'static str,
    /// What was wrong, for people.
    pub detail: String,
}

impl RejectedEntry {
    /// A command on a subject that others than the fleet may publish.
    pub const WRONG_SUBJECT: &str = "wrong_subject";
    /// A bare message of a role that its subject does not take.
    pub const ROLE_NOT_ALLOWED: &str = "role_not_allowed";
    /// Codes of entries that ask for more than their subject gives a right to.
    pub const FORBIDDEN: [&str; 2] = [Self::WRONG_SUBJECT, Self::ROLE_NOT_ALLOWED];

    /// Whether the publisher lacks a right, or pretends to be the fleet.
    pub fn is_forbidden(&self) -> bool {
        Self::FORBIDDEN.contains(&self.code)
    }
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
