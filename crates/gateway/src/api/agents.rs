//! Agents: their settings, their queues, and the operations on them.

use axum::handler::Handler;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use http_server::error::{ErrorCode, Problem};
use http_server::extract::body::{EmptyBody, JsonBody, MaxBodySize};
use http_server::extract::path;
use http_server::extract::path::PathParam;
use http_server::extract::query;
use http_server::extract::query::QueryParams;
use model::{AgentId, Bucket, ControlKind, QueryTarget, QueueStatus, WaitReason, WorkflowName};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use store::{AgentRow, AgentWaiting, PutAgent, PutAgentOutcome};
use utoipa::{IntoParams, ToSchema};

use crate::api::respond::json_no_store;
use crate::api::views::{DEFAULT_WORKFLOW, ReasonView, TurnView};
use crate::api::{agent_settings, views};
use crate::app::request_context::RequestContext;
use crate::app::state::AppState;
use crate::backend::Backend;
use crate::commands::owner_query::OwnerStatus;
use crate::commands::{control, owner_query, submit};
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::schemas;
use crate::openapi::tags::AGENTS;

pub(crate) fn operations() -> Vec<Operation> {
    let put_answer = json!({ "agent_id": "ann", "workflow": "default", "settings": { "deadline_ms": 60_000 }, "version": 2 });
    vec![
        Operation::get("/v1/agents", "listAgents", "List agents", list)
            .tag(AGENTS)
            .scope(Scope::ReadAgents)
            .query::<AgentsQuery>()
            .response::<AgentsPage>(
                200,
                "Agents, ordered by id",
                json!({ "agents": [agent_example()], "next": null }),
            )
            .errors(&[ErrorCode::InvalidLimit]),
        Operation::get(
            "/v1/agents/{agent}",
            "showAgent",
            "Show an agent, its queue, and why the first task waits",
            get,
        )
        .tag(AGENTS)
        .scope(Scope::ReadAgents)
        .response::<AgentDetail>(200, "The agent", agent_now_example())
        .errors(&[ErrorCode::UnknownAgent]),
        Operation::put("/v1/agents/{agent}", "putAgent", "Create an agent or change its settings", put)
            .tag(AGENTS)
            .scope(Scope::ConfigureAgents)
            .actor_header()
            .body::<AgentBody>(json!({ "workflow": "default", "settings": { "deadline_ms": 60_000 } }))
            .response::<PutAnswer>(201, "Created", put_answer.clone())
            .response::<PutAnswer>(200, "Updated", put_answer)
            .errors(&[ErrorCode::AliasTaken, ErrorCode::InvalidSettings, ErrorCode::ThreadErased]),
        control_operation(
            "/v1/agents/{agent}/pause",
            "pauseAgent",
            "Pause an agent: it starts no task until it is resumed",
            pause,
        ),
        control_operation("/v1/agents/{agent}/resume", "resumeAgent", "Resume a paused agent", resume),
        control_operation(
            "/v1/agents/{agent}/clear-backoff",
            "clearBackoff",
            "Clear the backoff: retry the first task now",
            clear_backoff,
        ),
    ]
}

/// The settings of an agent, as a client puts them.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AgentBody {
    #[schema(value_type = schemas::WorkflowNameSchema)]
    workflow: String,
    /// Settings that the fleet uses are checked; the others are passed to the workflow.
    #[schema(value_type = Option<agent_settings::AgentSettings>)]
    settings: Option<Map<String, Value>>,
}

/// The settings of an agent after the change.
#[derive(Serialize, ToSchema)]
pub(crate) struct PutAnswer {
    #[schema(value_type = schemas::AgentIdSchema)]
    agent_id: String,
    #[schema(value_type = schemas::WorkflowNameSchema)]
    workflow: String,
    #[schema(value_type = Object)]
    settings: Map<String, Value>,
    /// Number of the settings' version, from 1; rises by one with each change.
    version: u64,
}

/// An agent with its current state.
#[derive(Serialize, ToSchema)]
pub(crate) struct AgentDetail {
    #[serde(flatten)]
    agent: AgentView,
    #[schema(value_type = schemas::OwnerStatusSchema)]
    owner_status: &'static str,
    /// The turn in progress in the agent's own thread; null when there is none.
    #[schema(required)]
    active_turn: Option<TurnView>,
    /// The reason why the agent's first task does not start; null when nothing keeps it back.
    #[schema(required)]
    waiting: Option<ReasonView>,
}

impl MaxBodySize for AgentBody {
    const MAX_BYTES: usize = 512 << 10;
}

pub(crate) fn unknown() -> Problem {
    Problem::from(ErrorCode::UnknownAgent)
}

pub(crate) async fn put(
    ctx: RequestContext,
    PathParam(agent): PathParam<String>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<AgentBody>,
) -> Result<Response, Problem> {
    let put = PutAgent {
        agent: ctx.agent(&agent)?,
        workflow: path::id("workflow", &body.workflow, WorkflowName::parse)?,
        settings: agent_settings::checked(body.settings)?,
        act: control::new_id()?,
        actor: ctx.actor(&headers)?,
    };
    let version = match ctx.store()?.put_agent(&put).await? {
        PutAgentOutcome::Stored(version) => version,
        PutAgentOutcome::BeingErased => return Err(submit::being_erased()),
        PutAgentOutcome::AliasTaken { alias, agent } => {
            let detail = format!("settings.aliases: {alias} is an alias of the agent {}", agent.name());
            return Err(Problem::new(ErrorCode::AliasTaken, detail));
        }
    };
    let status = if version == 1 { StatusCode::CREATED } else { StatusCode::OK };
    let shown = PutAnswer {
        agent_id: put.agent.name().to_owned(),
        workflow: put.workflow.as_str().to_owned(),
        settings: put.settings,
        version,
    };
    Ok((status, json_no_store(shown)).into_response())
}

pub(crate) async fn get(
    ctx: RequestContext,
    PathParam(agent): PathParam<String>,
) -> Result<Response, Problem> {
    let (agent, backend) = (ctx.queue(&agent)?, ctx.backend()?);
    let row = backend.store().agent(&agent).await?.ok_or_else(unknown)?;
    let context = backend;
    let about = QueryTarget::Agent(agent.clone());
    let explained = owner_query::explain(context, Bucket::of_key(agent.as_str()), &about).await;
    let active = explained.as_ref().and_then(|explained| explained.active.as_ref());
    Ok(json_no_store(AgentDetail {
        agent: AgentView::from(&row),
        owner_status: OwnerStatus::of(explained.as_ref()).name(),
        active_turn: active.map(|active| TurnView::new(context, active)),
        waiting: waiting(context, &row, explained.as_ref()),
    }))
}

/// The reason why the agent's first task does not start. While the agent's owner does not answer,
/// only stored data is known.
fn waiting(context: &Backend, row: &AgentRow, explained: Option<&QueueStatus>) -> Option<ReasonView> {
    let until = row.backoff_next_run_at.filter(|_| row.backoff_left_ms.is_some());
    match explained {
        Some(QueueStatus { reason: Some(model::WaitReason::Backoff { .. }), .. }) if until.is_some() => {
            Some(ReasonView::backoff(until.and_then(views::rfc3339)))
        }
        Some(explained) => explained.reason.map(|reason| ReasonView::new(context, reason)),
        None if row.head.is_none() => None,
        None if row.paused => Some(ReasonView::paused()),
        None if until.is_some() => Some(ReasonView::backoff(until.and_then(views::rfc3339))),
        None => None,
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct AgentsQuery {
    /// Only agents that back off, or only agents that are paused.
    #[param(value_type = Option<schemas::AgentWaitingSchema>)]
    waiting: Option<String>,
    /// `next` of the previous page.
    #[param(value_type = Option<schemas::QueueIdSchema>)]
    next: Option<String>,
    #[param(value_type = Option<schemas::Limit>)]
    limit: Option<String>,
}

pub(crate) async fn list(
    ctx: RequestContext,
    QueryParams(query): QueryParams<AgentsQuery>,
) -> Result<Response, Problem> {
    let waiting = match query.waiting.as_deref() {
        None => None,
        Some("backoff") => Some(AgentWaiting::Backoff),
        Some("paused") => Some(AgentWaiting::Paused),
        Some(_) => return Err(Problem::new(ErrorCode::InvalidQuery, "waiting must be backoff or paused")),
    };
    let after = query
        .next
        .map(|id| path::id("next", &id, |id| AgentId::queue_of_tenant(ctx.tenant(), id)))
        .transpose()?;
    let limit = query::limit(query.limit.as_deref())?;
    // The request contains no id that names a tenant, so the query is restricted to the caller's
    // tenant, even on an insecure gateway.
    let (tenant, after) = (ctx.tenant(), after.as_ref());
    // The query for one tenant's page may have to skip the agents of all other tenants.
    let agents = ctx.read(move |store| async move {
        store.for_tenant(tenant.cloned()).agents(waiting, after, limit + 1).await
    });
    let mut agents = agents.await?;
    let next = query::next(&mut agents, limit, |last| last.agent.name().to_owned());
    Ok(json_no_store(AgentsPage { agents: agents.iter().map(AgentView::from).collect(), next }))
}

/// A page of agents, ordered by id.
#[derive(Serialize, ToSchema)]
pub(crate) struct AgentsPage {
    agents: Vec<AgentView>,
    #[schema(value_type = schemas::NextPage, required)]
    next: Option<String>,
}

/// An agent: its settings and the state of its queue.
#[derive(Serialize, ToSchema)]
pub(crate) struct AgentView {
    #[schema(value_type = schemas::QueueIdSchema)]
    agent_id: String,
    /// The workflow whose services answer for the agent.
    #[schema(value_type = schemas::WorkflowNameSchema)]
    workflow: String,
    #[schema(value_type = Object)]
    settings: Map<String, Value>,
    /// Version of the settings; rises by one with each change. 0: the agent has no settings.
    version: u64,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    created_at: Option<String>,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    updated_at: Option<String>,
    /// Number of waiting tasks, counted up to some maximum.
    #[schema(minimum = 0)]
    pending: i64,
    /// Number of tasks that were given up, counted up to some maximum.
    #[schema(minimum = 0)]
    failed: i64,
    /// The oldest waiting task; null when the queue is empty.
    #[schema(value_type = Option<schemas::TaskIdSchema>, required)]
    head_task_id: Option<String>,
    /// Whether the agent is paused, so that its tasks do not start.
    paused: bool,
    /// Number of failures since the last success.
    backoff_attempt_count: u32,
    /// When the first task may run again; null when the agent does not back off.
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    backoff_next_run_at: Option<String>,
    /// The last failure of the first task; null when there was none.
    #[schema(required)]
    last_error: Option<ErrorView>,
}

impl From<&AgentRow> for AgentView {
    fn from(row: &AgentRow) -> Self {
        let settings = row.settings.as_ref();
        let error = row.error.as_ref().map(|error| ErrorView {
            code: error.code.clone(),
            message: error.text.clone(),
            at: error.at.and_then(views::rfc3339),
        });
        Self {
            agent_id: row.agent.name().to_owned(),
            workflow: settings.map_or(DEFAULT_WORKFLOW, |settings| settings.workflow.as_str()).to_owned(),
            settings: settings.map(|settings| settings.settings.clone()).unwrap_or_default(),
            version: settings.map_or(0, |settings| settings.version),
            created_at: settings.and_then(|settings| views::rfc3339(settings.created_at)),
            updated_at: settings.and_then(|settings| views::rfc3339(settings.updated_at)),
            pending: row.pending,
            failed: row.failed,
            head_task_id: row.head.as_ref().map(|(task, _)| task.as_str().to_owned()),
            paused: row.paused,
            backoff_attempt_count: row.backoff_attempt_count,
            backoff_next_run_at: row.backoff_next_run_at.and_then(views::rfc3339),
            last_error: error,
        }
    }
}

/// The failure of a task.
#[derive(Serialize, ToSchema)]
pub(crate) struct ErrorView {
    /// The failure as a code.
    pub(crate) code: String,
    /// The failure as readable text.
    #[schema(required)]
    pub(crate) message: Option<String>,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    pub(crate) at: Option<String>,
}

pub(crate) async fn pause(
    ctx: RequestContext,
    agent: PathParam<String>,
    headers: HeaderMap,
    _: EmptyBody,
) -> Result<Response, Problem> {
    act(&ctx, &agent.0, &headers, ControlKind::Pause).await
}

pub(crate) async fn resume(
    ctx: RequestContext,
    agent: PathParam<String>,
    headers: HeaderMap,
    _: EmptyBody,
) -> Result<Response, Problem> {
    act(&ctx, &agent.0, &headers, ControlKind::Resume).await
}

pub(crate) async fn clear_backoff(
    ctx: RequestContext,
    agent: PathParam<String>,
    headers: HeaderMap,
    _: EmptyBody,
) -> Result<Response, Problem> {
    act(&ctx, &agent.0, &headers, ControlKind::ClearBackoff).await
}

async fn act(
    ctx: &RequestContext,
    agent: &str,
    headers: &HeaderMap,
    what: ControlKind,
) -> Result<Response, Problem> {
    let (agent, actor) = (ctx.queue(agent)?, ctx.actor(headers)?);
    let backend: &Backend = ctx.backend()?;
    // The owner decides, because it may know an agent that is not written yet.
    let acted = control::execute(backend, actor, agent.clone(), what).await?;
    if acted.refused().is_some() && backend.store().agent(&agent).await?.is_none() {
        return Err(unknown());
    }
    Ok(acted.into_response())
}

fn agent_example() -> Value {
    json!({
        "agent_id": "ann", "workflow": "default", "settings": { "deadline_ms": 60_000 }, "version": 2,
        "created_at": "2026-11-22T11:49:44.123Z", "updated_at": "2026-11-22T11:49:44.123Z", "pending": 3, "failed": 0,
        "head_task_id": "t-1", "paused": false, "backoff_attempt_count": 1,
        "backoff_next_run_at": "2026-11-22T11:50:44.123Z",
        "last_error": { "code": "deadline", "message": "the workflow made no progress within its deadline", "at": "2026-11-22T11:49:44.123Z" },
    })
}

fn agent_now_example() -> Value {
    let mut agent = agent_example();
    agent["owner_status"] = json!("available");
    agent["active_turn"] = Value::Null;
    agent["waiting"] = json!({
        "reason": "backoff", "until": "2026-11-22T11:50:44.123Z",
        "message": WaitReason::Backoff { for_ms: 0 }.message(),
    });
    agent
}

fn control_operation<T: 'static>(
    path: &'static str,
    id: &'static str,
    summary: &'static str,
    handler: impl Handler<T, AppState>,
) -> Operation {
    Operation::post(path, id, summary, handler)
        .tag(AGENTS)
        .scope(Scope::OperateAgents)
        .actor_header()
        .no_body()
        .acts()
        .errors(&[ErrorCode::UnknownAgent])
}
