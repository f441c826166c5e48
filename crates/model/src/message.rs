//! A message: one complete item of a thread.

use std::sync::Arc;

use serde_json::Value;

use crate::{Bucket, Chunk, MessageId, MessageKey, Metadata, Position, Role, Timestamp};

/// What started a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BatchType {
    /// A person's message.
    UserRequest,
    /// A task or another agent's message.
    AgentToAgent,
    /// Something in the system: a timer, or a workflow that publishes without being asked.
    SystemTrigger,
    /// A continuation of an earlier batch.
    Continuation,
}

impl BatchType {
    /// Name in Postgres and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::UserRequest => "user_request",
            Self::AgentToAgent => "agent_to_agent",
            Self::SystemTrigger => "system_trigger",
            Self::Continuation => "continuation",
        }
    }

    /// In the order of their numbers on the wire.
    pub const ALL: [Self; 4] =
        [Self::UserRequest, Self::AgentToAgent, Self::SystemTrigger, Self::Continuation];

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Place of a message in its thread and batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Unique and increasing within the thread.
    pub position: Position,
    /// Position of the batch's first message.
    pub batch_id: Position,
    /// Number in the batch, from 0.
    pub sequence_num: i32,
    pub batch_type: BatchType,
}

/// Times of a message, as far as its owner knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MessageTimes {
    /// For a turn's input, the time of its acceptance; otherwise the arrival of the last chunk.
    /// `None`: the message counts as created when it is stored.
    pub created_at: Option<Timestamp>,
    /// For a turn's input, the start of the run that answers it; otherwise the arrival of the first
    /// chunk.
    pub started_at: Option<Timestamp>,
}

/// A complete message to write.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    pub key: MessageKey,
    pub placement: Placement,
    /// The author's role.
    pub role: Role,
    /// Concatenation of its content chunks in order.
    pub content: String,
    /// Tool calls in the order of the model, as a JSON array; `None` if there are none.
    pub tool_calls: Option<Value>,
    /// Call that a tool message answers.
    pub tool_call_id: Option<String>,
    /// The final chunk's metadata.
    pub metadata: Metadata,
    /// Value of `tokens_used` in the metadata.
    pub token_count: Option<i64>,
    /// Attempt that produced it.
    pub attempt: u32,
    pub times: MessageTimes,
}

impl Message {
    /// The bucket of its thread.
    pub fn bucket(&self) -> Bucket {
        self.key.thread.bucket()
    }

    /// Size in bytes for commit limits.
    pub fn size(&self) -> usize {
        self.content.len() + self.metadata.size() + 128
    }
}

/// What a gateway has of an open message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownMessage {
    pub message: MessageId,
    pub attempt: u32,
    /// Id of the first chunk that the gateway lacks.
    pub next: u32,
    /// True if the gateway has the input that the message answers.
    pub has_input: bool,
}

/// The part of an open message's text that a gateway lacks; all of it, from chunk 0, if the attempt
/// differs.
#[derive(Debug, Clone, PartialEq)]
pub struct PartialText {
    pub message: MessageId,
    pub attempt: u32,
    /// The author's role.
    pub role: Role,
    /// Type of the message's batch.
    pub batch_type: BatchType,
    /// Released chunks with consecutive ids.
    pub chunks: Vec<Arc<Chunk>>,
    /// Id of the chunk released next.
    pub next: u32,
    /// The input that the message answers, unless the gateway has it or it does not fit.
    pub input: Option<Arc<crate::OpenInput>>,
}

/// Result of a message, sent to gateways and clients after the commit.
#[derive(Debug, Clone, PartialEq)]
pub enum MessageOutcome {
    Complete,
    /// Persisted up to the point at which its turn was stopped.
    Stopped,
    Failed(crate::MessageFailure),
}

/// Number of a frame among all frames of one owner. With it, a reader of one thread notices that a
/// frame is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameNumber {
    /// Epoch of the owner's lease; numbers start again at 1 in each epoch.
    pub epoch: u64,
    /// Counts all frames of the partition.
    pub number: u64,
    /// No frame of this thread has a number between this one and `number`.
    pub after: u64,
}

/// State of a thread at one moment, as reported by its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Epoch of the owner's lease.
    pub epoch: u64,
    /// Frames up to this number are in the cut, later ones are not.
    pub number: u64,
    /// Exactly the messages of the thread up to this position have ended.
    pub committed: Position,
    /// True if the owner has read everything it knows of in its stream. A message that is neither
    /// open nor committed then does not exist, unless it has just arrived.
    pub is_current: bool,
}
