//! Events of the native stream as values. The encoders of other protocols take these, so every
//! subscriber, whatever its protocol, follows the one ordered, repaired and resumable sequence.

use std::sync::Arc;

use model::{AnswerReport, Chunk, MessageId, OpenInput, Position, Role, WaitReason};

use super::StreamError;

/// An event of the native stream.
#[derive(Debug, Clone, PartialEq)]
pub enum NativeEvent {
    /// The next chunk of a message.
    Chunk {
        message: MessageId,
        /// Attempt of the chunk.
        attempt: u32,
        role: Role,
        chunk: Arc<Chunk>,
        /// The chunk holds the stored text of several chunks.
        is_compacted: bool,
    },
    /// A message restarts.
    Reset {
        message: MessageId,
        /// The new attempt.
        attempt: u32,
    },
    /// A message is committed.
    Complete {
        message: MessageId,
        position: Position,
        /// The message is incomplete, because its turn was stopped.
        is_stopped: bool,
        /// Why it ended, and its usage.
        report: AnswerReport,
    },
    /// A message failed.
    Failed {
        message: MessageId,
        /// The position at which it ended in the thread.
        position: Position,
        failure: Box<StreamError>,
    },
    /// A person's input is accepted; the answer follows.
    Input(Arc<OpenInput>),
    /// The input of this answer will not be in the history: its turn has failed.
    InputWithdrawn { message: MessageId },
    /// The turn of an answer waits. The event may be repeated and is not resumed.
    Waiting { message: MessageId, reason: WaitReason },
    /// Earlier events of the thread are void, because its store went back in time. The valid ones
    /// are repeated.
    Restart,
}

impl NativeEvent {
    /// The message that ends with this event.
    pub fn ended(&self) -> Option<&MessageId> {
        match self {
            Self::Complete { message, .. } | Self::Failed { message, .. } => Some(message),
            Self::Chunk { .. }
            | Self::Reset { .. }
            | Self::Input(_)
            | Self::InputWithdrawn { .. }
            | Self::Waiting { .. }
            | Self::Restart => None,
        }
    }
}
