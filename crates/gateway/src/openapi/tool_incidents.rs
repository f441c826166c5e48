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
            "List tool calls of unknown outcome",
            tool_incidents::list,
        )
        .tag(TURNS)
        .description(
            "A call of a tool that must not be called twice and returned no result: the service died, or the tool did not respond. Its turn \
             waits for the decision of a person. If the turn is stopped first, its incident is listed for seven days.",
        )
        .scope(Scope::ReadThreads)
        .query::<ToolIncidentsQuery>()
        .response::<ToolIncidentsPage>(
            200,
            "Incidents, newest first",
            json!({ "tool_incidents": [incident(Value::Null, Value::Null)], "has_more": false }),
        )
        .errors(&[ErrorCode::InvalidLimit, ErrorCode::NatsUnavailable]),
        Operation::post(
            "/v1/threads/{thread}/tool-incidents/{turn}/{call}/decide",
            "decideToolIncident",
            "Decide to call the tool again, or provide its result",
            tool_incidents::decide,
        )
        .tag(TURNS)
        .description("The turn continues within seconds. A call is decided once; the audit log of the thread records who decided.")
        .scope(Scope::OperateAgents)
        .actor_header()
        .body::<ToolDecisionBody>(json!({ "run_again": true }))
        .response::<ToolIncidentView>(200, "Decided", decided())
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
