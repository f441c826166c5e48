//! Frames for clients that follow a thread, before encoding.

use std::sync::Arc;

use crate::{
    AnswerReport, BatchType, Chunk, FrameNumber, MessageId, MessageOutcome, OpenInput, Position, Role,
    ThreadId,
};

/// Ready chunks of one message, its end, or the input that it answers.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveFrame {
    pub thread: ThreadId,
    pub message: MessageId,
    pub attempt: u32,
    pub role: Role,
    /// Type of the message's batch.
    pub batch_type: BatchType,
    /// Number among the owner's frames.
    pub number: FrameNumber,
    /// Chunks with consecutive ids.
    pub chunks: Vec<Arc<Chunk>>,
    /// End of the message, set after the commit.
    pub terminal: Option<MessageEnd>,
    /// The input that the message answers, in a frame without chunks and end.
    pub input: Option<Arc<OpenInput>>,
}

/// How a message ended.
#[derive(Debug, Clone, PartialEq)]
pub struct MessageEnd {
    /// Position in the order in which messages of its thread end.
    pub position: Position,
    /// Chunks released before the end.
    pub chunks: u32,
    pub outcome: MessageOutcome,
    /// For a persisted answer: its finish reason and usage.
    pub report: AnswerReport,
}
