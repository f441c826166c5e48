//! A message: one item of a thread, complete.

use std::sync::Arc;

use serde_json::Value;

use crate::{Bucket, Chunk, MessageId, MessageKey, Metadata, Position, Role, Timestamp};

/// What a batch began with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BatchType {
    /// A person's message.
    UserRequest,
    /// A task or another agent's message.
    AgentToAgent,
    /// Something in the system: a timer, or a workflow that speaks without being asked.
    SystemTrigger,
    /// A continuation that continues an earlier batch.
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

    /// All of them, in the order of their numbers on the wire.
    pub const ALL: [Self; 4] =
        [Self::UserRequest, Self::AgentToAgent, Self::SystemTrigger, Self::Continuation];

    /// The one of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
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

/// When a message came, as far as its owner knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MessageTimes {
    /// Of a turn's input: when it was accepted. Of any other message: when its last chunk came. `None`: it counts as created when it is stored.
    pub created_at: Option<Timestamp>,
    /// Of a turn's input: when the run began that answers it. Of any other message: when its first chunk came.
    pub started_at: Option<Timestamp>,
}

/// A complete message, ready to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Thread and message id.
    pub key: MessageKey,
    /// Where it stands.
    pub placement: Placement,
    /// The author's role.
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
    /// When it came.
    pub times: MessageTimes,
}

impl Message {
    /// The bucket of its thread.
    pub fn bucket(&self) -> Bucket {
        self.key.thread.bucket()
    }

    /// Bytes that it counts against the size of a commit.
    pub fn size(&self) -> usize {
        self.content.len() + self.metadata.size() + 128
    }
}

/// An open message as a gateway may show it, from what it has on; from 0 when the attempt is another one.
#[derive(Debug, Clone, PartialEq)]
pub struct PartialText {
    /// The message.
    pub message: MessageId,
    /// Its attempt.
    pub attempt: u32,
    /// The author's role.
    pub role: Role,
    /// What its batch began with.
    pub batch_type: BatchType,
    /// Released chunks with consecutive ids.
    pub chunks: Vec<Arc<Chunk>>,
    /// The id that will be released next.
    pub next: u32,
}

/// How a message ended, as gateways and clients learn of it after the commit.
#[derive(Debug, Clone, PartialEq)]
pub enum MessageOutcome {
    /// Persisted whole.
    Complete,
    /// Persisted as far as it had come when its turn was stopped.
    Stopped,
    /// Given up.
    Failed(crate::MessageFailure),
}

/// The number of a frame among all that one owner sends: how a reader of one thread's frames notices that one is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameNumber {
    /// The epoch of the owner's lease; it counts from 1 anew in each.
    pub epoch: u64,
    /// Counts all frames of the partition.
    pub number: u64,
    /// No frame of this thread has a number between this one and `number`.
    pub after: u64,
}

/// What of a thread has been sent and committed at one moment, as its owner says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// The epoch of the owner's lease.
    pub epoch: u64,
    /// Every frame up to this number is in the cut, and none above it.
    pub number: u64,
    /// Every message of the thread at or below this position has ended, and no other one has.
    pub committed: Position,
    /// The owner has read all that its stream holds, as far as it knows: what is neither open nor committed does not exist, unless it has
    /// come this very moment.
    pub is_current: bool,
}
