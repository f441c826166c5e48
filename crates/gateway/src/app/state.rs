//! State shared by all requests, and the principal of one.

use std::sync::{Arc, OnceLock};

use auth::Principal;
use http_server::auth::authenticator::{self, Authenticator};
use http_server::auth::erased_tenants::ErasedTenants;
use http_server::auth::quota::TenantLimiter;
use model::Timestamp;

use crate::config::GatewayLimits;
use crate::streaming::registry::FeedRegistry;
use crate::streaming::revocation::OpenStreams;

/// State shared by all requests. `feeds` is set once the number of partitions is known.
#[derive(Clone)]
pub(crate) struct AppState {
    pub(crate) feeds: Arc<OnceLock<FeedRegistry>>,
    pub(crate) limits: GatewayLimits,
    pub(crate) authenticator: Arc<Authenticator>,
    pub(crate) limiter: TenantLimiter,
    pub(crate) open_streams: OpenStreams,
    pub(crate) erased_tenants: ErasedTenants,
}

impl AppState {
    /// The time for credentials and limits.
    pub(crate) fn now(&self) -> Timestamp {
        authenticator::now()
    }
}

/// The authenticated principal, put into the request by `authorize`.
#[derive(Debug, Clone)]
pub(crate) struct Authenticated(pub(crate) Arc<Principal>);
