//! An id for each request: in the response, and in every log line written while it is handled. One
//! of these lines reports the request itself.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use tokio::time::Instant;
use tracing::Instrument;
use uuid::Uuid;

use crate::metrics::ProblemCode;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Requests that orchestrators send every few seconds are not logged.
const PROBES: [&str; 3] = ["/livez", "/readyz", "/startupz"];
/// Longest id accepted from the client.
const MAX_LEN: usize = 128;

/// Uses the client's id, or makes one.
pub async fn identify(request: Request, next: Next) -> Response {
    let id = said(request.headers()).unwrap_or_else(made);
    // The span has the level error, so that every line that passes the log's filter has the span.
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

/// The client's id, if it is safe in a log line.
fn said(headers: &HeaderMap) -> Option<HeaderValue> {
    let id = headers.get(&REQUEST_ID)?;
    let is_fit = (1..=MAX_LEN).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic);
    is_fit.then(|| id.clone())
}

fn made() -> HeaderValue {
    let id = Uuid::now_v7().simple().to_string();
    HeaderValue::from_str(&id).unwrap_or_else(|_| HeaderValue::from_static("none"))
}
