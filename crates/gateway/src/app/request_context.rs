//! The context of a handler: the caller, and the part of the fleet that the caller may use.

use std::sync::Arc;

use auth::ticket::Ticket;
use auth::{CredentialSource, Principal, StoredKey};
use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::request::Parts;
use bytes::Bytes;
use feed::StreamPart;
use http_server::auth::authenticator;
use http_server::auth::quota::TenantStreamPermit;
use http_server::error::{ErrorCode, Problem};
use http_server::extract::headers;
use http_server::extract::path;
use http_server::transport::extensions::ConnectionHandle;
use model::{AgentId, ReasoningSessionId, Tenant, ThreadId};
use protocols::native;
use store::{Store, StoreError};

use crate::app::state::AppState;
use crate::app::state::Authenticated;
use crate::backend::Backend;
use crate::config::GatewayLimits;
use crate::streaming::registry::FeedRegistry;
use crate::streaming::send_queue::{SendQueue, SendQueueBody};

/// The beginning of every stream. The reconnect delay is long enough for a load balancer to notice
/// a gateway that is gone, and short enough for a reader to wait. The delay is a line of the first
/// event, because some clients would treat a block without data as an event.
const FIRST: [&[u8]; 2] = [native::OPEN, b"retry: 1000\n"];

/// The context of a request; every id resolves within the tenant of the caller.
pub(crate) struct RequestContext {
    state: AppState,
    feeds: Option<FeedRegistry>,
    pub(crate) limits: GatewayLimits,
    principal: Arc<Principal>,
}

impl FromRequestParts<AppState> for RequestContext {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Problem> {
        // A route without the authorization layer refuses every request.
        let Some(Authenticated(principal)) = parts.extensions.get::<Authenticated>().cloned() else {
            let detail = "this route has no authorization layer, so it is closed";
            return Err(Problem::new(ErrorCode::InternalError, detail));
        };
        let feeds = state.feeds.get().map(|feeds| match principal.source() {
            // Row-level security is not used here, because it costs each statement two round trips.
            // The ids alone restrict access to the default tenant.
            CredentialSource::Insecure => feeds.clone(),
            CredentialSource::Key { .. } | CredentialSource::Jwt | CredentialSource::Ticket { .. } => {
                feeds.of_tenant(principal.tenant().tenant().cloned())
            }
        });
        Ok(Self { state: state.clone(), feeds, limits: state.limits, principal })
    }
}

impl RequestContext {
    /// The feeds that streams subscribe to.
    pub(crate) fn feeds(&self) -> Result<&FeedRegistry, Problem> {
        self.feeds.as_ref().ok_or_else(|| Problem::from(ErrorCode::NotReady))
    }

    pub(crate) fn backend(&self) -> Result<&Backend, Problem> {
        self.feeds().map(FeedRegistry::backend)
    }

    pub(crate) fn store(&self) -> Result<&Store, Problem> {
        self.backend().map(Backend::store)
    }

    /// Reads data that may be slightly stale, from the standby if it is close enough.
    pub(crate) async fn read<T, F>(&self, read: impl Fn(Store) -> F) -> Result<T, Problem>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        Ok(self.backend()?.read(read).await?)
    }

    /// Reads data that may not exist: if the standby lacks it, the primary decides.
    pub(crate) async fn read_known<T, F>(&self, read: impl Fn(Store) -> F) -> Result<Option<T>, Problem>
    where
        F: Future<Output = Result<Option<T>, StoreError>>,
    {
        match self.read(&read).await? {
            Some(found) => Ok(Some(found)),
            None => Ok(read(self.store()?.clone()).await?),
        }
    }

    /// Like [`RequestContext::read_known`]. `from_primary`: for data that must be as new as what
    /// the owner of a partition has reported.
    pub(crate) async fn read_known_from<T, F>(
        &self,
        from_primary: bool,
        read: impl Fn(Store) -> F,
    ) -> Result<Option<T>, Problem>
    where
        F: Future<Output = Result<Option<T>, StoreError>>,
    {
        match from_primary {
            true => Ok(read(self.store()?.clone()).await?),
            false => self.read_known(read).await,
        }
    }

    pub(crate) fn tenant(&self) -> Option<&Tenant> {
        self.principal.tenant().tenant()
    }

    /// The thread with this name in the caller's tenant.
    pub(crate) fn thread(&self, name: &str) -> Result<ThreadId, Problem> {
        self.thread_in("thread", name)
    }

    /// The thread with the name that the request's `field` contains.
    pub(crate) fn thread_in(&self, field: &str, name: &str) -> Result<ThreadId, Problem> {
        path::id(field, name, |name| ThreadId::of_tenant(self.tenant(), name))
    }

    /// The agent with this name in the caller's tenant.
    pub(crate) fn agent(&self, name: &str) -> Result<AgentId, Problem> {
        self.agent_in("agent", name)
    }

    /// An agent, or one of its queues of background tasks, for operations on queues.
    pub(crate) fn queue(&self, name: &str) -> Result<AgentId, Problem> {
        path::id("agent", name, |name| AgentId::queue_of_tenant(self.tenant(), name))
    }

    /// The agent with the name that the request's `field` contains.
    pub(crate) fn agent_in(&self, field: &str, name: &str) -> Result<AgentId, Problem> {
        path::id(field, name, |name| AgentId::of_tenant(self.tenant(), name))
    }

    /// The reasoning session with this name in the caller's tenant.
    pub(crate) fn reasoning_session(&self, name: &str) -> Result<ReasoningSessionId, Problem> {
        path::id("session", name, |name| ReasoningSessionId::of_tenant(self.tenant(), name))
    }

    /// Whether data of this tenant belongs to the caller; `None`: the default tenant.
    pub(crate) fn owns(&self, tenant: Option<&str>) -> bool {
        tenant == self.tenant().map(Tenant::as_str)
    }

    /// The thread, if it belongs to the caller's tenant: a lookup by turn id may find another
    /// tenant's.
    pub(crate) fn in_own_tenant(&self, thread: ThreadId) -> Option<ThreadId> {
        self.owns(thread.tenant().as_ref().map(Tenant::as_str)).then_some(thread)
    }

    /// The actor for the audit log: the name of the credential, followed by `/` and the actor named
    /// in the request, if any.
    pub(crate) fn actor(&self, headers: &HeaderMap) -> Result<String, Problem> {
        let said = headers::actor(headers)?;
        if self.principal.source() == CredentialSource::Insecure {
            return Ok(said.unwrap_or_else(|| headers::DEFAULT_ACTOR.to_owned()));
        }
        let mut actor = self.principal.name().to_owned();
        if let Some(said) = said {
            actor.push('/');
            actor.push_str(&said);
            actor.truncate(headers::MAX_ACTOR_LEN);
        }
        Ok(actor)
    }

    pub(crate) fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Checks that the caller may follow the thread: a ticket is for one thread only.
    pub(crate) fn check_follows(&self, thread: &ThreadId) -> Result<(), Problem> {
        match self.principal.can_stream(thread) {
            true => Ok(()),
            false => {
                let detail = "the ticket is for another thread";
                Err(Problem::new(ErrorCode::InsufficientScope, detail))
            }
        }
    }

    /// Checks that the caller belongs to the default tenant, which operates the installation.
    pub(crate) fn check_operates_installation(&self, what: &str) -> Result<(), Problem> {
        match self.tenant() {
            None => Ok(()),
            Some(_) => {
                let detail = format!(
                    "{what} concern the installation: this requires a credential of the default tenant"
                );
                Err(Problem::new(ErrorCode::DefaultTenantOnly, detail))
            }
        }
    }

    /// Whether the caller's credential or tenant has ended since the request began.
    pub(crate) async fn has_ended(&self) -> bool {
        let Ok(store) = self.store() else { return true };
        let has_ended = self.state.authenticator.has_ended(store, &self.principal, self.state.now()).await;
        has_ended || self.state.erased_tenants.has(&self.principal)
    }

    /// Makes a newly stored key known to the authenticator.
    pub(crate) fn add_key(&self, key: StoredKey) {
        self.state.authenticator.add_key(key);
    }

    /// Makes a ticket for the events of a thread.
    pub(crate) fn ticket(&self, thread: &ThreadId, lifetime_s: u32) -> Result<Ticket, Problem> {
        let now = self.state.now();
        self.state.authenticator.ticket(&self.principal, thread, lifetime_s, now)
    }

    /// Counts a stream that is opened without counting as a request.
    pub(crate) fn count_opening(&self) -> Result<(), Problem> {
        self.state.limiter.count_opening(&self.principal, self.state.now())
    }

    /// The queue of a new stream; the stream's resources are freed when the last part is dropped.
    pub(crate) fn send_queue(
        &self,
        connection: ConnectionHandle,
    ) -> Result<(SendQueue, SendQueueBody, Option<TenantStreamPermit>), Problem> {
        let place = self.state.limiter.open_stream(&self.principal, self.state.now())?;
        let (send_queue, body) = SendQueue::new(connection.0, self.limits.lag_bytes);
        send_queue.push_first(FIRST.map(|line| StreamPart::Encoded(Bytes::from_static(line))));
        if authenticator::is_revocable(&self.principal) {
            self.state.open_streams.register(&self.principal, &send_queue);
        }
        Ok((send_queue, body, place))
    }
}
