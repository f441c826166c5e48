//! Records of tool calls, in the stream `TOOL_CALLS`: JSON, written by workflow services and read
//! by gateways.

use serde::{Deserialize, Serialize};

/// The record of one call of a turn. The last entry of its subject is valid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCallRecord {
    /// A random id for each execution of the tool. Incidents refer to it.
    pub start: String,
    pub tool: String,
    pub state: ToolCallState,
    /// Start time, RFC 3339.
    pub started_at: String,
}

/// The progress of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolCallState {
    /// The tool is being called, or the outcome of the call is unknown.
    Started,
    /// The call did not reach the tool.
    NotRun,
    /// The tool has answered.
    Done(KeptResult),
}

/// The result of a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptResult {
    /// The text for the model.
    pub text: String,
    /// True if the model should treat the result as an error.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_error: bool,
}

/// A call with unknown outcome, of a tool that must not be called twice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolIncident {
    /// The value of [`ToolCallRecord::start`] in the call's record.
    pub start: String,
    /// The agent named in the turn request.
    pub agent_id: String,
    pub tool: String,
    /// JSON as text, shortened if long.
    pub arguments: String,
    /// Start of the call, RFC 3339.
    pub started_at: String,
    /// When the outcome was found to be unknown, RFC 3339.
    pub detected_at: String,
    /// The decision of a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<ToolDecision>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<String>,
}

/// The decision of a person about a call of unknown outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolDecision {
    /// Call the tool again.
    RunAgain,
    /// Do not call it again; the turn continues with this result.
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
