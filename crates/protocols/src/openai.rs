//! The common part of OpenAI's two protocols.
//!
//! Source: <https://platform.openai.com/docs/guides/error-codes/api-errors>.

use serde::Serialize;
use utoipa::ToSchema;

use crate::json;
use crate::request::{ErrorBody, RequestRejection};

/// A refusal in OpenAI's format.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = WrappedError)]
pub struct ApiError<'a> {
    pub(crate) error: ErrorObject<'a>,
}

/// The error of a refusal.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ErrorObject<'a> {
    /// Explanation for people.
    pub(crate) message: &'a str,
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    /// Name of the field at fault.
    #[schema(required)]
    pub(crate) param: Option<&'a str>,
    /// Machine-readable error code.
    #[schema(value_type = Option<String>, required)]
    pub(crate) code: &'a str,
}

/// Encodes a refusal: `{"error": {"message", "type", "param", "code"}}`.
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
