//! What stands before every handler: who asks, whether he may, and whether it is too much.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use ::protocols::request::{ErrorBody, Rejection};
use auth::{Class, CorsRules, OverLimit, Permission, Principal, StreamPermit, TenantName, Tenants};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use model::Timestamp;

use crate::app::request_context::{Caller, Counter};
use crate::error;
use crate::error::Problem;

/// From where a request comes, as an extension of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// A route that asks for a permission.
#[derive(Clone)]
struct Guard {
    counter: Counter,
    needs: Permission,
    /// The events of a thread: a ticket opens them, and they cost no request, because a browser gives up for good when it is refused.
    is_stream: bool,
    /// In which form it refuses; problem+json without one.
    form: Option<fn(&Rejection) -> ErrorBody>,
}

/// Routes that ask for a permission.
pub(crate) struct Guards<'a> {
    pub(crate) counter: &'a Counter,
}

impl Guards<'_> {
    /// Routes of the API.
    pub(crate) fn needs(&self, needs: Permission, routes: MethodRouter<Counter>) -> MethodRouter<Counter> {
        self.guarded(needs, false, None, routes)
    }

    /// The events of a thread.
    pub(crate) fn stream(&self, routes: MethodRouter<Counter>) -> MethodRouter<Counter> {
        self.guarded(Permission::ReadThreads, true, None, routes)
    }

    /// Routes of another protocol, which refuses in its own form.
    pub(crate) fn needs_in(
        &self,
        form: fn(&Rejection) -> ErrorBody,
        needs: Permission,
        routes: MethodRouter<Counter>,
    ) -> MethodRouter<Counter> {
        self.guarded(needs, false, Some(form), routes)
    }

    fn guarded(
        &self,
        needs: Permission,
        is_stream: bool,
        form: Option<fn(&Rejection) -> ErrorBody>,
        routes: MethodRouter<Counter>,
    ) -> MethodRouter<Counter> {
        let guard = Guard { counter: self.counter.clone(), needs, is_stream, form };
        routes.route_layer(middleware::from_fn_with_state(guard, stand_before))
    }
}

async fn stand_before(State(guard): State<Guard>, mut request: Request, next: Next) -> Response {
    let peer = request.extensions().get().map(|Peer(addr)| *addr);
    let mut response = match guard.admit(request.headers(), request.uri(), peer).await {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    };
    // Whoever refused it: the guard, what reads paths, queries and bodies, or the handler.
    match (guard.form, response.extensions_mut().remove::<Problem>()) {
        (Some(form), Some(problem)) => error::refusal(&problem, form),
        _ => response,
    }
}

impl Guard {
    async fn admit(&self, headers: &HeaderMap, uri: &Uri, peer: Option<IpAddr>) -> Result<Caller, Problem> {
        let (counter, now) = (&self.counter, self.counter.now());
        let ticket = self.is_stream.then(|| ticket_in(uri)).flatten();
        let store = counter.hub.get().map(|hub| hub.store());
        let principal = counter.credentials.who(store, headers, ticket, peer, now).await?;
        // What a ticket may follow is known when the thread is.
        let is_ticket = self.is_stream && principal.thread().is_some();
        if !is_ticket && !principal.may(self.needs) {
            let detail = format!("this needs the scope {}", self.needs.scope());
            return Err(Problem::new(StatusCode::FORBIDDEN, "insufficient_scope", detail));
        }
        if !self.is_stream {
            counter.usage.admit(principal.tenant(), class(self.needs), now)?;
        }
        Ok(Caller(Arc::new(principal)))
    }
}

fn class(needs: Permission) -> Class {
    match needs {
        Permission::ReadThreads
        | Permission::ReadAgents
        | Permission::ReadAudit
        | Permission::ReadDeadLetters => Class::Read,
        Permission::WriteThreads
        | Permission::SendTasks
        | Permission::OperateAgents
        | Permission::ConfigureAgents
        | Permission::ManageKeys => Class::Write,
    }
}

/// `ticket=…`: of an alphabet that needs no escapes.
fn ticket_in(uri: &Uri) -> Option<&str> {
    uri.query()?.split('&').find_map(|part| part.strip_prefix("ticket="))
}

/// How much tenants use of this gateway. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Usage {
    tenants: Option<Arc<Mutex<Tenants>>>,
}

/// A stream that counts while the value lives.
#[derive(Debug)]
pub(crate) struct OpenStream {
    tenants: Arc<Mutex<Tenants>>,
    permit: Option<StreamPermit>,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            self.tenants.lock().unwrap_or_else(PoisonError::into_inner).release(permit);
        }
    }
}

impl Usage {
    pub(crate) fn new(limits: auth::Limits, is_counted: bool) -> Self {
        Self { tenants: is_counted.then(|| Arc::new(Mutex::new(Tenants::new(limits)))) }
    }

    fn admit(&self, tenant: &TenantName, class: Class, now: Timestamp) -> Result<(), Problem> {
        let Some(tenants) = &self.tenants else { return Ok(()) };
        let mut tenants = tenants.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(tenants.admit(tenant, class, now)?)
    }

    pub(crate) fn open_stream(
        &self,
        principal: &Principal,
        now: Timestamp,
    ) -> Result<Option<OpenStream>, Problem> {
        let Some(tenants) = &self.tenants else { return Ok(None) };
        let permit =
            tenants.lock().unwrap_or_else(PoisonError::into_inner).open_stream(principal.tenant(), now)?;
        Ok(Some(OpenStream { tenants: Arc::clone(tenants), permit: Some(permit) }))
    }
}

impl From<OverLimit> for Problem {
    fn from(over: OverLimit) -> Self {
        let detail = format!("the tenant uses as many {} here as it may", over.what.name());
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", detail).retry_after(over.retry_after_s)
    }
}

/// Pages of other origins: answers preflights, and says on every answer who may read it.
pub(crate) async fn cross_origin(
    State(rules): State<Arc<CorsRules>>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    let origin = origin(headers);
    let asked = said(headers, header::ACCESS_CONTROL_REQUEST_METHOD);
    let asked = asked.filter(|_| request.method() == Method::OPTIONS);
    if let (Some(origin), Some(method)) = (&origin, asked) {
        let wanted = said(headers, header::ACCESS_CONTROL_REQUEST_HEADERS);
        let (method, wanted) = (method.as_str(), wanted.as_deref());
        return match rules.preflight(origin, method, wanted) {
            Some(headers) => with(StatusCode::NO_CONTENT.into_response(), headers),
            None => {
                let detail = "pages of this origin may not do this";
                Problem::new(StatusCode::FORBIDDEN, "origin_not_allowed", detail).into_response()
            }
        };
    }
    readable(next.run(request).await, &rules, origin.as_deref())
}

/// The page that asks.
pub(crate) fn origin(headers: &HeaderMap) -> Option<String> {
    said(headers, header::ORIGIN)
}

/// Says who may read an answer.
pub(crate) fn readable(response: Response, rules: &CorsRules, origin: Option<&str>) -> Response {
    with(response, rules.actual(origin))
}

fn said(headers: &HeaderMap, name: HeaderName) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

fn with(mut response: Response, headers: Vec<auth::HeaderPair>) -> Response {
    for (name, value) in headers {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().append(HeaderName::from_static(name), value);
        }
    }
    response
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

    #[test]
    fn a_stream_counts_while_it_lives() {
        let limits = auth::Limits { streams: Some(1), ..auth::Limits::default() };
        let (usage, now) = (Usage::new(limits, true), Timestamp(0));
        let first = usage.open_stream(&Principal::local(), now).unwrap();
        let refused = usage.open_stream(&Principal::local(), now).unwrap_err();
        assert!(format!("{refused:?}").contains("rate_limited"));
        drop(first);
        assert!(usage.open_stream(&Principal::local(), now).unwrap().is_some());
    }
}
