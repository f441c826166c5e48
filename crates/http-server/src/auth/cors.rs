//! CORS: requests of pages of other origins.

use std::sync::Arc;

use auth::CorsRules;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::{ErrorCode, Problem};

/// Answers preflight requests, and adds to every response the headers that let pages of allowed
/// origins read it.
pub async fn cross_origin(State(rules): State<Arc<CorsRules>>, request: Request, next: Next) -> Response {
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
                let detail = "pages of this origin are not allowed to do this: add the origin to ANTIPHON_CORS_ORIGINS";
                Problem::new(ErrorCode::OriginNotAllowed, detail).into_response()
            }
        };
    }
    readable(next.run(request).await, &rules, origin.as_deref())
}

/// The origin of the page that sends the request.
pub(crate) fn origin(headers: &HeaderMap) -> Option<String> {
    said(headers, header::ORIGIN)
}

/// Adds the headers that define which pages may read the response.
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Names that pages never read from a response: headers of requests, headers for proxies,
    /// encodings, and extensions of OpenAPI.
    const NOT_READ: [&str; 11] = [
        "x-antiphon-actor",
        "x-antiphon-on-disconnect",
        "x-antiphon-chat",
        "x-antiphon-user",
        "x-antiphon-temporary",
        "x-openwebui-chat-id",
        "x-openwebui-user-id",
        "x-forwarded-for",
        "x-accel-buffering",
        "x-gzip",
        "x-error-codes",
    ];

    #[test]
    fn every_header_that_is_named_here_can_be_read_by_pages() {
        let origin = "https://app.example";
        let answer = CorsRules::parse([origin]).unwrap().actual(Some(origin));
        let exposed = answer.iter().find(|(name, _)| *name == "access-control-expose-headers").unwrap();
        let exposed: Vec<&str> = exposed.1.split(", ").collect();
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let named: Vec<_> = ["http-server/src", "gateway/src"]
            .iter()
            .flat_map(|folder| headers_in(&crates.join(folder)))
            .collect();
        assert!(named.iter().any(|name| name == "x-antiphon-turn"), "{named:?}");
        for name in named {
            assert!(exposed.contains(&&*name) || NOT_READ.contains(&&*name), "{name} is not exposed");
        }
    }

    /// The `x-` headers, Antiphon's or those of other protocols, in the sources of a folder.
    fn headers_in(folder: &Path) -> Vec<String> {
        let is_header = |text: &&str| {
            text.len() > 2
                && text.starts_with("x-")
                && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
        };
        let in_file = |path: &Path| {
            let text = fs::read_to_string(path).unwrap();
            text.split('"').filter(is_header).map(str::to_owned).collect::<Vec<_>>()
        };
        let of_entry = |path: std::path::PathBuf| match path.extension() {
            None => headers_in(&path),
            Some(kind) if kind == "rs" => in_file(&path),
            Some(_) => Vec::new(),
        };
        fs::read_dir(folder).unwrap().flat_map(|entry| of_entry(entry.unwrap().path())).collect()
    }
}
