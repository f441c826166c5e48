//! Requests of pages of other origins.

use std::sync::Arc;

use auth::CorsRules;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::Problem;

/// Pages of other origins: answers preflights, and says on every answer who may read it.
pub(crate) async fn cross_origin(
    State(rules): State<Arc<CorsRules>>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();

    let origin = origin(headers);
    let asked = said(headers, header::ACCESS_CONTROL_REQUEST_METHOD);
    let asked = asked.filter(|_| request.method() == Method::OPTIONS);
    if let (Some(origin), Some(method)) = (&origin, asked) {
        let wanted = said(headers, header::ACCESS_CONTROL_REQUEST_HEADERS);
        let (method, wanted) = (method.as_str(), wanted.as_deref());
        return match rules.preflight(origin, method, wanted) {
            Some(headers) => with(StatusCode::NO_CONTENT.into_response(), headers),
            None => {
                let detail = "pages of this origin may not do this";
                Problem::new(StatusCode::FORBIDDEN, "origin_not_allowed", detail).into_response()
            }
        };
    }
    readable(next.run(request).await, &rules, origin.as_deref())
}

/// The page that asks.
pub(crate) fn origin(headers: &HeaderMap) -> Option<String> {
    said(headers, header::ORIGIN)
}

/// Says who may read an answer.
pub(crate) fn readable(response: Response, rules: &CorsRules, origin: Option<&str>) -> Response {
    with(response, rules.actual(origin))
}

fn said(headers: &HeaderMap, name: HeaderName) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

fn with(mut response: Response, headers: Vec<auth::HeaderPair>) -> Response {
    for (name, value) in headers {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().append(HeaderName::from_static(name), value);
        }
    }
    response
}
