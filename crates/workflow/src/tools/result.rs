//! The result of a tool call.

/// The tool's answer to the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ToolResult {
    pub(crate) text: String,
    pub(crate) is_error: bool,
}

impl ToolResult {
    pub(crate) fn error(text: impl Into<String>) -> Self {
        Self { text: format!("error: {}", text.into()), is_error: true }
    }
}

/// The outcome of a tool call, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ToolOutcome {
    /// The tool has answered, perhaps with an error.
    Answered(ToolResult),
    /// The tool was not reached.
    NotRun(ToolResult),
    /// The tool may have run, but its answer did not arrive.
    Unknown(ToolResult),
}

impl ToolOutcome {
    /// The result for the model if nothing else is known.
    pub(crate) fn result(&self) -> &ToolResult {
        match self {
            Self::Answered(result) | Self::NotRun(result) | Self::Unknown(result) => result,
        }
    }
}
