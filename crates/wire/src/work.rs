//! Turn requests on `work.<workflow>` and turn events on `turns.<thread>`: JSON, for services in any language. What the
//! fields mean stands in `proto/antiphon/v1/work.proto`.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// What a workflow service is asked to do. `M`: a message of its context, or what is encoded as one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnRequest<M = ContextMessage> {
    /// The turn.
    pub turn_id: String,
    /// Its run, from 0.
    pub run: u32,
    /// The attempt of the first delivery; each redelivery counts one more.
    pub attempt: u32,
    /// The workflow whose services receive the request.
    pub workflow: String,
    /// The agent.
    pub agent_id: String,
    /// The thread, which chunks call `session_id`.
    pub thread_id: String,
    /// The id that the answer's chunks bear.
    pub message_id: String,
    /// What the answer's chunks must carry.
    pub turn_token: String,
    /// Exactly where the chunks go.
    pub subject: String,
    /// A message on this subject means that the run is no longer awaited.
    pub stop_subject: String,
    /// The run fails if no chunk arrives for this long, ms.
    pub deadline_ms: u64,
    /// When the run fails unless a chunk has come, RFC 3339: after it the first delivery is not begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// The task; absent for a person's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskRef>,
    /// Complete turns of the thread, as many as fit, oldest first, then the input; valid for any provider of models as they
    /// stand: every call has its result right after it, and nothing is empty.
    pub context: Vec<M>,
    /// Replaces the compacted turns before the context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// What the agent remembers that fits the input, the best first; empty unless its settings ask for memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<RememberedFact>,
    /// About how many tokens the agent's `system`, the summary and the context take.
    #[serde(default)]
    pub context_tokens: u64,
    /// The agent's settings, as they were put.
    #[serde(default)]
    pub settings: Map<String, Value>,
    /// What the client asks of the model for this turn.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub parameters: Map<String, Value>,
    /// For tracing across services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
}

/// The task that a turn is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskRef {
    /// Its id.
    pub task_id: String,
    /// `task`, `work_request`, `memory` or `compaction`.
    pub kind: String,
}

/// A fact that an agent remembers, and where it comes from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RememberedFact {
    /// Its id.
    pub fact_id: String,
    /// One sentence.
    pub text: String,
    /// What it is about: `preference`, `event` and the like.
    pub kind: String,
    /// From 0 to 1.
    pub confidence: f32,
    /// The thread that it was found in; absent for one that was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    /// The answer there after which it was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
}

/// One message of a context.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContextMessage {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Its text.
    pub content: String,
    /// Of an assistant message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Of a tool message: the call that it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Its id; empty for one that was made up, so that a provider takes the rest.
    pub message_id: String,
    /// Its metadata.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

/// A message of a context, or its JSON where it was encoded before.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum MaybeEncoded<'a> {
    /// The JSON of a [`ContextMessage`].
    Json(&'a RawValue),
    /// Not encoded yet.
    Message(Box<ContextMessage>),
}

/// A call that a model has made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Unique in the turn.
    pub id: String,
    /// The tool.
    pub name: String,
    /// A JSON text, as the model wrote it.
    pub arguments: String,
}

/// A turn's end, for integrators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnEvent {
    /// The turn.
    pub turn_id: String,
    /// Its thread.
    pub thread_id: String,
    /// Its agent.
    pub agent_id: String,
    /// `completed`, `failed` or `stopped`.
    pub status: String,
    /// The task; absent for a person's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// The persisted assistant message, when there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// The batch, likewise; a decimal string.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_id: Option<String>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}
