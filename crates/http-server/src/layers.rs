//! The layers before the routes of every role.

use std::sync::Arc;

use axum::Router;
use axum::middleware;

use crate::auth::cors;
use crate::auth::host_check::HostPolicy;
use crate::refusals::check_head;
use crate::transport::request_metrics::{self, WaitingRoutes};
use crate::transport::{request_id, request_trace};

/// Puts these layers before all routes, the outermost first: traces, metrics, the checks of `Host`
/// and `Origin`, request ids, and CORS. `waiting`: the routes whose requests wait for agents.
pub fn with_layers(routes: Router, policy: HostPolicy, waiting: WaitingRoutes) -> Router {
    let cors = Arc::clone(&policy.cors);
    let routes = routes
        .layer(middleware::from_fn_with_state(cors, cors::cross_origin))
        .layer(middleware::from_fn(request_id::identify))
        .layer(middleware::from_fn_with_state(Arc::new(policy), check_head))
        .layer(middleware::from_fn_with_state(waiting, request_metrics::count));
    match runtime::traces::is_on() {
        true => routes.layer(middleware::from_fn(request_trace::trace)),
        false => routes,
    }
}
