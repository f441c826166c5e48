//! Agents: their settings, their queues, and what operators do to them.

use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use model::{ActKind, Bucket, WorkflowName};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use store::{AgentRow, AgentWaiting, PutAgent};
use wire::explain::{About, Explanation};

use super::fresh;
use crate::body::{Bounded, Empty, Strict};
use crate::desk::Desk;
use crate::hub::{Context, Hub};
use crate::params::{self, Asked, Params};
use crate::problem::Problem;
use crate::{acts, owner, settings, shown};

/// What an agent without settings has.
const DEFAULT_WORKFLOW: &str = "default";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AgentBody {
    workflow: String,
    settings: Option<Map<String, Value>>,
}

impl Bounded for AgentBody {
    const MAX_BYTES: usize = 512 << 10;
}

pub(super) fn unknown() -> Problem {
    Problem::not_found("unknown_agent", "there is no such agent")
}

pub(super) async fn put(
    desk: Desk,
    Params(agent): Params<String>,
    headers: HeaderMap,
    Strict(body): Strict<AgentBody>,
) -> Result<Response, Problem> {
    let put = PutAgent {
        agent: desk.agent(&agent)?,
        workflow: params::id("workflow", &body.workflow, WorkflowName::parse)?,
        settings: settings::checked(body.settings)?,
        act: acts::new_id()?,
        actor: desk.actor(&headers)?,
    };
    let version = desk.store()?.put_agent(&put).await?;
    let status = if version == 1 { StatusCode::CREATED } else { StatusCode::OK };
    let shown = json!({
        "agent_id": put.agent.name(),
        "workflow": put.workflow.as_str(),
        "settings": put.settings,
        "version": version,
    });
    Ok((status, fresh(shown)).into_response())
}

pub(super) async fn show(desk: Desk, Params(agent): Params<String>) -> Result<Response, Problem> {
    let (agent, hub) = (desk.agent(&agent)?, desk.hub()?);
    let row = hub.store().agent(&agent).await?.ok_or_else(unknown)?;
    let context = hub.context();
    let about = About::Agent(agent.clone());
    let explained = owner::why(context, Bucket::of_key(agent.as_str()), &about).await;
    let mut shown = shown_agent(&row);
    shown.insert("owner".to_owned(), json!(owner::presence(explained.is_some())));
    let active = explained.as_ref().and_then(|explained| explained.active.as_ref());
    shown.insert("active_turn".to_owned(), json!(active.map(|active| owner::shown_turn(context, active))));
    shown.insert("waiting".to_owned(), waiting(context, &row, explained.as_ref()));
    Ok(fresh(shown))
}

/// Why the agent's head does not start. Without its owner only what is stored is known.
fn waiting(context: &Context, row: &AgentRow, explained: Option<&Explanation>) -> Value {
    let until = row.backoff_next_run_at.filter(|_| row.backoff_left_ms.is_some());
    let stored = |reason: &str, until: Option<String>| json!({ "reason": reason, "until": until });
    match explained {
        Some(Explanation { reason: Some(wire::explain::WaitReason::Backoff { .. }), .. })
            if until.is_some() =>
        {
            stored("backoff until", until.and_then(shown::rfc3339))
        }
        Some(explained) => json!(explained.reason.map(|reason| owner::shown_reason(context, reason))),
        None if row.head.is_none() => Value::Null,
        None if row.paused => stored("paused", None),
        None if until.is_some() => stored("backoff until", until.and_then(shown::rfc3339)),
        None => Value::Null,
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AgentsQuery {
    waiting: Option<String>,
    after: Option<String>,
    limit: Option<String>,
}

pub(super) async fn page(desk: Desk, Asked(query): Asked<AgentsQuery>) -> Result<Response, Problem> {
    let waiting = match query.waiting.as_deref() {
        None => None,
        Some("backoff") => Some(AgentWaiting::Backoff),
        Some("paused") => Some(AgentWaiting::Paused),
        Some(_) => return Err(Problem::bad_request("invalid_query", "waiting must be backoff or paused")),
    };
    let after = query.after.map(|id| desk.agent_in("after", &id)).transpose()?;
    let limit = params::limit(query.limit.as_deref())?;
    let mut agents = desk.store()?.agents(waiting, after.as_ref(), limit + 1).await?;
    let has_more = params::has_more(&mut agents, limit);
    let agents: Vec<_> = agents.iter().map(shown_agent).collect();
    Ok(fresh(json!({ "agents": agents, "has_more": has_more })))
}

fn shown_agent(row: &AgentRow) -> Map<String, Value> {
    let settings = row.settings.as_ref();
    let error = row.error.as_ref().map(
        |error| json!({ "code": error.code, "text": error.text, "at": error.at.and_then(shown::rfc3339) }),
    );
    let shown = json!({
        "agent_id": row.agent.name(),
        "workflow": settings.map_or(DEFAULT_WORKFLOW, |settings| settings.workflow.as_str()),
        "settings": settings.map(|settings| settings.settings.clone()).unwrap_or_default(),
        "version": settings.map_or(0, |settings| settings.version),
        "created_at": settings.and_then(|settings| shown::rfc3339(settings.created_at)),
        "updated_at": settings.and_then(|settings| shown::rfc3339(settings.updated_at)),
        "pending": row.pending,
        "failed": row.failed,
        "head_task_id": row.head.as_ref().map(|(task, _)| task.as_str()),
        "paused": row.paused,
        "backoff_attempt_count": row.backoff_attempt_count,
        "backoff_next_run_at": row.backoff_next_run_at.and_then(shown::rfc3339),
        "last_error": error,
    });
    match shown {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

pub(super) async fn pause(
    desk: Desk,
    agent: Params<String>,
    headers: HeaderMap,
    _: Empty,
) -> Result<Response, Problem> {
    act(&desk, &agent.0, &headers, ActKind::Pause).await
}

pub(super) async fn resume(
    desk: Desk,
    agent: Params<String>,
    headers: HeaderMap,
    _: Empty,
) -> Result<Response, Problem> {
    act(&desk, &agent.0, &headers, ActKind::Resume).await
}

pub(super) async fn clear_backoff(
    desk: Desk,
    agent: Params<String>,
    headers: HeaderMap,
    _: Empty,
) -> Result<Response, Problem> {
    act(&desk, &agent.0, &headers, ActKind::ClearBackoff).await
}

async fn act(desk: &Desk, agent: &str, headers: &HeaderMap, what: ActKind) -> Result<Response, Problem> {
    let (agent, actor) = (desk.agent(agent)?, desk.actor(headers)?);
    let hub: &Hub = desk.hub()?;
    Ok(acts::perform(hub, actor, agent, what).await?.into_response())
}
