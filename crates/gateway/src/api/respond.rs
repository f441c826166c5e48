//! Responses shared by several resources.

use axum::Json;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// A CSV response that no cache keeps.
pub(crate) fn csv_no_store(body: String) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/csv; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, body).into_response()
}

/// A JSON response that no cache keeps.
pub(crate) fn json_no_store(body: impl Serialize) -> Response {
    ([(header::CACHE_CONTROL, "no-store"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")], Json(body))
        .into_response()
}
