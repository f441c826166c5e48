//! What a call of a tool gives.

/// What a tool says to the model.
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

/// What is known of a tool after it was called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ToolOutcome {
    /// It has answered, maybe with an error.
    Answered(ToolResult),
    /// It was not reached.
    NotRun(ToolResult),
    /// It may have run: its answer did not come.
    Unknown(ToolResult),
}

impl ToolOutcome {
    /// The text for the model if nothing else is known.
    pub(crate) fn result(&self) -> &ToolResult {
        match self {
            Self::Answered(result) | Self::NotRun(result) | Self::Unknown(result) => result,
        }
    }
}
