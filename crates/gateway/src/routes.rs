//! Addresses and their answers.

mod agents;
mod batches;
mod context;
mod dead_letters;
mod description;
mod docs;
mod events;
mod failed_turns;
mod history;
mod keys;
mod messages;
pub(crate) mod protocols;
mod tasks;
mod threads;
mod tickets;
mod turns;

use std::sync::Arc;

use auth::{CorsRules, Permission};
use axum::http::{Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, patch, post, put};
use axum::{Json, Router, middleware};
use model::CommandId;
use runtime::Health;
use serde::{Deserialize, Serialize};
use store::AuditRow;
use tokio_util::sync::CancellationToken;
use utoipa::{IntoParams, ToSchema};

use crate::app::request_context::{Counter, Desk};
use crate::error::Problem;
use crate::extract::path;
use crate::extract::path::Params;
use crate::extract::query;
use crate::extract::query::Asked;
use crate::app::authorize;
use crate::app::authorize::Guards;
use crate::http::request_id;
use crate::streaming::registry::Hub;
use crate::{forms, shown};

pub(crate) use batches::INCOMPLETE;
pub(crate) use context::COMPACTION_STATES;

/// The connection that a request came on; cancelled, it is dropped at once.
#[derive(Debug, Clone)]
pub(crate) struct Connection(pub(crate) CancellationToken);

pub(crate) fn router(counter: Counter, cors: Arc<CorsRules>, health: Health) -> Router {
    let routes = Router::new()
        .route("/", get(about))
        .route("/openapi.json", get(docs::description))
        .route("/docs", get(docs::page))
        .route("/docs/{file}", get(docs::file))
        .merge(of_threads(&counter))
        .merge(of_agents(&counter))
        .merge(of_protocols(&counter))
        .with_state(counter)
        .merge(runtime::endpoint::probes_router(health))
        .fallback(async |uri: Uri| {
            let problem = Problem::not_found("unknown_address", "there is nothing at this address");
            self::protocols::refusal_at(uri.path(), problem)
        })
        .method_not_allowed_fallback(async |uri: Uri| {
            self::protocols::refusal_at(uri.path(), Problem::method_not_allowed())
        });
    routes
        .layer(middleware::from_fn_with_state(cors, authorize::cross_origin))
        .layer(middleware::from_fn(request_id::identify))
}

fn of_threads(counter: &Counter) -> Router<Counter> {
    use Permission::{OperateAgents, ReadAudit, ReadThreads, WriteThreads};
    let routes = Guards { counter };
    let needs = |permission, handlers| routes.needs(permission, handlers);
    let failed = "/v1/threads/{thread}/failed-turns";
    Router::new()
        .route("/v1/threads", needs(WriteThreads, post(threads::create)))
        .route("/v1/threads/{thread}", needs(ReadThreads, get(threads::show)))
        .route("/v1/threads/{thread}/events", routes.stream(get(events::follow)))
        .route("/v1/threads/{thread}/tickets", needs(ReadThreads, post(tickets::make)))
        .route("/v1/threads/{thread}/history", needs(ReadThreads, get(history::page)))
        .route("/v1/threads/{thread}/messages", needs(WriteThreads, post(messages::take)))
        .route("/v1/threads/{thread}/context", needs(ReadThreads, get(context::show)))
        .route("/v1/threads/{thread}/compactions", needs(ReadThreads, get(context::compactions)))
        .route("/v1/threads/{thread}/compactions/undo", needs(OperateAgents, post(context::undo)))
        .route("/v1/threads/{thread}/batches", needs(ReadThreads, get(batches::page)))
        .route("/v1/threads/{thread}/batches/{batch}", needs(ReadThreads, get(batches::show)))
        .route("/v1/threads/{thread}/audit", needs(ReadAudit, get(audit_of_thread)))
        .route(failed, needs(ReadThreads, get(failed_turns::page)))
        .route(&format!("{failed}/{{turn}}"), needs(OperateAgents, delete(failed_turns::drop_one)))
        .route(&format!("{failed}/{{turn}}/retry"), needs(OperateAgents, post(failed_turns::retry)))
        .route("/v1/turns/{turn}", needs(ReadThreads, get(turns::show)))
        .route("/v1/turns/{turn}/stop", needs(WriteThreads, post(turns::stop)))
}

fn of_agents(counter: &Counter) -> Router<Counter> {
    use Permission::{
        ConfigureAgents, ManageKeys, OperateAgents, ReadAgents, ReadAudit, ReadDeadLetters, ReadThreads,
        SendTasks,
    };
    let routes = Guards { counter };
    let needs = |permission, handlers| routes.needs(permission, handlers);
    let task = "/v1/agents/{agent}/tasks/{task}";
    let agent = needs(ReadAgents, get(agents::show)).merge(needs(ConfigureAgents, put(agents::put)));
    let queue = needs(ReadAgents, get(tasks::page)).merge(needs(SendTasks, post(tasks::send)));
    let acts = patch(tasks::edit).delete(tasks::drop_one);
    Router::new()
        .route("/v1/agents", needs(ReadAgents, get(agents::page)))
        .route("/v1/agents/{agent}", agent)
        .route("/v1/agents/{agent}/pause", needs(OperateAgents, post(agents::pause)))
        .route("/v1/agents/{agent}/resume", needs(OperateAgents, post(agents::resume)))
        .route("/v1/agents/{agent}/clear-backoff", needs(OperateAgents, post(agents::clear_backoff)))
        .route("/v1/agents/{agent}/audit", needs(ReadAudit, get(audit_of_agent)))
        .route("/v1/agents/{agent}/batches", needs(ReadThreads, get(batches::incomplete_of_agent)))
        .route("/v1/agents/{agent}/tasks", queue)
        .route(task, needs(ReadAgents, get(tasks::show)).merge(needs(OperateAgents, acts)))
        .route(&format!("{task}/retry"), needs(OperateAgents, post(tasks::retry)))
        .route("/v1/dead-letters", needs(ReadDeadLetters, get(dead_letters::page)))
        .route("/v1/keys", needs(ManageKeys, get(keys::page).post(keys::make)))
        .route("/v1/keys/{key}", needs(ManageKeys, delete(keys::revoke)))
}

/// What front ends and libraries speak already.
fn of_protocols(counter: &Counter) -> Router<Counter> {
    use self::protocols::{agui, completions, models, responses, ui_message};
    use ::protocols::{agui as ag_ui, chat_completions as chat, responses as openai, ui_message as ai_sdk};
    use Permission::{ReadAgents, ReadThreads, WriteThreads};
    let routes = Guards { counter };
    let response = "/v1/responses/{response}";
    let of_ai_sdk = |permission, handlers| routes.needs_in(ai_sdk::error_body, permission, handlers);
    let of_openai = |permission, handlers| routes.needs_in(openai::error_body, permission, handlers);
    let of_chat = |permission, handlers| routes.needs_in(chat::error_body, permission, handlers);
    let of_ag_ui = |permission, handlers| routes.needs_in(ag_ui::error_body, permission, handlers);
    Router::new()
        .route("/api/chat", of_ai_sdk(WriteThreads, post(ui_message::post)))
        .route("/api/chat/{thread}", of_ai_sdk(ReadThreads, get(ui_message::history)))
        .route("/api/chat/{thread}/stream", of_ai_sdk(ReadThreads, get(ui_message::resume)))
        .route("/api/chat/{thread}/stop", of_ai_sdk(WriteThreads, post(ui_message::stop)))
        .route("/v1/chat/completions", of_chat(WriteThreads, post(completions::post)))
        .route("/v1/models", of_openai(ReadAgents, get(models::page)))
        .route("/v1/models/{model}", of_openai(ReadAgents, get(models::show)))
        .route("/v1/responses", of_openai(WriteThreads, post(responses::post)))
        .route(response, of_openai(ReadThreads, get(responses::show)))
        .route(&format!("{response}/cancel"), of_openai(WriteThreads, post(responses::cancel)))
        .route("/agui", of_ag_ui(WriteThreads, post(agui::post)))
        .route("/agui/connect", of_ag_ui(ReadThreads, post(agui::connect)))
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
    /// `next` of the page before.
    #[param(value_type = Option<forms::ActName>)]
    next: Option<String>,
    #[param(value_type = Option<forms::Limit>)]
    limit: Option<String>,
}

/// Acts, newest first.
#[derive(Serialize, ToSchema)]
struct AuditPage {
    /// The thread or agent.
    subject_id: String,
    acts: Vec<AuditedAct>,
    /// Where the next page begins; null on the last one.
    #[schema(required)]
    next: Option<String>,
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
    let (agent, hub) = (desk.queue(&agent)?, desk.hub()?);
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
        threads::check_begun(hub, &thread).await?;
    }
    Ok(fresh(page))
}

async fn audit(hub: &Hub, subject: &str, name: &str, query: AuditQuery) -> Result<AuditPage, Problem> {
    let limit = query::limit(query.limit.as_deref())?;
    let before = query.next.map(|id| path::id("next", &id, ActId::parse)).transpose()?;
    let mut acts = hub.store().acts(subject, before.as_ref(), limit + 1).await?;
    let next = query::next(&mut acts, limit, |last| last.command_id.as_str().to_owned());
    let acts = acts.into_iter().map(AuditedAct::from).collect();
    Ok(AuditPage { subject_id: name.to_owned(), acts, next })
}

impl From<AuditRow> for AuditedAct {
    fn from(row: AuditRow) -> Self {
        Self {
            act_id: row.command_id.as_str().to_owned(),
            done: row.error.is_none(),
            actor: row.actor,
            what: row.action,
            target: row.target,
            refused: row.error,
            at: shown::rfc3339(row.created_at),
        }
    }
}
