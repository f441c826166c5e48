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
            "List incidents: data lost when a store or a stream went back in time",
            incidents::list,
        )
        .tag(GATEWAY)
        .description("Without `all`, only unacknowledged incidents.")
        .scope(Scope::ReadFleet)
        .query::<IncidentsQuery>()
        .response::<IncidentsPage>(200, "Incidents, newest first", json!({ "incidents": [incident] }))
        .errors(&[ErrorCode::DefaultTenantOnly]),
        Operation::post(
            "/v1/incidents/acknowledge",
            "acknowledgeIncidents",
            "Acknowledge incidents",
            incidents::acknowledge,
        )
        .tag(GATEWAY)
        .description("The worker that owns the partition becomes ready again.")
        .scope(Scope::OperateFleet)
        .actor_header()
        .body::<AcknowledgeBody>(json!({ "partition": "3" }))
        .response::<Acknowledged>(
            200,
            "The number of newly acknowledged incidents",
            json!({ "acknowledged": 1 }),
        )
        .errors(&[ErrorCode::DefaultTenantOnly]),
    ]
}
