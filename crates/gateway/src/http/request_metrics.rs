//! Counts requests and how long they took, by what they asked for.

use axum::extract::{MatchedPath, Request};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use tokio::time::Instant;

use crate::metrics;

/// What there is no route for: a client must not be able to make series.
const OTHER: &str = "other";
/// Routes whose requests wait for what agents do.
const WAITING: [&str; 7] = [
    "/v1/threads/{thread}/events",
    "/api/chat",
    "/api/chat/{thread}/stream",
    "/v1/chat/completions",
    "/v1/responses",
    "/agui",
    "/agui/connect",
];

/// Counts a request when the head of its answer is there. One whose client has gone before that is not counted.
pub(crate) async fn count(request: Request, next: Next) -> Response {
    let began = Instant::now();
    let method = request.method().clone();
    let path = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    let route = path.as_ref().map_or(OTHER.to_owned(), |path| format!("{} {}", name(&method), path.as_str()));
    metrics::http_request(route, class(response.status().as_u16()));
    metrics::http_seconds(kind(&method, path.as_ref().map_or("", MatchedPath::as_str)), began.elapsed());
    response
}

/// A method that can be anything must not make series either.
fn name(method: &Method) -> &str {
    match *method {
        Method::GET | Method::POST | Method::PUT | Method::PATCH | Method::DELETE => method.as_str(),
        _ => OTHER,
    }
}

fn class(status: u16) -> &'static str {
    match status {
        ..=299 => "2xx",
        300..=399 => "3xx",
        400..=499 => "4xx",
        500.. => "5xx",
    }
}

fn kind(method: &Method, path: &str) -> &'static str {
    match *method {
        _ if WAITING.contains(&path) => "stream",
        Method::GET => "read",
        _ => "write",
    }
}
