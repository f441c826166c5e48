//! A page that shows the description of the API. The viewer is built into the gateway, so the page
//! needs nothing from elsewhere.

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use http_server::error::{ErrorCode, Problem};
use http_server::extract::path::PathParam;
use serde_json::json;

use crate::openapi::operation::Operation;
use crate::openapi::response::ResponseSpec;
use crate::openapi::tags::GATEWAY;

pub(crate) fn operations() -> Vec<Operation> {
    let policy = json!({ "type": "string" });
    vec![
        Operation::get("/docs", "docs", "Show this API description as a page", page)
            .tag(GATEWAY)
            .description("The page loads everything from this gateway.")
            .response_with(ResponseSpec::text(200, "The page", "text/html"))
            .with_header("Content-Security-Policy", "Allows content of this gateway only.", policy),
        Operation::get("/docs/{file}", "docsFile", "Get a file of the page", file)
            .tag(GATEWAY)
            .response_with(
                ResponseSpec::text(200, "A file", "text/javascript")
                    .or("text/css", json!({ "type": "string" })),
            )
            .errors(&[ErrorCode::NotAcceptable, ErrorCode::InvalidId]),
    ]
}

/// The page may load files from this gateway only, and send requests to it only. Inline styles are
/// allowed because the viewer sets the `style` attribute of elements, and `data:` images because
/// its files embed their images.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const PAGE: &str = include_str!("docs/index.html");
const START: &str = include_str!("docs/start.js");
const VIEWER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/swagger-ui-bundle.js.gz"));
const STYLE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/swagger-ui.css.gz"));

pub(crate) async fn page() -> Response {
    let mut response = served("text/html; charset=utf-8", PAGE);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

pub(crate) async fn file(
    headers: HeaderMap,
    PathParam(name): PathParam<String>,
) -> Result<Response, Problem> {
    match name.as_str() {
        "start.js" => Ok(served("text/javascript; charset=utf-8", START)),
        "swagger-ui.js" => packed(&headers, "text/javascript; charset=utf-8", VIEWER),
        "swagger-ui.css" => packed(&headers, "text/css; charset=utf-8", STYLE),
        _ => Err(Problem::new(ErrorCode::UnknownAddress, "the page has no such file")),
    }
}

/// The file is kept compressed, at a quarter of its size, and every browser decompresses it.
fn packed(headers: &HeaderMap, kind: &'static str, file: &'static [u8]) -> Result<Response, Problem> {
    if !takes_gzip(headers) {
        let detail =
            "this file is there with Content-Encoding gzip only, which Accept-Encoding does not take";
        return Err(Problem::new(ErrorCode::NotAcceptable, detail));
    }
    let mut response = served(kind, file);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    Ok(response)
}

/// Without the header any encoding will do.
fn takes_gzip(headers: &HeaderMap) -> bool {
    let mut said = headers.get_all(header::ACCEPT_ENCODING).iter().peekable();
    if said.peek().is_none() {
        return true;
    }
    let texts = said.filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(','));
    let mut gzip = None;
    let mut any = None;
    for coding in texts {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let is_taken =
            weight.trim().strip_prefix("q=").and_then(|q| q.parse().ok()).is_none_or(|q: f32| q > 0.0);
        match name.trim() {
            name if name.eq_ignore_ascii_case("gzip") || name.eq_ignore_ascii_case("x-gzip") => {
                gzip = Some(is_taken);
            }
            "*" => any = Some(is_taken),
            _ => {}
        }
    }
    gzip.or(any).unwrap_or(false)
}

pub(crate) fn served(kind: &'static str, body: impl IntoResponse) -> Response {
    let mut response = body.into_response();
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, value| headers.insert(name, HeaderValue::from_static(value));
    set(header::CONTENT_TYPE, kind);
    // Another version of the gateway may answer next.
    set(header::CACHE_CONTROL, "no-cache");
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_sent_to_those_that_take_it() {
        let takes = |text: &'static str| {
            takes_gzip(&HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static(text))]))
        };
        assert!(takes_gzip(&HeaderMap::new()));
        for good in ["gzip", "br, gzip;q=0.5", "*", "identity, *;q=0.1", "GZIP"] {
            assert!(takes(good), "{good}");
        }
        for bad in ["", "br", "gzip;q=0", "*;q=0", "gzip; q=0.0, *"] {
            assert!(!takes(bad), "{bad}");
        }
    }

    #[test]
    fn the_page_loads_nothing_from_elsewhere() {
        for text in [PAGE, START] {
            assert!(!text.contains("://") && !text.contains("src=\"//"), "{text}");
        }
        assert!(!PAGE.contains("<script>") && !PAGE.contains(" style="));
        assert!(VIEWER.starts_with(&[0x1f, 0x8b]) && STYLE.starts_with(&[0x1f, 0x8b]));
    }
}
