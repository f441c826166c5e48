//! Turn requests on `work.<workflow>` and turn events on `turns.<thread>`: JSON, for services in
//! any language. `proto/antiphon/v1/work.proto` documents the fields.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// A request to a workflow service. `M` is a message of its context, or its encoded form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnRequest<M = ContextMessage> {
    pub turn_id: String,
    /// Counted from 0.
    pub run: u32,
    /// The attempt of the first delivery; each redelivery adds one.
    pub attempt: u32,
    /// The workflow whose services receive the request.
    pub workflow: String,
    pub agent_id: String,
    /// The thread, which chunks call `session_id`.
    pub thread_id: String,
    /// The message id for the answer's chunks.
    pub message_id: String,
    /// The token for the answer's chunks.
    pub turn_token: String,
    /// The exact subject for the chunks.
    pub subject: String,
    /// A message on this subject means that the run is no longer awaited.
    pub stop_subject: String,
    /// The run fails if no chunk arrives for this long, ms.
    pub deadline_ms: u64,
    /// When the run fails without a chunk, RFC 3339. A first delivery after this time is not begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// Absent for a person's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskRef>,
    /// As many complete turns of the thread as fit, oldest first, then the input. Valid for any
    /// model provider without changes: each result directly follows its call, and nothing is empty.
    pub context: Vec<M>,
    /// Replaces the compacted turns before the context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// Facts of the agent that match the input, the best first; empty unless its settings ask for
    /// memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<RememberedFact>,
    /// Approximate tokens of the agent's `system`, the summary and the context.
    #[serde(default)]
    pub context_tokens: u64,
    /// The settings of the agent, unchanged.
    #[serde(default)]
    pub settings: Map<String, Value>,
    /// Model parameters from the client for this turn.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub parameters: Map<String, Value>,
    /// For tracing across services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
}

/// The task of a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskRef {
    pub task_id: String,
    /// `task`, `work_request`, `memory` or `compaction`.
    pub kind: String,
}

/// A fact of an agent, and its origin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RememberedFact {
    pub fact_id: String,
    /// At most one sentence.
    pub text: String,
    /// A category such as `preference` or `event`.
    pub kind: String,
    /// From 0 to 1.
    pub confidence: f32,
    /// The thread in which it was found; absent for a fact added by a client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    /// The answer in that thread after which it was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
}

/// One message of a context.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContextMessage {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    pub content: String,
    /// Assistant messages only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Tool messages only: the call that is answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Empty for a message inserted to make the context valid for providers.
    pub message_id: String,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

/// A message of a context, or its JSON if it was encoded before.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum MaybeEncoded<'a> {
    /// The JSON of a [`ContextMessage`].
    Json(&'a RawValue),
    /// Not encoded yet.
    Message(Box<ContextMessage>),
}

/// A call made by a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Unique in the turn.
    pub id: String,
    pub name: String,
    /// JSON as text, as written by the model.
    pub arguments: String,
}

/// The end of a turn, for integrators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnEvent {
    pub turn_id: String,
    pub thread_id: String,
    pub agent_id: String,
    /// `completed`, `failed` or `stopped`.
    pub status: String,
    /// Absent for a person's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// The persisted assistant message, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// The batch as a decimal string, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_id: Option<String>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}
