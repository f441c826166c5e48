//! Incidents of the installation.

use http_server::error::ErrorCode;
use serde_json::json;

use crate::api::incidents;
use crate::api::incidents::{AcknowledgeBody, Acknowledged, IncidentsPage, IncidentsQuery};
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::tags::GATEWAY;

pub(crate) fn operations() -> Vec<Operation> {
    let incident = json!({
        "partition": 3, "kind": "entries_gone", "stream": "7f3a", "first_seq": 41, "last_seq": 57,
        "detail": "the stream has lost entries that were not read", "detected_at": "2026-11-22T11:49:44Z",
        "acknowledged_at": null, "acknowledged_by": null,
    });
    vec![
        Operation::get(
            "/v1/incidents",
            "listIncidents",
            "What a store or a stream that went back in time has lost",
            incidents::list,
        )
        .tag(GATEWAY)
        .description("Without `all` those that are not acknowledged.")
        .scope(Scope::ReadFleet)
        .query::<IncidentsQuery>()
        .response::<IncidentsPage>(200, "Incidents, the newest first", json!({ "incidents": [incident] }))
        .errors(&[ErrorCode::DefaultTenantOnly]),
        Operation::post(
            "/v1/incidents/acknowledge",
            "acknowledgeIncidents",
            "Mark incidents as seen",
            incidents::acknowledge,
        )
        .tag(GATEWAY)
        .description("The worker that owns the partition is ready again.")
        .scope(Scope::OperateFleet)
        .actor_header()
        .body::<AcknowledgeBody>(json!({ "partition": "3" }))
        .response::<Acknowledged>(200, "How many were not acknowledged before", json!({ "acknowledged": 1 }))
        .errors(&[ErrorCode::DefaultTenantOnly]),
    ]
}
