//! A span for each request, below the span that its client names.

use axum::extract::{MatchedPath, Request};
use axum::middleware::Next;
use axum::response::Response;
use runtime::traces::{Span, SpanKind, SpanStart, TraceContext, with_current};

/// Probes, which are requested all the time.
const NOT_TRACED: [&str; 3] = ["/livez", "/readyz", "/startupz"];

/// Routes attach to the span by [`runtime::traces::current`], and in separate tasks by an extension
/// of the request.
///
/// Spans end when the head of the response is ready; the head of an event stream comes with its
/// first event.
pub async fn trace(mut request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or("", MatchedPath::as_str);
    if NOT_TRACED.contains(&route) {
        return next.run(request).await;
    }
    let mut span = begin(&request, route);
    let context = span.context();
    if let Some(context) = &context {
        request.extensions_mut().insert(context.clone());
    }
    let response = with_current(context, next.run(request)).await;
    let status = response.status();
    span.set("http.response.status_code", i64::from(status.as_u16()));
    if status.is_server_error() {
        span.fail(status.as_str());
    }
    response
}

fn begin(request: &Request, route: &str) -> Span {
    let headers = request.headers();
    let parent = TraceContext::from_headers(|name| headers.get(name)?.to_str().ok());
    // A method can be any text.
    let method = if request.method().as_str().len() <= 7 { request.method().as_str() } else { "_OTHER" };
    let name = if route.is_empty() { method.to_owned() } else { format!("{method} {route}") };
    let mut span = Span::start(name, SpanKind::Server, parent.as_ref(), SpanStart::Now);
    if span.is_recorded() {
        span.set("http.request.method", method.to_owned());
        span.set("url.scheme", "http");
        // The path is recorded without the query, which may hold a ticket.
        span.set("url.path", request.uri().path().to_owned());
        if !route.is_empty() {
            span.set("http.route", route.to_owned());
        }
    }
    span
}
