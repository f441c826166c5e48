//! The router: every operation as a route, and the layers before all of them.

use std::sync::Arc;

use auth::CorsRules;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::Uri;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use runtime::Health;

use crate::app::authorize::Scopes;
use crate::app::state::AppState;
use crate::auth::cors;
use crate::auth::host_check::HostPolicy;
use crate::error::{self, ErrorCode, Problem};
use crate::http::connection::{Refusal, Refuse};
use crate::http::{request_id, request_metrics, request_trace};
use crate::openapi::document;
use crate::streaming::subscriber::SubscribeError;

pub(crate) fn router(state: AppState, policy: HostPolicy, health: Health) -> Router {
    let routes = operations(&state)
        .route("/openapi.json", get(document::get))
        .with_state(state)
        .merge(runtime::endpoint::probes_router(health))
        .fallback(async |uri: Uri| {
            let problem = Problem::from(ErrorCode::UnknownAddress);
            refusal_at(uri.path(), problem)
        })
        .method_not_allowed_fallback(async |uri: Uri| {
            refusal_at(uri.path(), Problem::from(ErrorCode::MethodNotAllowed))
        });
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

/// Checks Host and Origin before anything else of a request is read.
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

/// Makes the responses of requests that a connection refuses.
pub(crate) fn refusals(rules: Arc<CorsRules>) -> Refuse {
    Arc::new(move |why, uri, origin| {
        let problem = match why {
            Refusal::Draining => Problem::new(ErrorCode::Draining, SubscribeError::Draining.to_string()),
            Refusal::TooManyRequests => {
                let detail = "this address has as many requests under way here as it may have";
                Problem::new(ErrorCode::TooManyRequests, detail)
            }
            Refusal::TooManyStreams => {
                let detail = "this gateway has as many requests under way as it may have; try another";
                Problem::new(ErrorCode::TooManyStreams, detail)
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

/// All operations that have a handler, with their scopes.
fn operations(state: &AppState) -> Router<AppState> {
    let scopes = Scopes { state };
    let routes = document::operations().into_iter().filter_map(|operation| operation.into_route(&scopes));
    routes.fold(Router::new(), |router, (path, handler)| router.route(path, handler))
}
