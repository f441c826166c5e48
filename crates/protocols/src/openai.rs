//! What OpenAI's two protocols have in common.
//!
//! Source: <https://platform.openai.com/docs/guides/error-codes/api-errors>.

use serde::Serialize;

use crate::json;
use crate::request::{ErrorBody, RequestRejection};

/// The `error` of a body and of an event.
#[derive(Debug, Serialize)]
pub(crate) struct ApiError<'a> {
    pub(crate) error: ErrorObject<'a>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ErrorObject<'a> {
    pub(crate) message: &'a str,
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) param: Option<&'a str>,
    pub(crate) code: &'a str,
}

/// A refusal: `{"error": {"message", "type", "param", "code"}}`.
pub fn error_body(rejection: &RequestRejection) -> ErrorBody {
    let error = ErrorObject {
        message: &rejection.message,
        kind: kind_of(rejection.status),
        param: rejection.param.as_deref(),
        code: &rejection.code,
    };
    let mut bytes = Vec::new();
    json::append(&mut bytes, &ApiError { error });
    ErrorBody { content_type: "application/json", bytes: bytes.into() }
}

fn kind_of(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        429 => "rate_limit_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    }
}
