//! The router: every operation as a route, and the layers before all of them.

use axum::Router;
use axum::http::Uri;
use axum::routing::get;
use http_server::auth::host_check::HostPolicy;
use http_server::error::{ErrorCode, Problem};
use http_server::transport::request_metrics::WaitingRoutes;
use runtime::Health;

use crate::app::authorize::Scopes;
use crate::app::state::AppState;
use crate::{book, document};

/// Routes whose requests wait for agents.
const WAITING: WaitingRoutes = &[
    "/v1/threads/{thread}/events",
    "/api/chat",
    "/api/chat/{thread}/stream",
    "/v1/chat/completions",
    "/v1/responses",
    "/agui",
    "/agui/connect",
];

pub(crate) fn router(state: AppState, policy: HostPolicy, health: Health) -> Router {
    let routes = operations(&state)
        .route("/openapi.json", get(document::get))
        .with_state(state)
        .merge(book::routes())
        .merge(runtime::endpoint::probes_router(health))
        .fallback(async |uri: Uri| {
            let problem = Problem::from(ErrorCode::UnknownAddress);
            http_server::refusal_at(uri.path(), problem)
        })
        .method_not_allowed_fallback(async |uri: Uri| {
            http_server::refusal_at(uri.path(), Problem::from(ErrorCode::MethodNotAllowed))
        });
    http_server::with_layers(routes, policy, WAITING)
}

/// All operations that have a handler, with their scopes.
fn operations(state: &AppState) -> Router<AppState> {
    let scopes = Scopes { state };
    let routes = document::operations().into_iter().filter_map(|operation| operation.into_route(&scopes));
    routes.fold(Router::new(), |router, (path, handler)| router.route(path, handler))
}
