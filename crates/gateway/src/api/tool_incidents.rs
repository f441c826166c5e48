//! Tool calls of unknown outcome, about which a person decides.

use axum::http::HeaderMap;
use axum::response::Response;
use http_server::error::{ErrorCode, Problem};
use http_server::extract::body::{JsonBody, MaxBodySize};
use http_server::extract::path::PathParam;
use http_server::extract::query::{self, QueryParams};
use model::ThreadId;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};
use wire::tool_calls::{KeptResult, ToolDecision};

use crate::api::respond::json_no_store;
use crate::api::turns::turn_id;
use crate::app::request_context::RequestContext;
use crate::commands::tool_incidents::{self, FoundIncident};
use crate::openapi::error_codes::PUBLISH;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::schemas;
use crate::openapi::tags::TURNS;

pub(crate) fn operations() -> Vec<Operation> {
    let decided = || incident_example(json!("run_again"), json!("ada"));
    vec![
        Operation::get(
            "/v1/tool-incidents",
            "listToolIncidents",
            "List tool calls of unknown outcome",
            list,
        )
        .tag(TURNS)
        .description(
            "Calls without a result of tools that must not be called twice. The turn waits for the decision of a person; if it is stopped first, its incident is listed for seven days.",
        )
        .scope(Scope::ReadThreads)
        .query::<ToolIncidentsQuery>()
        .response::<ToolIncidentsPage>(
            200,
            "Incidents, newest first",
            json!({ "tool_incidents": [incident_example(Value::Null, Value::Null)], "has_more": false }),
        )
        .errors(&[ErrorCode::InvalidLimit, ErrorCode::NatsUnavailable]),
        Operation::post(
            "/v1/threads/{thread}/tool-incidents/{turn}/{call}/decide",
            "decideToolIncident",
            "Decide to call the tool again, or provide its result",
            decide,
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

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct ToolIncidentsQuery {
    /// Whether to include decided calls.
    #[serde(default)]
    all: bool,
    #[param(value_type = Option<schemas::Limit>)]
    limit: Option<String>,
}

/// A decision: exactly one of `run_again` and `result`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ToolDecisionBody {
    /// `true`: the tool is called again.
    pub(crate) run_again: Option<bool>,
    /// The result that the model reads instead: the tool is not called again, and the turn
    /// continues.
    #[schema(max_length = 65_536)]
    pub(crate) result: Option<String>,
    /// Whether the model reads the result as an error.
    #[serde(default)]
    pub(crate) is_error: bool,
}

impl MaxBodySize for ToolDecisionBody {
    const MAX_BYTES: usize = 512 << 10;
}

/// Longest result of a person, bytes.
const MOST_RESULT_BYTES: usize = 64 << 10;

/// A list of tool calls of unknown outcome, newest first.
#[derive(Serialize, ToSchema)]
pub(crate) struct ToolIncidentsPage {
    tool_incidents: Vec<ToolIncidentView>,
    /// Whether there are more than the limit. Decided calls leave the list, and the next ones
    /// follow.
    has_more: bool,
}

/// A call of unknown outcome, of a tool that must not be called twice.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ToolIncidentView {
    #[schema(value_type = schemas::ThreadIdSchema)]
    thread_id: String,
    #[schema(value_type = schemas::TurnIdSchema)]
    turn_id: String,
    /// The key of the call within its turn.
    call: String,
    #[schema(value_type = schemas::WorkflowNameSchema)]
    workflow: String,
    agent_id: String,
    tool: String,
    /// The arguments as JSON text, shortened if long.
    arguments: String,
    #[schema(value_type = schemas::TimestampSchema)]
    started_at: String,
    #[schema(value_type = schemas::TimestampSchema)]
    detected_at: String,
    /// `run_again` or `result`; null while there is no decision.
    #[schema(required)]
    decision: Option<&'static str>,
    #[schema(required)]
    decided_by: Option<String>,
}

impl ToolIncidentView {
    fn new(found: FoundIncident) -> Self {
        let FoundIncident { place, incident, .. } = found;
        Self {
            thread_id: place.thread.name().to_owned(),
            turn_id: place.turn.to_string(),
            call: place.call,
            workflow: place.workflow.to_string(),
            agent_id: incident.agent_id,
            tool: incident.tool,
            arguments: incident.arguments,
            started_at: incident.started_at,
            detected_at: incident.detected_at,
            decision: incident.decision.as_ref().map(ToolDecision::name),
            decided_by: incident.decided_by,
        }
    }
}

impl ToolDecisionBody {
    fn decision(self) -> Result<ToolDecision, Problem> {
        let invalid = |detail: &str| Problem::new(ErrorCode::InvalidDecision, detail.to_owned());
        match (self.run_again, self.result) {
            (Some(true), None) if !self.is_error => Ok(ToolDecision::RunAgain),
            (None | Some(false), Some(text)) if text.len() <= MOST_RESULT_BYTES => {
                Ok(ToolDecision::Result(KeptResult { text, is_error: self.is_error }))
            }
            (None | Some(false), Some(_)) => Err(invalid("a result has at most 65,536 bytes")),
            _ => Err(invalid("either run_again, which is true, or a result is needed")),
        }
    }
}

pub(crate) async fn list(
    ctx: RequestContext,
    QueryParams(query): QueryParams<ToolIncidentsQuery>,
) -> Result<Response, Problem> {
    let limit = query::limit(query.limit.as_deref())?;
    let is_ours = |thread: &ThreadId| ctx.in_own_tenant(thread.clone()).is_some();
    let mut found = tool_incidents::list(ctx.backend()?, query.all, is_ours).await?;
    let has_more = query::has_more(&mut found, limit);
    let tool_incidents = found.into_iter().map(ToolIncidentView::new).collect();
    Ok(json_no_store(ToolIncidentsPage { tool_incidents, has_more }))
}

pub(crate) async fn decide(
    ctx: RequestContext,
    PathParam((thread, turn, call)): PathParam<(String, String, String)>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<ToolDecisionBody>,
) -> Result<Response, Problem> {
    let (thread, turn, actor) = (ctx.thread(&thread)?, turn_id(&turn)?, ctx.actor(&headers)?);
    let (backend, decision) = (ctx.backend()?, body.decision()?);
    let found = tool_incidents::decide(backend, &actor, &thread, &turn, &call, decision).await?;
    Ok(json_no_store(ToolIncidentView::new(found)))
}

fn incident_example(decision: Value, decided_by: Value) -> Value {
    json!({
        "thread_id": "hello", "turn_id": "u0042-hello-1", "call": "0-f650c6941b7958b681046aa1ced30e94", "workflow": "default",
        "agent_id": "hello", "tool": "charge_card", "arguments": "{\"cents\":1999}", "started_at": "2026-11-22T11:49:44.123Z",
        "detected_at": "2026-11-22T11:50:20.456Z", "decision": decision, "decided_by": decided_by,
    })
}
