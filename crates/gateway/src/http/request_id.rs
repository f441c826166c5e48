//! An id for each request: in the answer, and in every line of the log that its handling writes.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use tracing::Instrument;
use uuid::Uuid;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longest id that is taken over from the client.
const MAX_LEN: usize = 128;

/// Takes the client's id over, or makes one.
pub(crate) async fn identify(request: Request, next: Next) -> Response {
    let id = said(request.headers()).unwrap_or_else(made);
    // An error span: whatever the log's filter lets through has it.
    let trace_id = runtime::traces::current().map(|trace| trace.trace_id());
    let span = tracing::error_span!("request", request_id = id.to_str().unwrap_or_default(), trace_id);
    let mut response = next.run(request).instrument(span).await;
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// Only what can stand in a line of the log as it is.
fn said(headers: &HeaderMap) -> Option<HeaderValue> {
    let id = headers.get(&REQUEST_ID)?;
    let is_fit = (1..=MAX_LEN).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic);
    is_fit.then(|| id.clone())
}

fn made() -> HeaderValue {
    let id = Uuid::now_v7().simple().to_string();
    HeaderValue::from_str(&id).unwrap_or_else(|_| HeaderValue::from_static("none"))
}
