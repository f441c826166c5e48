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
    agents, audit, batches, budgets, context, dead_letters, delayed_tasks, events, failed_turns, follow_ups,
    history, keys, memory, messages, schedules,
};
use crate::api::{reasoning, service_info, tasks, threads, tickets, turns, usage};
use crate::app::authorize::Scopes;
use crate::app::state::AppState;
use crate::auth::cors;
use crate::auth::host_check::HostPolicy;
use crate::error::{self, Problem};
use crate::http::connection::{Refusal, Refuse};
use crate::http::{request_id, request_metrics, request_trace};
use crate::openapi::pages;
use crate::streaming::subscriber::SubscribeError;

pub(crate) fn router(state: AppState, policy: HostPolicy, health: Health) -> Router {
    let routes = Router::new()
        .route("/", get(service_info::get))
        .route("/openapi.json", get(pages::description))
        .route("/docs", get(pages::page))
        .route("/docs/{file}", get(pages::file))
        .merge(of_threads(&state))
        .merge(of_agents(&state))
        .merge(of_timers(&state))
        .merge(of_budgets(&state))
        .merge(of_protocols(&state))
        .with_state(state)
        .merge(runtime::endpoint::probes_router(health))
        .fallback(async |uri: Uri| {
            let problem = Problem::not_found("unknown_address", "there is nothing at this address");
            refusal_at(uri.path(), problem)
        })
        .method_not_allowed_fallback(async |uri: Uri| refusal_at(uri.path(), Problem::method_not_allowed()));
    let cors = Arc::clone(&policy.cors);
    let routes = routes
        .layer(middleware::from_fn_with_state(cors, cors::cross_origin))
        .layer(middleware::from_fn(request_id::identify))
        .layer(middleware::from_fn_with_state(Arc::new(policy), check_head))
        .layer(middleware::from_fn(request_metrics::count));
    match runtime::traces::is_on() {
        true => routes.layer(middleware::from_fn(request_trace::trace)),
        false => routes,
    }
}

/// Before anything else is read of a request.
pub(crate) async fn check_head(
    State(policy): State<Arc<HostPolicy>>,
    request: Request,
    next: Next,
) -> Response {
    match policy.check(&request) {
        Ok(()) => next.run(request).await,
        Err(problem) => {
            let origin = cors::origin(request.headers());
            cors::readable(refusal_at(request.uri().path(), problem), &policy.cors, origin.as_deref())
        }
    }
}

/// What connections refuse themselves.
pub(crate) fn refusals(rules: Arc<CorsRules>) -> Refuse {
    Arc::new(move |why, uri, origin| {
        let problem = match why {
            Refusal::Draining => Problem::unavailable("draining", SubscribeError::Draining.to_string()),
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

fn of_threads(state: &AppState) -> Router<AppState> {
    use Permission::{OperateAgents, ReadAudit, ReadThreads, WriteThreads};
    let routes = Scopes { state };
    let require = |permission, handlers| routes.require(permission, handlers);
    let failed = "/v1/threads/{thread}/failed-turns";
    let follow_ups = "/v1/threads/{thread}/follow-ups";
    Router::new()
        .route("/v1/threads", require(WriteThreads, post(threads::create)))
        .route("/v1/threads/{thread}", require(ReadThreads, get(threads::get)))
        .route("/v1/threads/{thread}/events", routes.stream(get(events::stream_events)))
        .route("/v1/threads/{thread}/tickets", require(ReadThreads, post(tickets::create)))
        .route("/v1/threads/{thread}/history", require(ReadThreads, get(history::list)))
        .route("/v1/threads/{thread}/messages", require(WriteThreads, post(messages::send_message)))
        .route("/v1/threads/{thread}/context", require(ReadThreads, get(context::get)))
        .route("/v1/threads/{thread}/compactions", require(ReadThreads, get(context::compactions)))
        .route("/v1/threads/{thread}/compactions/undo", require(OperateAgents, post(context::undo)))
        .route("/v1/threads/{thread}/batches", require(ReadThreads, get(batches::list)))
        .route("/v1/threads/{thread}/batches/{batch}", require(ReadThreads, get(batches::get)))
        .route("/v1/threads/{thread}/audit", require(ReadAudit, get(audit::of_thread)))
        .route(failed, require(ReadThreads, get(failed_turns::list)))
        .route(&format!("{failed}/{{turn}}"), require(OperateAgents, delete(failed_turns::delete)))
        .route(&format!("{failed}/{{turn}}/retry"), require(OperateAgents, post(failed_turns::retry)))
        .route(follow_ups, require(ReadThreads, get(follow_ups::list)))
        .route(
            &format!("{follow_ups}/{{timer}}"),
            require(ReadThreads, get(follow_ups::get))
                .merge(require(WriteThreads, delete(follow_ups::cancel))),
        )
        .route(&format!("{follow_ups}/{{timer}}/snooze"), require(WriteThreads, post(follow_ups::snooze)))
        .route("/v1/turns/{turn}", require(ReadThreads, get(turns::get)))
        .route("/v1/turns/{turn}/stop", require(WriteThreads, post(turns::stop)))
}

fn of_agents(state: &AppState) -> Router<AppState> {
    use Permission::{
        ConfigureAgents, ManageKeys, OperateAgents, ReadAgents, ReadAudit, ReadDeadLetters, ReadReasoning,
        ReadThreads, SendTasks,
    };
    let routes = Scopes { state };
    let require = |permission, handlers| routes.require(permission, handlers);
    let task = "/v1/agents/{agent}/tasks/{task}";
    let agent = require(ReadAgents, get(agents::get)).merge(require(ConfigureAgents, put(agents::put)));
    let queue = require(ReadAgents, get(tasks::list)).merge(require(SendTasks, post(tasks::enqueue_task)));
    let acts = patch(tasks::edit).delete(tasks::delete);
    Router::new()
        .route("/v1/agents", require(ReadAgents, get(agents::list)))
        .route("/v1/agents/{agent}", agent)
        .route("/v1/agents/{agent}/pause", require(OperateAgents, post(agents::pause)))
        .route("/v1/agents/{agent}/resume", require(OperateAgents, post(agents::resume)))
        .route("/v1/agents/{agent}/clear-backoff", require(OperateAgents, post(agents::clear_backoff)))
        .route("/v1/agents/{agent}/audit", require(ReadAudit, get(audit::of_agent)))
        .route("/v1/agents/{agent}/batches", require(ReadThreads, get(batches::incomplete_of_agent)))
        .route("/v1/agents/{agent}/tasks", queue)
        .route(task, require(ReadAgents, get(tasks::get)).merge(require(OperateAgents, acts)))
        .route(&format!("{task}/retry"), require(OperateAgents, post(tasks::retry)))
        .route("/v1/reasoning/{session}", require(ReadReasoning, get(reasoning::get)))
        .route("/v1/usage", require(ReadAgents, get(usage::get)))
        .route("/v1/dead-letters", require(ReadDeadLetters, get(dead_letters::list)))
        .route("/v1/keys", require(ManageKeys, get(keys::list).post(keys::create)))
        .route("/v1/keys/{key}", require(ManageKeys, delete(keys::revoke)))
}

/// What agents do later, and what they remember.
fn of_timers(state: &AppState) -> Router<AppState> {
    use Permission::{OperateAgents, ReadAgents, ReadThreads};
    let routes = Scopes { state };
    let require = |permission, handlers| routes.require(permission, handlers);
    let memory = require(ReadThreads, get(memory::list)).merge(require(OperateAgents, post(memory::add)));
    let fact = require(OperateAgents, patch(memory::change).delete(memory::delete));
    let schedule = "/v1/agents/{agent}/schedules/{schedule}";
    let acts = put(schedules::put).delete(schedules::delete);
    let delayed = "/v1/agents/{agent}/delayed-tasks/{task}";
    let cancel = require(OperateAgents, delete(delayed_tasks::delete));
    Router::new()
        .route("/v1/agents/{agent}/memory", memory)
        .route("/v1/agents/{agent}/memory/{fact}", fact)
        .route("/v1/agents/{agent}/schedules", require(ReadAgents, get(schedules::list)))
        .route(schedule, require(ReadAgents, get(schedules::get)).merge(require(OperateAgents, acts)))
        .route(&format!("{schedule}/dry-run"), require(ReadAgents, post(schedules::dry_run)))
        .route("/v1/agents/{agent}/delayed-tasks", require(ReadAgents, get(delayed_tasks::list)))
        .route(delayed, require(ReadAgents, get(delayed_tasks::get)).merge(cancel))
}

/// What may be used.
fn of_budgets(state: &AppState) -> Router<AppState> {
    use Permission::{ConfigureAgents, ReadAgents, ReadAudit};
    let routes = Scopes { state };
    let require = |permission, handlers| routes.require(permission, handlers);
    let acts = put(budgets::put).delete(budgets::delete);
    Router::new()
        .route("/v1/budgets", require(ReadAgents, get(budgets::list)))
        .route(
            "/v1/budgets/{budget}",
            require(ReadAgents, get(budgets::get)).merge(require(ConfigureAgents, acts)),
        )
        .route("/v1/budgets/{budget}/audit", require(ReadAudit, get(budgets::audit)))
}

/// What front ends and libraries speak already.
fn of_protocols(state: &AppState) -> Router<AppState> {
    use crate::api::protocols::{agui, completions, models, responses, ui_message};
    use ::protocols::{agui as ag_ui, chat_completions as chat, responses as openai, ui_message as ai_sdk};
    use Permission::{ReadAgents, ReadThreads, WriteThreads};
    let routes = Scopes { state };
    let response = "/v1/responses/{response}";
    let of_ai_sdk =
        |permission, handlers| routes.require_with_error_format(ai_sdk::error_body, permission, handlers);
    let of_openai =
        |permission, handlers| routes.require_with_error_format(openai::error_body, permission, handlers);
    let of_chat =
        |permission, handlers| routes.require_with_error_format(chat::error_body, permission, handlers);
    let of_ag_ui =
        |permission, handlers| routes.require_with_error_format(ag_ui::error_body, permission, handlers);
    Router::new()
        .route("/api/chat", of_ai_sdk(WriteThreads, post(ui_message::post)))
        .route("/api/chat/{thread}", of_ai_sdk(ReadThreads, get(ui_message::history)))
        .route("/api/chat/{thread}/stream", of_ai_sdk(ReadThreads, get(ui_message::resume)))
        .route("/api/chat/{thread}/stop", of_ai_sdk(WriteThreads, post(ui_message::stop)))
        .route("/v1/chat/completions", of_chat(WriteThreads, post(completions::post)))
        .route("/v1/models", of_openai(ReadAgents, get(models::list)))
        .route("/v1/models/{model}", of_openai(ReadAgents, get(models::get)))
        .route("/v1/responses", of_openai(WriteThreads, post(responses::create)))
        .route(response, of_openai(ReadThreads, get(responses::get)))
        .route(&format!("{response}/cancel"), of_openai(WriteThreads, post(responses::cancel)))
        .route("/agui", of_ag_ui(WriteThreads, post(agui::post)))
        .route("/agui/connect", of_ag_ui(ReadThreads, post(agui::connect)))
}
