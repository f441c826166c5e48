//! The service itself: its name and version, its probes, and the description of the API.

use axum::Json;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use crate::openapi::operation::Operation;
use crate::openapi::response::ResponseSpec;
use crate::openapi::tags::GATEWAY;

pub(crate) fn operations() -> Vec<Operation> {
    vec![
        Operation::get("/", "about", "Show the name and version of the service", get)
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
    ]
}

pub(crate) async fn get() -> Json<ServiceInfo> {
    Json(ServiceInfo { name: "antiphon", version: env!("CARGO_PKG_VERSION") })
}

/// The name and version of the service.
#[derive(Serialize, ToSchema)]
#[schema(as = About)]
pub(crate) struct ServiceInfo {
    name: &'static str,
    version: &'static str,
}

fn probe(path: &'static str, id: &'static str, summary: &'static str) -> Operation {
    Operation::without_handler(path, id, summary)
        .tag(GATEWAY)
        .response_with(ResponseSpec::text(200, "Yes", "text/plain"))
        .response_with(ResponseSpec::text(503, "No, with the reason", "text/plain"))
}
