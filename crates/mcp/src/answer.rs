//! Results of tools: a text for the model, and the same as JSON for programs.

use http_server::CallerError;
use reasoning::{Refusal, Valid, numbers_text};
use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::{Map, Value, json};
use store::{Disposition, StoreError};

/// The result of a call.
#[derive(Debug)]
pub(crate) struct ToolAnswer {
    pub(crate) text: String,
    /// `Null`: there is only the text.
    pub(crate) json: Value,
}

/// Why a call failed. Its text lists what would be accepted.
#[derive(Debug)]
pub(crate) struct ToolError {
    pub(crate) code: &'static str,
    text: String,
    json: Map<String, Value>,
}

impl ToolError {
    pub(crate) fn new(code: &'static str, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), json: Map::new() }
    }

    /// The same error for unknown sessions and for those of other tenants.
    pub(crate) fn no_session() -> Self {
        Self::new("session_not_found", "Session not found")
    }

    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::new("invalid_argument", text)
    }

    fn with(mut self, key: &str, value: Value) -> Self {
        self.json.insert(key.to_owned(), value);
        self
    }
}

impl From<Refusal> for ToolError {
    fn from(refusal: Refusal) -> Self {
        let error = Self::new(refusal.reason.code(), refusal.to_string());
        match refusal.valid {
            Valid::Ranges(ranges) => {
                let range = |(from, to): &(u64, u64)| json!({ "from": from, "to": to });
                error.with("valid", json!({ "ranges": ranges.iter().map(range).collect::<Vec<_>>() }))
            }
            Valid::Count(Some((from, to))) => error.with("valid", json!({ "from": from, "to": to })),
            Valid::Numbers(lists) => {
                let lists: Vec<_> = lists.iter().map(|list| numbers_text(list.numbers())).collect();
                error.with("valid", json!({ "numbers": lists }))
            }
            Valid::Names(names) => error.with("valid", json!({ "names": names })),
            Valid::Count(None) => error.with("valid", Value::Null),
            Valid::Anything => error,
        }
    }
}

impl From<CallerError> for ToolError {
    fn from(error: CallerError) -> Self {
        let refusal = Self::new(error.code(), error.to_string());
        match error {
            CallerError::InsufficientScope(_) => refusal,
            CallerError::RateLimited { retry_after_s } => {
                refusal.with("retry_after_seconds", retry_after_s.into())
            }
        }
    }
}

impl From<StoreError> for ToolError {
    fn from(error: StoreError) -> Self {
        match error.disposition() {
            _ if matches!(error, StoreError::TenantErased) => Self::new("tenant_erased", error.to_string()),
            Disposition::Retry => {
                tracing::warn!(%error, "the database does not answer a reasoning tool");
                let text = "the database does not answer: try again in a moment, with the same request_id";
                Self::new("unavailable", text).with("retryable", true.into())
            }
            _ => {
                tracing::error!(%error, "a statement of a reasoning tool failed");
                Self::new("internal", "the database refused the statement; the log of the server says why")
            }
        }
    }
}

/// The outcome in the format of the protocol.
pub(crate) fn result(outcome: Result<ToolAnswer, ToolError>) -> CallToolResult {
    let block = |text: String| vec![ContentBlock::text(text)];
    match outcome {
        Ok(answer) => {
            let mut json = answer.json;
            if let Some(object) = json.as_object_mut() {
                // Some clients show their model only the structured content.
                object.insert("text".to_owned(), answer.text.clone().into());
            }
            let mut result = CallToolResult::success(block(answer.text));
            result.structured_content = Some(json).filter(|json| !json.is_null());
            result
        }
        Err(error) => {
            let mut json = error.json;
            json.insert("code".to_owned(), error.code.into());
            json.insert("message".to_owned(), error.text.clone().into());
            let mut result = CallToolResult::error(block(error.text));
            result.structured_content = Some(json!({ "error": json }));
            result
        }
    }
}
