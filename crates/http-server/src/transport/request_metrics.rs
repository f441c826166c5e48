//! Counts requests and their durations by route.

use axum::extract::{MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use tokio::time::Instant;

use crate::metrics;

/// Label for unknown routes: a client must not be able to create series.
const OTHER: &str = "other";

/// Routes whose requests wait for agents.
pub type WaitingRoutes = &'static [&'static str];

/// Counts a request when the head of its response is ready. It is not counted if the client leaves
/// before that.
pub async fn count(State(waiting): State<WaitingRoutes>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let method = request.method().clone();
    let path = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    let route = path.as_ref().map_or(OTHER.to_owned(), |path| format!("{} {}", name(&method), path.as_str()));
    metrics::http_request(route, class(response.status().as_u16()));
    let path = path.as_ref().map_or("", MatchedPath::as_str);
    metrics::http_seconds(kind(&method, path, waiting), began.elapsed());
    response
}

/// The label of a method: arbitrary methods must not create series.
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

fn kind(method: &Method, path: &str, waiting: WaitingRoutes) -> &'static str {
    match *method {
        _ if waiting.contains(&path) => "stream",
        Method::GET => "read",
        _ => "write",
    }
}
