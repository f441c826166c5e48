//! The book of this version at `/book/`, for people without a network. The build script makes its
//! pages; they need no script.

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use http_server::error::{ErrorCode, Problem};

/// Pages load their style and their images from this gateway, and nothing else.
const POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'";
/// Images have styles of their own.
const IMAGE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";
const STYLE: &str = include_str!("book/book.css");
const FIRST: &str = "introduction.html";

include!(concat!(env!("OUT_DIR"), "/book.rs"));

struct BookFile {
    /// From the root of the book.
    path: &'static str,
    kind: FileKind,
    /// Of a page.
    title: &'static str,
    text: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FileKind {
    Page,
    Image,
    Text,
}

pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new()
        .route("/book", get(async || Redirect::permanent("/book/")))
        .route("/book/", get(async || file(FIRST)))
        .route("/book/{*path}", get(async |Path(path): Path<String>| file(&path)))
}

fn file(path: &str) -> Result<Response, Problem> {
    if path == "book.css" {
        return Ok(served("text/css; charset=utf-8", POLICY, STYLE.to_owned()));
    }
    let Some(file) = FILES.iter().find(|file| file.path == path) else {
        return Err(Problem::new(
            ErrorCode::UnknownAddress,
            "the book has no such page; it begins at /book/",
        ));
    };
    Ok(match file.kind {
        FileKind::Page => served("text/html; charset=utf-8", POLICY, page(file)),
        FileKind::Image => served("image/svg+xml", IMAGE_POLICY, file.text.to_owned()),
        FileKind::Text => served("text/plain; charset=utf-8", POLICY, file.text.to_owned()),
    })
}

fn page(file: &BookFile) -> String {
    let root = "../".repeat(file.path.matches('/').count());
    let contents = CONTENTS.replace("@root@", &root);
    let BookFile { title, text, .. } = file;
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title} · Antiphon</title>\n<link rel=\"stylesheet\" href=\"{root}book.css\">\n</head>\n<body>\n\
         <main>\n{text}</main>\n<nav aria-label=\"Contents\">\n{contents}</nav>\n</body>\n</html>\n"
    )
}

fn served(kind: &'static str, policy: &'static str, body: String) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        // Another version of the gateway may answer next.
        (header::CACHE_CONTROL, "no-cache"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CONTENT_SECURITY_POLICY, policy),
    ];
    (headers.map(|(name, value)| (name, HeaderValue::from_static(value))), body).into_response()
}

#[cfg(test)]
mod tests;
