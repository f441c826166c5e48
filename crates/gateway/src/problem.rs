//! Errors as `application/problem+json` (RFC 9457).

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::metrics;

/// An answer that says what was wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
    retry_after_s: Option<u32>,
}

#[derive(Serialize)]
struct Body<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'a str,
    status: u16,
    code: &'static str,
    retryable: bool,
    detail: &'a str,
}

impl Problem {
    pub(crate) fn bad_request(code: &'static str, detail: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, code, detail: detail.into(), retry_after_s: None }
    }

    pub(crate) fn not_found(code: &'static str, detail: impl Into<String>) -> Self {
        Self { status: StatusCode::NOT_FOUND, code, detail: detail.into(), retry_after_s: None }
    }

    pub(crate) fn method_not_allowed() -> Self {
        let detail = "this address takes GET only".to_owned();
        Self {
            status: StatusCode::METHOD_NOT_ALLOWED,
            code: "method_not_allowed",
            detail,
            retry_after_s: None,
        }
    }

    /// Something that passes: the client may try again after a second.
    pub(crate) fn unavailable(code: &'static str, detail: impl Into<String>) -> Self {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Self { status, code, detail: detail.into(), retry_after_s: Some(1) }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        metrics::refused(self.code);
        let body = Body {
            kind: "about:blank",
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            code: self.code,
            retryable: self.retry_after_s.is_some(),
            detail: &self.detail,
        };
        let mut response = (self.status, Json(body)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::METHOD_NOT_ALLOWED {
            headers.insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        }
        response
    }
}
