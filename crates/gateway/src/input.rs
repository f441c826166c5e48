//! What people and services write: checked as its owner will check it, so that what is taken is not refused later.

use axum::http::StatusCode;
use model::{InvalidMetadata, MAX_EXACT_INTEGER, Metadata};
use serde_json::{Map, Value};

use crate::problem::Problem;

/// Longest body with an input: its text may be escaped six times over.
pub(crate) const MAX_INPUT_BODY: usize = 2 << 20;
/// What follow-ups say of themselves.
const RESERVED: [&str; 3] = ["synthetic", "trigger_type", "trigger_reason"];
/// Largest metadata of an input or a thread.
const MAX_METADATA_BYTES: usize = 64 << 10;

/// The text of an input or a task.
pub(crate) fn content(text: &str) -> Result<(), Problem> {
    wire::check_input(text).map_err(|invalid| match invalid {
        wire::InvalidOrder::EmptyInput => Problem::bad_request("empty_input", "content is empty"),
        wire::InvalidOrder::InputTooLarge(_) => {
            Problem::too_large("input_too_large", format!("content: {invalid}"))
        }
        _ => Problem::bad_request("invalid_content", invalid.to_string()),
    })
}

/// Metadata of an input, a task or a thread.
pub(crate) fn metadata(map: Option<Map<String, Value>>) -> Result<Metadata, Problem> {
    let map = map.unwrap_or_default();
    let invalid = |error: InvalidMetadata| Problem::bad_request("invalid_metadata", error.to_string());
    if map.values().any(has_inexact) {
        let detail = "metadata holds a whole number beyond 2^53, which would lose digits; write it as text";
        return Err(Problem::bad_request("invalid_metadata", detail));
    }
    let metadata = Metadata::new(map).map_err(invalid)?;
    client_metadata(&metadata)?;
    Ok(metadata)
}

/// What a client may say in metadata, whatever protocol it speaks.
pub(crate) fn client_metadata(metadata: &Metadata) -> Result<(), Problem> {
    let invalid = |detail: String| Problem::bad_request("invalid_metadata", detail);
    metadata.tokens_used().map_err(|error| invalid(error.to_string()))?;
    if let Some(name) = RESERVED.into_iter().find(|name| metadata.get(name).is_some()) {
        // Whoever could say it could hide from histories what he has said.
        return Err(invalid(format!("metadata.{name} is the system's to say")));
    }
    match metadata.size() {
        size if size > MAX_METADATA_BYTES => Err(Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "metadata_too_large",
            format!("metadata has {size} bytes; at most {MAX_METADATA_BYTES} are allowed"),
        )),
        _ => Ok(()),
    }
}

/// A whole number that a double does not hold: on the way numbers are doubles.
fn has_inexact(value: &Value) -> bool {
    match value {
        Value::Number(number) => {
            number.as_i64().map_or(number.is_u64(), |whole| whole.unsigned_abs() > MAX_EXACT_INTEGER)
        }
        Value::Array(items) => items.iter().any(has_inexact),
        Value::Object(map) => map.values().any(has_inexact),
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}
