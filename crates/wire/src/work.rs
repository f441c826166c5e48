//! Turn requests on `work.<workflow>` and turn events on `turns.<thread>`: JSON, for services in
//! any language. `proto/antiphon/v1/work.proto` documents the fields.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// A request to a workflow service. `M` is a message of its context, or its encoded form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnRequest<M = ContextMessage> {
    pub turn_id: String,
    /// Number of the run, from 0.
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
    /// A message on this subject means that the fleet no longer awaits the run.
    pub stop_subject: String,
    /// Time without a chunk after which the run fails, ms.
    pub deadline_ms: u64,
    /// When the run fails if no chunk arrives, RFC 3339. A first delivery after this time must not
    /// be started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// The task of the turn; absent for a person's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskRef>,
    /// As many complete turns of the thread as fit, oldest first, then the input. It is valid for
    /// any model provider without changes: each result directly follows its call, and no message is
    /// empty.
    pub context: Vec<M>,
    /// Replaces the compacted turns before the context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// Facts of the agent that match the input, best first. Empty unless the agent's settings
    /// enable memory.
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
    /// The correlation id for tracing across services.
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
    /// The text: at most one sentence.
    pub text: String,
    /// A category such as `preference` or `event`.
    pub kind: String,
    /// Confidence from 0 to 1.
    pub confidence: f32,
    /// The thread in which the fact was found; absent for a fact added by a client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    /// The answer in that thread after which the fact was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
}

/// One message of a context.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContextMessage {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    pub content: String,
    /// The calls of an assistant message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// The call that a tool message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The message's id. Empty for a message that was inserted to make the context valid for
    /// providers.
    pub message_id: String,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

/// A message of a context, or its JSON if it has already been encoded.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum MaybeEncoded<'a> {
    /// The JSON of a [`ContextMessage`].
    Json(&'a RawValue),
    /// A message that is not encoded yet.
    Message(Box<ContextMessage>),
}

/// A call made by a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The id, which is unique in the turn.
    pub id: String,
    pub name: String,
    /// The arguments as the model wrote them: JSON as text.
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
    /// The task; absent for a person's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// The persisted assistant message, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// The batch as a decimal string, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_id: Option<String>,
    /// The reason why the turn failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}
