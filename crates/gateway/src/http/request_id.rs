//! An id for each request: in the answer, and in every line of the log that its handling writes. One of these lines is about the request itself.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use tokio::time::Instant;
use tracing::Instrument;
use uuid::Uuid;

use crate::metrics::ProblemCode;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// What orchestrators ask every few seconds is not logged.
const PROBES: [&str; 3] = ["/livez", "/readyz", "/startupz"];
/// Longest id that is taken over from the client.
const MAX_LEN: usize = 128;

/// Takes the client's id over, or makes one.
pub(crate) async fn identify(request: Request, next: Next) -> Response {
    let id = said(request.headers()).unwrap_or_else(made);
    // An error span: whatever the log's filter lets through has it.
    let trace_id = runtime::traces::current().map(|trace| trace.trace_id());
    let span = tracing::error_span!("request", request_id = id.to_str().unwrap_or_default(), trace_id);
    // Without the query, which may hold a ticket.
    let (method, path, began) = (request.method().clone(), request.uri().path().to_owned(), Instant::now());
    let mut response = next.run(request).instrument(span.clone()).await;
    if !PROBES.contains(&path.as_str()) {
        let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let code = response.extensions().get::<ProblemCode>().map(|code| code.0);
        let status = response.status().as_u16();
        span.in_scope(|| tracing::info!(%method, path, status, code, took_ms, "a request was answered"));
    }
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
