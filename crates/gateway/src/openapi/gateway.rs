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
        Operation::get("/", "about", "Show the name and version of the service", service_info::get)
            .tag(GATEWAY)
            .response::<ServiceInfo>(
                200,
                "Name and version",
                json!({ "name": "antiphon", "version": env!("CARGO_PKG_VERSION") }),
            ),
        probe("/livez", "livez", "Check whether the process works"),
        probe("/readyz", "readyz", "Check whether the gateway accepts requests"),
        probe("/startupz", "startupz", "Check whether the process has started"),
        Operation::without_handler("/openapi.json", "openapi", "Get this API description")
            .tag(GATEWAY)
            .response_with(ResponseSpec::json(
                200,
                "OpenAPI 3.1",
                json!({ "type": "object", "required": ["openapi", "info", "paths"] }),
                json!({ "openapi": "3.1.0", "info": { "title": "Antiphon", "version": "1" }, "paths": {} }),
            )),
        Operation::get("/docs", "docs", "Show this API description as a page", pages::page)
            .tag(GATEWAY)
            .description("The page loads everything from this gateway.")
            .response_with(ResponseSpec::text(200, "The page", "text/html"))
            .with_header("Content-Security-Policy", "Allows content of this gateway only.", policy),
        Operation::get("/docs/{file}", "docsFile", "Get a file of the page", pages::file)
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
        .response_with(ResponseSpec::text(200, "Yes", "text/plain"))
        .response_with(ResponseSpec::text(503, "No, with the reason", "text/plain"))
}
