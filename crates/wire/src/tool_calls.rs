//! What is known of tool calls, in the stream `TOOL_CALLS`: JSON, written by workflow services and read by gateways.

use serde::{Deserialize, Serialize};

/// What is known of one call of a turn. The last one of its subject counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCallRecord {
    /// Random for each time that the tool is called: incidents name it.
    pub start: String,
    /// The tool.
    pub tool: String,
    /// How far the call has come.
    pub state: ToolCallState,
    /// When it began, RFC 3339.
    pub started_at: String,
}

/// How far a call has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolCallState {
    /// The tool is being called, or it is not known what has become of the call.
    Started,
    /// The tool was not reached.
    NotRun,
    /// The tool has answered.
    Done(KeptResult),
}

/// What a tool has answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptResult {
    /// As the model reads it.
    pub text: String,
    /// Whether the model reads it as an error.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_error: bool,
}

/// A call whose outcome is unknown, of a tool that must not be called twice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolIncident {
    /// [`ToolCallRecord::start`] of the call that it is about.
    pub start: String,
    /// The agent, as the turn request names it.
    pub agent_id: String,
    /// The tool.
    pub tool: String,
    /// A JSON text, shortened where it is long.
    pub arguments: String,
    /// When the call began, RFC 3339.
    pub started_at: String,
    /// When it was found that its outcome is unknown, RFC 3339.
    pub detected_at: String,
    /// What a person has decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<ToolDecision>,
    /// Who has decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<String>,
}

/// What a person decides about a call of unknown outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolDecision {
    /// The tool is called again.
    RunAgain,
    /// The tool is not called again: the turn goes on with this result.
    Result(KeptResult),
}

impl ToolDecision {
    /// `run_again` or `result`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::RunAgain => "run_again",
            Self::Result(_) => "result",
        }
    }
}
