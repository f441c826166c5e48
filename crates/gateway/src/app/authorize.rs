//! The layer before every handler: authentication, authorization and rate limits.

use std::net::IpAddr;
use std::sync::Arc;

use ::protocols::request::{ErrorBody, RequestRejection};
use auth::{Permission, RequestClass};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Uri};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use http_server::auth::quota;
use http_server::error;
use http_server::error::{ErrorCode, Problem};
use http_server::transport::extensions::ClientIp;

use crate::app::state::{AppState, Authenticated};

/// The permission that a route requires.
#[derive(Clone)]
struct RequireScope {
    state: AppState,
    scope: Permission,
    /// The route streams the events of a thread. A ticket opens it, and it does not count as a
    /// request, because a browser that is refused once never tries again.
    is_stream: bool,
    /// Error body of a refusal; `None`: problem+json.
    form: Option<fn(&RequestRejection) -> ErrorBody>,
}

/// Adds the authorization layer to routes.
pub(crate) struct Scopes<'a> {
    pub(crate) state: &'a AppState,
}

impl Scopes<'_> {
    /// `form`: the error body of a refusal; `None`: problem+json.
    pub(crate) fn require(
        &self,
        scope: Permission,
        form: Option<fn(&RequestRejection) -> ErrorBody>,
        routes: MethodRouter<AppState>,
    ) -> MethodRouter<AppState> {
        self.with_layer(scope, false, form, routes)
    }

    /// The route of a thread's events.
    pub(crate) fn stream(&self, routes: MethodRouter<AppState>) -> MethodRouter<AppState> {
        self.with_layer(Permission::ReadThreads, true, None, routes)
    }

    fn with_layer(
        &self,
        scope: Permission,
        is_stream: bool,
        form: Option<fn(&RequestRejection) -> ErrorBody>,
        routes: MethodRouter<AppState>,
    ) -> MethodRouter<AppState> {
        let rule = RequireScope { state: self.state.clone(), scope, is_stream, form };
        routes.route_layer(middleware::from_fn_with_state(rule, authorize))
    }
}

async fn authorize(State(rule): State<RequireScope>, mut request: Request, next: Next) -> Response {
    let peer = request.extensions().get().map(|ClientIp(addr)| *addr);
    let is_read = request.method().is_safe();
    let mut response = match rule.admit(request.headers(), request.uri(), is_read, peer).await {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    };
    // Covers refusals of this layer, of an extractor, and of the handler.
    match (rule.form, response.extensions_mut().remove::<Problem>()) {
        (Some(form), Some(problem)) => error::refusal(&problem, form),
        _ => response,
    }
}

impl RequireScope {
    async fn admit(
        &self,
        headers: &HeaderMap,
        uri: &Uri,
        is_read: bool,
        peer: Option<IpAddr>,
    ) -> Result<Authenticated, Problem> {
        let (state, now) = (&self.state, self.state.now());
        let ticket = self.is_stream.then(|| ticket_in(uri)).flatten();
        let store = state.feeds.get().map(|feeds| feeds.backend().store());
        let principal = state.authenticator.authenticate(store, headers, ticket, peer, now).await?;
        if state.erased_tenants.has(&principal) {
            return Err(Problem::tenant_erased());
        }
        // The thread that a ticket may follow is checked once the thread is known.
        let is_ticket = self.is_stream && principal.thread().is_some();
        if !is_ticket && !principal.has_permission(self.scope) {
            let detail = format!("this requires the scope {}", self.scope.scope());
            return Err(Problem::new(ErrorCode::InsufficientScope, detail));
        }
        if !self.is_stream {
            // A scope such as `keys:manage` is for reading, too.
            let class = if is_read { RequestClass::Read } else { quota::class(self.scope) };
            state.limiter.admit(principal.tenant(), class, now)?;
        }
        Ok(Authenticated(Arc::new(principal)))
    }
}

/// The value of `ticket=…` in the query. Its alphabet requires no escapes.
fn ticket_in(uri: &Uri) -> Option<&str> {
    uri.query()?.split('&').find_map(|part| part.strip_prefix("ticket="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_stands_in_the_query() {
        let of = |uri: &'static str| ticket_in(&Uri::from_static(uri)).map(str::to_owned);
        assert_eq!(of("/v1/threads/t/events?after=1&ticket=tkt_a.b"), Some("tkt_a.b".to_owned()));
        assert_eq!(of("/v1/threads/t/events?tickets=x"), None);
        assert_eq!(of("/v1/threads/t/events"), None);
    }
}
