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
