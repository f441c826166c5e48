//! The paths that clients of each protocol call.

use crate::request::{ErrorBody, RequestRejection};
use crate::{agui, responses, ui_message};

/// The form of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorForm {
    /// A problem, as in RFC 9457.
    Problem,
    /// The text alone, as the AI SDK shows it.
    Text,
    /// `{"error": …}`, as OpenAI's libraries read it.
    Wrapped,
    /// The fields of AG-UI's `RUN_ERROR`.
    RunError,
}

impl ErrorForm {
    /// The form for clients that call at this path.
    pub fn at(path: &str) -> Self {
        const OPENAI: [&str; 3] = ["/v1/chat/", "/v1/responses", "/v1/models"];
        match path {
            _ if OPENAI.iter().any(|begin| path.starts_with(begin)) => Self::Wrapped,
            _ if path.starts_with("/api/chat") => Self::Text,
            _ if path.starts_with("/agui") => Self::RunError,
            _ => Self::Problem,
        }
    }

    /// Encodes a refusal; `None`: as a problem.
    pub fn error_body(self) -> Option<fn(&RequestRejection) -> ErrorBody> {
        match self {
            Self::Problem => None,
            Self::Text => Some(ui_message::error_body),
            Self::Wrapped => Some(responses::error_body),
            Self::RunError => Some(agui::error_body),
        }
    }
}
