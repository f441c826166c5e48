//! The paths that clients of each protocol call.

use crate::request::{ErrorBody, RequestRejection};
use crate::{agui, responses, ui_message};

/// Encodes a refusal for clients of the protocol that calls at this path; `None` for the native
/// API.
pub fn error_body_at(path: &str) -> Option<fn(&RequestRejection) -> ErrorBody> {
    const OPENAI: [&str; 3] = ["/v1/chat/", "/v1/responses", "/v1/models"];
    match path {
        _ if OPENAI.iter().any(|begin| path.starts_with(begin)) => Some(responses::error_body),
        _ if path.starts_with("/api/chat") => Some(ui_message::error_body),
        _ if path.starts_with("/agui") => Some(agui::error_body),
        _ => None,
    }
}
