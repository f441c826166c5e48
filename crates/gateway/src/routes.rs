//! Addresses and their answers.

mod agents;
mod batches;
mod context;
mod description;
mod docs;
mod events;
mod failed_turns;
mod history;
mod messages;
mod protocols;
mod tasks;
mod threads;
mod turns;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use model::ActId;
use runtime::Health;
use serde::{Deserialize, Serialize};
use store::AuditRow;
use tokio_util::sync::CancellationToken;
use utoipa::{IntoParams, ToSchema};

use crate::desk::{Counter, Desk};
use crate::hub::Hub;
use crate::params::{self, Asked, Params};
use crate::problem::Problem;
use crate::{forms, shown};

pub(crate) use context::COMPACTION_STATES;

/// The connection that a request came on; cancelled, it is dropped at once.
#[derive(Debug, Clone)]
pub(crate) struct Connection(pub(crate) CancellationToken);

pub(crate) fn router(counter: Counter, health: Health) -> Router {
    Router::new()
        .route("/", get(about))
        .route("/openapi.json", get(docs::description))
        .route("/docs", get(docs::page))
        .route("/docs/{file}", get(docs::file))
        .merge(of_threads())
        .merge(of_agents())
        .merge(of_protocols())
        .with_state(counter)
        .merge(runtime::endpoint::probes_router(health))
        .fallback(|| async { Problem::not_found("unknown_address", "there is nothing at this address") })
        .method_not_allowed_fallback(|| async { Problem::method_not_allowed() })
}

fn of_threads() -> Router<Counter> {
    let failed = "/v1/threads/{thread}/failed-turns";
    Router::new()
        .route("/v1/threads", post(threads::create))
        .route("/v1/threads/{thread}", get(threads::show))
        .route("/v1/threads/{thread}/events", get(events::follow))
        .route("/v1/threads/{thread}/history", get(history::page))
        .route("/v1/threads/{thread}/messages", post(messages::take))
        .route("/v1/threads/{thread}/context", get(context::show))
        .route("/v1/threads/{thread}/compactions", get(context::compactions))
        .route("/v1/threads/{thread}/compactions/undo", post(context::undo))
        .route("/v1/threads/{thread}/batches", get(batches::page))
        .route("/v1/threads/{thread}/batches/{batch}", get(batches::show))
        .route("/v1/threads/{thread}/audit", get(audit_of_thread))
        .route(failed, get(failed_turns::page))
        .route(&format!("{failed}/{{turn}}"), axum::routing::delete(failed_turns::drop_one))
        .route(&format!("{failed}/{{turn}}/retry"), post(failed_turns::retry))
        .route("/v1/turns/{turn}/stop", post(turns::stop))
}

fn of_agents() -> Router<Counter> {
    let task = "/v1/agents/{agent}/tasks/{task}";
    Router::new()
        .route("/v1/agents", get(agents::page))
        .route("/v1/agents/{agent}", get(agents::show).put(agents::put))
        .route("/v1/agents/{agent}/pause", post(agents::pause))
        .route("/v1/agents/{agent}/resume", post(agents::resume))
        .route("/v1/agents/{agent}/clear-backoff", post(agents::clear_backoff))
        .route("/v1/agents/{agent}/audit", get(audit_of_agent))
        .route("/v1/agents/{agent}/tasks", get(tasks::page).post(tasks::send))
        .route(task, get(tasks::show).patch(tasks::edit).delete(tasks::drop_one))
        .route(&format!("{task}/retry"), post(tasks::retry))
}

/// What front ends and libraries speak already.
fn of_protocols() -> Router<Counter> {
    use protocols::{agui, completions, responses, ui_message};
    let response = "/v1/responses/{response}";
    Router::new()
        .route("/api/chat", post(ui_message::post))
        .route("/api/chat/{thread}/stream", get(ui_message::resume))
        .route("/api/chat/{thread}/stop", post(ui_message::stop))
        .route("/v1/chat/completions", post(completions::post))
        .route("/v1/responses", post(responses::post))
        .route(response, get(responses::show))
        .route(&format!("{response}/cancel"), post(responses::cancel))
        .route("/agui", post(agui::post))
        .route("/agui/connect", post(agui::connect))
}

async fn about() -> Json<About> {
    Json(About { name: "antiphon", version: env!("CARGO_PKG_VERSION") })
}

/// A JSON answer that no cache keeps.
fn fresh(body: impl Serialize) -> Response {
    ([(header::CACHE_CONTROL, "no-store"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")], Json(body))
        .into_response()
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
struct AuditQuery {
    /// The last id of the page before.
    #[param(value_type = Option<forms::ActName>)]
    before: Option<String>,
    #[param(value_type = Option<forms::Limit>)]
    limit: Option<String>,
}

/// Acts, newest first.
#[derive(Serialize, ToSchema)]
struct AuditPage {
    /// The thread or agent.
    subject_id: String,
    acts: Vec<AuditedAct>,
    has_more: bool,
}

/// What somebody did.
#[derive(Serialize, ToSchema)]
struct AuditedAct {
    #[schema(value_type = forms::ActName)]
    act_id: String,
    actor: String,
    what: String,
    /// The task or turn that it was about.
    #[schema(required)]
    target: Option<String>,
    done: bool,
    /// Why not.
    #[schema(required)]
    refused: Option<String>,
    #[schema(value_type = Option<forms::Moment>, required)]
    at: Option<String>,
}

/// What answers here.
#[derive(Serialize, ToSchema)]
struct About {
    name: &'static str,
    version: &'static str,
}

async fn audit_of_agent(
    desk: Desk,
    Params(agent): Params<String>,
    Asked(query): Asked<AuditQuery>,
) -> Result<Response, Problem> {
    let (agent, hub) = (desk.agent(&agent)?, desk.hub()?);
    let page = audit(hub, agent.as_str(), agent.name(), query).await?;
    if page.acts.is_empty() && hub.store().agent(&agent).await?.is_none() {
        return Err(agents::unknown());
    }
    Ok(fresh(page))
}

async fn audit_of_thread(
    desk: Desk,
    Params(thread): Params<String>,
    Asked(query): Asked<AuditQuery>,
) -> Result<Response, Problem> {
    let (thread, hub) = (desk.thread(&thread)?, desk.hub()?);
    let page = audit(hub, thread.as_str(), thread.name(), query).await?;
    if page.acts.is_empty() && hub.store().thread(&thread).await?.is_none() {
        return Err(threads::unknown());
    }
    Ok(fresh(page))
}

async fn audit(hub: &Hub, subject: &str, name: &str, query: AuditQuery) -> Result<AuditPage, Problem> {
    let limit = params::limit(query.limit.as_deref())?;
    let before = query.before.map(|id| params::id("before", &id, ActId::parse)).transpose()?;
    let mut acts = hub.store().acts(subject, before.as_ref(), limit + 1).await?;
    let has_more = params::has_more(&mut acts, limit);
    let acts = acts.into_iter().map(AuditedAct::from).collect();
    Ok(AuditPage { subject_id: name.to_owned(), acts, has_more })
}

impl From<AuditRow> for AuditedAct {
    fn from(row: AuditRow) -> Self {
        Self {
            act_id: row.act.as_str().to_owned(),
            done: row.refused.is_none(),
            actor: row.actor,
            what: row.what,
            target: row.target,
            refused: row.refused,
            at: shown::rfc3339(row.at),
        }
    }
}
