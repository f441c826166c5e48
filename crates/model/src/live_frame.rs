//! What clients that follow a thread are sent, before it is encoded.

use std::sync::Arc;

use crate::{
    AnswerReport, BatchType, Chunk, FrameNumber, MessageId, MessageOutcome, Position, Role, ThreadId,
};

/// What became ready of one message: chunks, or how it ended.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveFrame {
    /// The thread.
    pub thread: ThreadId,
    /// The message.
    pub message: MessageId,
    /// Its attempt.
    pub attempt: u32,
    /// The author's role.
    pub role: Role,
    /// What its batch began with.
    pub batch_type: BatchType,
    /// Which of the owner's frames it is.
    pub number: FrameNumber,
    /// Chunks with consecutive ids.
    pub chunks: Vec<Arc<Chunk>>,
    /// How it ended, after the commit.
    pub terminal: Option<MessageEnd>,
}

/// How a message ended.
#[derive(Debug, Clone, PartialEq)]
pub struct MessageEnd {
    /// Its place among the ends of its thread.
    pub position: Position,
    /// Chunks released before the end.
    pub chunks: u32,
    /// The outcome.
    pub outcome: MessageOutcome,
    /// Of an answer that is persisted: why it ended and what it used.
    pub report: AnswerReport,
}
