//! What a handler works with: who asks, and what of the fleet is theirs.

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::request::Parts;
use model::{AgentId, Tenant, ThreadId};
use store::Store;

use crate::hub::{Hub, Limits};
use crate::params;
use crate::problem::Problem;

/// What all requests share; the hub is there once the number of partitions is known.
#[derive(Clone)]
pub(crate) struct Counter {
    pub(crate) hub: Arc<OnceLock<Hub>>,
    pub(crate) limits: Limits,
}

/// Who asks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Caller {
    pub(crate) tenant: Option<Tenant>,
}

/// One request's share: everything it names belongs to the tenant of whoever asks.
pub(crate) struct Desk {
    hub: Option<Hub>,
    pub(crate) limits: Limits,
    caller: Caller,
}

impl FromRequestParts<Counter> for Desk {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, counter: &Counter) -> Result<Self, Infallible> {
        let caller = parts.extensions.get::<Caller>().cloned().unwrap_or_default();
        let hub = counter.hub.get().cloned();
        Ok(Self { hub, limits: counter.limits, caller })
    }
}

impl Desk {
    pub(crate) fn hub(&self) -> Result<&Hub, Problem> {
        self.hub
            .as_ref()
            .ok_or_else(|| Problem::unavailable("starting", "the database has not been reached yet"))
    }

    pub(crate) fn store(&self) -> Result<&Store, Problem> {
        self.hub().map(Hub::store)
    }

    pub(crate) fn tenant(&self) -> Option<&Tenant> {
        self.caller.tenant.as_ref()
    }

    /// The thread that the caller calls `name`.
    pub(crate) fn thread(&self, name: &str) -> Result<ThreadId, Problem> {
        self.thread_in("thread", name)
    }

    /// Likewise, in the field `field`.
    pub(crate) fn thread_in(&self, field: &str, name: &str) -> Result<ThreadId, Problem> {
        params::id(field, name, |name| ThreadId::of_tenant(self.tenant(), name))
    }

    /// The agent that the caller calls `name`.
    pub(crate) fn agent(&self, name: &str) -> Result<AgentId, Problem> {
        self.agent_in("agent", name)
    }

    /// Likewise, in the field `field`.
    pub(crate) fn agent_in(&self, field: &str, name: &str) -> Result<AgentId, Problem> {
        params::id(field, name, |name| AgentId::of_tenant(self.tenant(), name))
    }

    /// What was found by the id of a turn may be another tenant's: to this one it is unknown.
    pub(crate) fn own(&self, thread: ThreadId) -> Option<ThreadId> {
        (thread.tenant().as_ref() == self.tenant()).then_some(thread)
    }

    /// Who acts, for the audit.
    pub(crate) fn actor(&self, headers: &HeaderMap) -> Result<String, Problem> {
        params::actor(headers)
    }
}
