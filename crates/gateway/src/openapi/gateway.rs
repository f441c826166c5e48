//! The gateway itself: its probes, and this description.

use http_server::error::ErrorCode;
use serde_json::json;

use crate::api::service_info;
use crate::api::service_info::ServiceInfo;
use crate::openapi::operation::Operation;
use crate::openapi::pages;
use crate::openapi::response::ResponseSpec;
use crate::openapi::tags::GATEWAY;

pub(crate) fn operations() -> Vec<Operation> {
    let policy = json!({ "type": "string" });
    vec![
        Operation::get("/", "about", "What answers here", service_info::get)
            .tag(GATEWAY)
            .response::<ServiceInfo>(
                200,
                "Name and version",
                json!({ "name": "antiphon", "version": env!("CARGO_PKG_VERSION") }),
            ),
        probe("/livez", "livez", "Whether the process works"),
        probe("/readyz", "readyz", "Whether the gateway takes requests"),
        probe("/startupz", "startupz", "Whether the process has started"),
        Operation::without_handler("/openapi.json", "openapi", "This description")
            .tag(GATEWAY)
            .response_with(ResponseSpec::json(
                200,
                "OpenAPI 3.1",
                json!({ "type": "object", "required": ["openapi", "info", "paths"] }),
                json!({ "openapi": "3.1.0", "info": { "title": "Antiphon", "version": "1" }, "paths": {} }),
            )),
        Operation::get("/docs", "docs", "This description as a page", pages::page)
            .tag(GATEWAY)
            .description("It needs no network but this gateway.")
            .response_with(ResponseSpec::text(200, "The page", "text/html"))
            .with_header("Content-Security-Policy", "Nothing but this gateway's own.", policy),
        Operation::get("/docs/{file}", "docsFile", "What the page consists of", pages::file)
            .tag(GATEWAY)
            .response_with(
                ResponseSpec::text(200, "A file", "text/javascript")
                    .or("text/css", json!({ "type": "string" })),
            )
            .errors(&[ErrorCode::NotAcceptable, ErrorCode::InvalidId]),
    ]
}

fn probe(path: &'static str, id: &'static str, summary: &'static str) -> Operation {
    Operation::without_handler(path, id, summary)
        .tag(GATEWAY)
        .response_with(ResponseSpec::text(200, "It does", "text/plain"))
        .response_with(ResponseSpec::text(503, "It does not, and why", "text/plain"))
}
