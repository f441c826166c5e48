//! Every route with its scope, and what stands before all of them.

use std::sync::Arc;

use auth::{CorsRules, Permission};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, patch, post, put};
use runtime::Health;

use crate::api::{
    agents, audit, batches, context, dead_letters, events, failed_turns, history, keys, messages,
};
use crate::api::{service_info, tasks, threads, tickets, turns};
use crate::app::authorize::Guards;
use crate::app::state::Counter;
use crate::auth::cors;
use crate::auth::host_check::Heads;
use crate::error::{self, Problem};
use crate::http::connection::{Refusal, Refuse};
use crate::http::request_id;
use crate::openapi::pages;
use crate::streaming::subscriber::Refused;

pub(crate) fn router(counter: Counter, heads: Heads, health: Health) -> Router {
    let routes = Router::new()
        .route("/", get(service_info::get))
        .route("/openapi.json", get(pages::description))
        .route("/docs", get(pages::page))
        .route("/docs/{file}", get(pages::file))
        .merge(of_threads(&counter))
        .merge(of_agents(&counter))
        .merge(of_protocols(&counter))
        .with_state(counter)
        .merge(runtime::endpoint::probes_router(health))
        .fallback(async |uri: Uri| {
            let problem = Problem::not_found("unknown_address", "there is nothing at this address");
            refusal_at(uri.path(), problem)
        })
        .method_not_allowed_fallback(async |uri: Uri| refusal_at(uri.path(), Problem::method_not_allowed()));
    let cors = Arc::clone(&heads.cors);
    routes
        .layer(middleware::from_fn_with_state(cors, cors::cross_origin))
        .layer(middleware::from_fn(request_id::identify))
        .layer(middleware::from_fn_with_state(Arc::new(heads), check_head))
}

/// Before anything else is read of a request.
async fn check_head(State(heads): State<Arc<Heads>>, request: Request, next: Next) -> Response {
    match heads.check(&request) {
        Ok(()) => next.run(request).await,
        Err(problem) => {
            let origin = cors::origin(request.headers());
            cors::readable(refusal_at(request.uri().path(), problem), &heads.cors, origin.as_deref())
        }
    }
}

/// What connections refuse themselves.
pub(crate) fn refusals(rules: Arc<CorsRules>) -> Refuse {
    Arc::new(move |why, uri, origin| {
        let problem = match why {
            Refusal::Draining => Problem::unavailable("draining", Refused::Draining.to_string()),
            Refusal::TooManyRequests => {
                let detail = "this address has as many requests under way here as it may have";
                Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", detail).retry_after(1)
            }
            Refusal::TooManyStreams => {
                let detail = "this gateway has as many requests under way as it may have; try another";
                Problem::unavailable("too_many_streams", detail)
            }
        };
        let origin = origin.and_then(|origin| origin.to_str().ok());
        cors::readable(refusal_at(uri.path(), problem), &rules, origin)
    })
}

/// A refusal outside of the handlers, in the form of the protocol of its path.
fn refusal_at(path: &str, problem: Problem) -> Response {
    const OPENAI: [&str; 3] = ["/v1/chat/", "/v1/responses", "/v1/models"];
    let form = match path {
        _ if OPENAI.iter().any(|begin| path.starts_with(begin)) => protocols::responses::error_body,
        _ if path.starts_with("/api/chat") => protocols::ui_message::error_body,
        _ if path.starts_with("/agui") => protocols::agui::error_body,
        _ => return problem.into_response(),
    };
    problem.count();
    error::refusal(&problem, form)
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
        .route("/v1/threads/{thread}/audit", needs(ReadAudit, get(audit::of_thread)))
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
        .route("/v1/agents/{agent}/audit", needs(ReadAudit, get(audit::of_agent)))
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
    use crate::api::protocols::{agui, completions, models, responses, ui_message};
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
