//! Tool calls of unknown outcome.

use http_server::error::ErrorCode;
use serde_json::{Value, json};

use crate::api::tool_incidents;
use crate::api::tool_incidents::{ToolDecisionBody, ToolIncidentView, ToolIncidentsPage, ToolIncidentsQuery};
use crate::openapi::error_codes::PUBLISH;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::tags::TURNS;

pub(crate) fn operations() -> Vec<Operation> {
    let decided = || incident(json!("run_again"), json!("ada"));
    vec![
        Operation::get(
            "/v1/tool-incidents",
            "listToolIncidents",
            "Tool calls of which it is not known whether they were made",
            tool_incidents::list,
        )
        .tag(TURNS)
        .description(
            "A call of a tool that must not be called twice, whose answer has not come: the service died, or the tool was silent. Its turn \
             waits until a person has decided. An incident of a turn that was stopped meanwhile is listed for seven days.",
        )
        .scope(Scope::ReadThreads)
        .query::<ToolIncidentsQuery>()
        .response::<ToolIncidentsPage>(
            200,
            "Incidents, the newest first",
            json!({ "tool_incidents": [incident(Value::Null, Value::Null)], "has_more": false }),
        )
        .errors(&[ErrorCode::InvalidLimit, ErrorCode::NatsUnavailable]),
        Operation::post(
            "/v1/threads/{thread}/tool-incidents/{turn}/{call}/decide",
            "decideToolIncident",
            "Have the tool called again, or give its result",
            tool_incidents::decide,
        )
        .tag(TURNS)
        .description("The turn goes on within seconds. It is decided once; the audit log of the thread says who did it.")
        .scope(Scope::OperateAgents)
        .actor_header()
        .body::<ToolDecisionBody>(json!({ "run_again": true }))
        .response::<ToolIncidentView>(200, "It is decided", decided())
        .errors(&PUBLISH)
        .errors(&[
            ErrorCode::InvalidDecision,
            ErrorCode::ToolIncidentDecided,
            ErrorCode::UnknownToolIncident,
        ]),
    ]
}

fn incident(decision: Value, decided_by: Value) -> Value {
    json!({
        "thread_id": "hello", "turn_id": "u0042-hello-1", "call": "0-f650c6941b7958b681046aa1ced30e94", "workflow": "default",
        "agent_id": "hello", "tool": "charge_card", "arguments": "{\"cents\":1999}", "started_at": "2026-11-22T11:49:44.123Z",
        "detected_at": "2026-11-22T11:50:20.456Z", "decision": decision, "decided_by": decided_by,
    })
}
