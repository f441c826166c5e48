//! Checks of the pages as a browser gets them.

use std::collections::{BTreeMap, BTreeSet};

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use tower::ServiceExt as _;

use super::*;

const SUMMARY: &str = include_str!("../../../../deploy/docs/src/SUMMARY.md");

async fn got(address: &str) -> (StatusCode, Option<HeaderValue>, String) {
    let request = Request::get(address).body(Body::empty()).unwrap();
    let answer = routes().oneshot(request).await.unwrap();
    let policy = answer.headers().get(header::CONTENT_SECURITY_POLICY).cloned();
    let status = answer.status();
    let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    (status, policy, String::from_utf8(body.to_vec()).unwrap())
}

/// The values of an attribute in a page, outside of samples of code.
fn attributes(page: &str, name: &str) -> Vec<String> {
    let before = format!(" {name}=\"");
    let prose = page.split("<pre>").filter_map(|part| part.rsplit("</pre>").next());
    let values = prose.flat_map(|part| part.split(&before).skip(1).map(|rest| rest.split('"').next()));
    values.flatten().map(str::to_owned).collect()
}

/// The path of a link from the root of the book.
fn resolved(from: &str, link: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            ".." => assert!(parts.pop().is_some(), "{from}: {link} leaves the book"),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[tokio::test]
async fn every_page_of_the_summary_is_served_with_a_strict_policy() {
    let listed = SUMMARY.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let pages: Vec<String> = listed.map(|page| page.replace(".md", ".html")).collect();
    assert!(pages.len() > 50, "{pages:?}");
    for page in pages.iter().map(String::as_str).chain([""]) {
        let (status, policy, text) = got(&format!("/book/{page}")).await;
        assert_eq!((status, policy.unwrap()), (StatusCode::OK, HeaderValue::from_static(POLICY)), "{page}");
        assert!(!text.contains("<script") && !text.contains(" style=") && !text.contains("<!--"), "{page}");
        assert!(attributes(&text, "src").iter().all(|source| !source.contains("://")), "{page}");
        assert!(text.contains(" · Antiphon</title>") && !text.contains("<title> "), "{page}");
    }
    assert_eq!(got("/book").await.0, StatusCode::PERMANENT_REDIRECT);
    for wrong in ["/book/none.html", "/book/SUMMARY.html", "/book/../v1", "/book/start/"] {
        assert_eq!(got(wrong).await.0, StatusCode::NOT_FOUND, "{wrong}");
    }
}

#[tokio::test]
async fn every_link_of_the_book_leads_to_a_page_and_a_heading() {
    let mut anchors: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    let mut links = Vec::new();
    for file in FILES.iter().filter(|file| file.kind == FileKind::Page) {
        let text = page(file);
        anchors.insert(file.path, attributes(&text, "id").into_iter().collect());
        let found = attributes(&text, "href").into_iter().chain(attributes(&text, "src"));
        links.extend(found.map(|link| (file.path, link)));
    }
    let inside: Vec<_> = links.iter().filter(|(_, link)| !link.contains("://")).collect();
    assert!(inside.len() > 3000, "{}", inside.len());
    let mut known = BTreeSet::new();
    for (from, link) in inside {
        let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
        let path = if path.is_empty() { (*from).to_owned() } else { resolved(from, path) };
        if known.insert(path.clone()) {
            assert_eq!(got(&format!("/book/{path}")).await.0, StatusCode::OK, "{from}: {link}");
        }
        assert!(anchor.is_empty() || anchors[path.as_str()].contains(anchor), "{from}: {link}");
    }
}

#[test]
fn each_error_has_an_entry_at_the_address_of_its_type() {
    let address = ErrorCode::UnknownThread.address();
    assert_eq!(address, "/book/operate/error-codes.html#unknown_thread");
    let page = FILES.iter().find(|file| file.path == "operate/error-codes.html").unwrap();
    let entries = attributes(page.text, "id");
    for code in ErrorCode::ALL {
        assert!(entries.iter().any(|entry| entry == code.name()), "{}", code.name());
    }
}
