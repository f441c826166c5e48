//! Responses that are event streams: whether one may begin, and its headers.

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use feed::BadCursor;
use http_server::error::Problem;

use crate::streaming::resume;
use crate::streaming::subscriber::{JoinReceiver, SubscribeError};

/// Maximum time that a request waits for the check of its cursor.
const VERDICT_TIMEOUT: Duration = Duration::from_secs(2);

/// Waits until the stream has joined the thread (from then on it misses nothing that ends) and its
/// cursor is checked. After the timeout the stream begins unchecked.
pub(crate) async fn until_verdict(verdict: JoinReceiver) -> Result<(), Problem> {
    match tokio::time::timeout(VERDICT_TIMEOUT, verdict).await {
        Ok(Ok(Err(BadCursor::Unknown))) => Err(resume::unknown()),
        Ok(Ok(Err(BadCursor::Ahead))) => Err(resume::ahead()),
        Ok(Ok(Ok(())) | Err(_)) | Err(_) => Ok(()),
    }
}

pub(crate) fn refused(refused: SubscribeError) -> Problem {
    Problem::new(refused.code(), refused.to_string())
}

pub(crate) fn stream<B>(body: B) -> Response
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    let mut response = Response::new(axum::body::Body::new(body));
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, value| headers.insert(name, HeaderValue::from_static(value));
    set(header::CONTENT_TYPE, "text/event-stream; charset=utf-8");
    set(header::CACHE_CONTROL, "no-cache, no-store, no-transform");
    set(HeaderName::from_static("x-accel-buffering"), "no");
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    response
}
