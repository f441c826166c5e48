//! A message: one item of a thread, complete.

use std::sync::Arc;

use serde_json::Value;

use crate::{Bucket, Chunk, MessageId, MessageKey, Metadata, Position, Role};

/// What a batch began with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BatchType {
    /// A person's message.
    UserRequest,
    /// A task or another agent's message.
    AgentToAgent,
    /// Something in the system: a timer, or a workflow that speaks without being asked.
    SystemTrigger,
    /// A heartbeat that continues an earlier batch.
    Continuation,
}

impl BatchType {
    /// The name in Postgres and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::UserRequest => "user_request",
            Self::AgentToAgent => "agent_to_agent",
            Self::SystemTrigger => "system_trigger",
            Self::Continuation => "continuation",
        }
    }
}

/// Where a message stands in its thread and batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Unique and increasing within the thread.
    pub position: Position,
    /// The position of the batch's first message.
    pub batch_id: Position,
    /// Its number in the batch, from 0.
    pub sequence_num: i32,
    /// What the batch began with.
    pub batch_type: BatchType,
}

/// A complete message, ready to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Thread and message id.
    pub key: MessageKey,
    /// Where it stands.
    pub placement: Placement,
    /// Who speaks.
    pub role: Role,
    /// Concatenation of its content chunks in order.
    pub content: String,
    /// Tool calls in the order of the model, as a JSON array; `None` when it has none.
    pub tool_calls: Option<Value>,
    /// Which call a tool message answers.
    pub tool_call_id: Option<String>,
    /// The final chunk's metadata.
    pub metadata: Metadata,
    /// `tokens_used` of the metadata.
    pub token_count: Option<i64>,
    /// The attempt that produced it.
    pub attempt: u32,
}

impl Message {
    /// The bucket of its thread.
    pub fn bucket(&self) -> Bucket {
        Bucket::of(&self.key.thread)
    }

    /// Bytes that it counts against the size of a commit.
    pub fn size(&self) -> usize {
        self.content.len() + self.metadata.size() + 128
    }
}

/// An open message as a gateway may show it, from what it has on; from 0 when the attempt is another one.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenText {
    /// The message.
    pub message: MessageId,
    /// Its attempt.
    pub attempt: u32,
    /// Who speaks.
    pub role: Role,
    /// Released chunks with consecutive ids.
    pub chunks: Vec<Arc<Chunk>>,
    /// The id that will be released next.
    pub next: u32,
}

/// How a message ended, as gateways and clients learn of it after the commit.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Persisted at this position.
    Complete(Position),
    /// Given up; kept as a dead letter.
    Failed(crate::Failure),
}
