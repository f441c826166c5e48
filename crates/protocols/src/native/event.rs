//! What the events of the native stream report, as values: the encoders of the other protocols take these, so every subscriber, whatever
//! its protocol, follows the one sequence that is ordered, repaired and resumed for native clients.

use std::sync::Arc;

use model::{AnswerReport, Chunk, MessageId, Position, Role, WaitReason};

use super::StreamError;

/// An event of the native stream.
#[derive(Debug, Clone, PartialEq)]
pub enum NativeEvent {
    /// The next chunk of a message.
    Chunk {
        /// Which message.
        message: MessageId,
        /// The attempt that it comes from.
        attempt: u32,
        /// Who speaks.
        role: Role,
        /// The chunk.
        chunk: Arc<Chunk>,
        /// It holds what the store has of several chunks.
        is_compacted: bool,
    },
    /// A message starts again.
    Reset {
        /// Which message.
        message: MessageId,
        /// The new attempt.
        attempt: u32,
    },
    /// A message is committed.
    Complete {
        /// Which message.
        message: MessageId,
        /// Where it stands.
        position: Position,
        /// As far as it had come when its turn was stopped.
        is_stopped: bool,
        /// Why it ended and what it used.
        report: AnswerReport,
    },
    /// A message was given up.
    Failed {
        /// Which message.
        message: MessageId,
        /// Its place among the ends of the thread.
        position: Position,
        /// Why.
        failure: Box<StreamError>,
    },
    /// The turn of an answer waits, and for what. It may be repeated, and is not resumed.
    Waiting {
        /// The answer.
        message: MessageId,
        /// For what.
        reason: WaitReason,
    },
    /// Earlier events of the thread are void: its store went back in time. What follows repeats what is valid.
    Restart,
}

impl NativeEvent {
    /// The message that ends with this event.
    pub fn ended(&self) -> Option<&MessageId> {
        match self {
            Self::Complete { message, .. } | Self::Failed { message, .. } => Some(message),
            Self::Chunk { .. } | Self::Reset { .. } | Self::Waiting { .. } | Self::Restart => None,
        }
    }
}
