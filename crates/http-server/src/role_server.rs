//! A server that checks the credential of every request before its routes see it.
//!
//! Entry: [`HttpServer::serve_role`]. Every request that reaches the routes carries an
//! [`AuthenticatedCaller`], which identifies the caller and checks permissions.
//! [`CallerAuthenticator`] does the same for a role that is not reached over HTTP.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use auth::{Permission, Principal};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use model::Tenant;
use runtime::{Backoff, Health, retry, spawn_named};
use store::Store;
use tokio_util::sync::CancellationToken;

use crate::auth::authenticator::{self, Authenticator};
use crate::auth::quota::{self, TenantLimiter};
use crate::config::{HttpConfig, HttpServerError};
use crate::error::{ErrorCode, Problem};
use crate::layers::with_layers;
use crate::protected_resource::{ProtectedResource, ResourceMetadata};
use crate::server::HttpServer;
use crate::transport::extensions::ClientIp;

/// Interval at which the identity provider's keys are refreshed.
const REFRESH_INTERVAL: Duration = Duration::from_secs(4);

/// Maximum time for a request of a role, body and response included.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The caller of a request whose credential has been checked.
#[derive(Debug, Clone)]
pub struct AuthenticatedCaller {
    principal: Arc<Principal>,
    limiter: TenantLimiter,
}

/// Why an operation is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallerError {
    /// The credential does not have the scope.
    #[error("this needs the scope {0}")]
    InsufficientScope(&'static str),
    /// The tenant has reached its rate limit.
    #[error("the tenant makes as many requests here as it may; try again in {retry_after_s} s")]
    RateLimited {
        /// Seconds after which the same request passes.
        retry_after_s: u32,
    },
}

impl CallerError {
    /// The code with which the HTTP API reports the same refusal.
    pub fn code(&self) -> &'static str {
        match self {
            Self::InsufficientScope(_) => ErrorCode::InsufficientScope.name(),
            Self::RateLimited { .. } => ErrorCode::RateLimited.name(),
        }
    }
}

impl AuthenticatedCaller {
    /// The tenant whose data the caller may use; `None`: the default tenant.
    pub fn tenant(&self) -> Option<Tenant> {
        self.principal.tenant().tenant().cloned()
    }

    /// The caller's name for the audit log.
    pub fn actor(&self) -> &str {
        self.principal.name()
    }

    /// Checks that the credential has the permission.
    ///
    /// # Errors
    /// The credential does not have the scope.
    pub fn require(&self, needs: Permission) -> Result<(), CallerError> {
        match self.principal.has_permission(needs) {
            true => Ok(()),
            false => Err(CallerError::InsufficientScope(needs.scope())),
        }
    }

    /// Checks the permission and the rate limit, and counts the request.
    ///
    /// # Errors
    /// The credential does not have the scope, or the tenant has reached its rate limit.
    pub fn admit(&self, needs: Permission) -> Result<(), CallerError> {
        self.require(needs)?;
        let now = authenticator::now();
        let counted = self.limiter.count(self.principal.tenant(), quota::class(needs), now);
        counted.map_err(|over| CallerError::RateLimited { retry_after_s: over.retry_after_s })
    }
}

/// Why a credential is not accepted.
#[derive(Debug)]
pub struct AuthenticationError(Problem);

impl std::fmt::Display for AuthenticationError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.detail())
    }
}

/// Checks credentials. Cheap to clone.
#[derive(Debug, Clone)]
pub struct CallerAuthenticator {
    authenticator: Arc<Authenticator>,
    store: Store,
    limiter: TenantLimiter,
}

impl CallerAuthenticator {
    /// An authenticator with the settings of a server.
    ///
    /// # Errors
    /// The settings of tokens are invalid.
    pub fn new(config: &HttpConfig, store: Store) -> Result<Self, HttpServerError> {
        let authenticator = Arc::new(Authenticator::new(&config.access)?);
        let limiter = TenantLimiter::new(config.access.limits, !config.access.insecure);
        Ok(Self { authenticator, store: store.of_installation(), limiter })
    }

    /// Checks the credential of a request.
    ///
    /// # Errors
    /// There is none, it is not valid, or it cannot be checked at the moment.
    pub async fn authenticate(
        &self,
        headers: &HeaderMap,
        peer: Option<IpAddr>,
    ) -> Result<AuthenticatedCaller, AuthenticationError> {
        let now = authenticator::now();
        let who = self.authenticator.authenticate(Some(&self.store), headers, None, peer, now).await;
        let principal = who.map_err(|denied| AuthenticationError(denied.into()))?;
        // If the store cannot be read, no tool can read it either.
        if self.store.erased_tenant(principal.tenant().tenant()).await.is_ok_and(|mark| mark.is_some()) {
            return Err(AuthenticationError(Problem::tenant_erased()));
        }
        Ok(AuthenticatedCaller { principal: Arc::new(principal), limiter: self.limiter.clone() })
    }

    /// Reads which keys exist, so that requests with guessed keys do not evict a known one from the
    /// cache.
    async fn load_keys(&self) {
        retry(Backoff::default(), "reading the keys", || async {
            self.authenticator.load_keys(&self.store, authenticator::now()).await
        })
        .await;
    }
}

impl HttpServer {
    /// Serves the routes of a role until `drain` is cancelled, besides the probes and the
    /// metadata of `resource`. `condition` is the role's readiness condition.
    pub async fn serve_role(
        self,
        condition: &'static str,
        resource: ProtectedResource,
        routes: Router,
        store: Store,
        health: Health,
        drain: CancellationToken,
    ) {
        self.begin(condition, &health);
        let callers = CallerAuthenticator {
            authenticator: self.authenticator(),
            store: store.of_installation(),
            limiter: self.tenant_limiter(),
        };
        let metadata = ResourceMetadata::new(resource, self.access());
        let door = (callers.clone(), metadata.clone());
        let routes = Router::new()
            .merge(routes.layer(middleware::from_fn_with_state(door, authenticate)))
            .merge(metadata.map(ResourceMetadata::routes).unwrap_or_default())
            .merge(runtime::endpoint::probes_router(health.clone()))
            .fallback(async || Problem::from(ErrorCode::UnknownAddress));
        let router = with_layers(routes, self.host_policy(), &[]);
        let closing = CancellationToken::new();
        let (stop, ready) = (closing.clone(), health.clone());
        let fresh = spawn_named("role credentials", async move {
            let look = async {
                callers.load_keys().await;
                ready.set_ready(condition, true);
                loop {
                    tokio::time::sleep(REFRESH_INTERVAL).await;
                    callers.authenticator.refresh(&callers.store, authenticator::now()).await;
                }
            };
            tokio::select! { () = look => {}, () = stop.cancelled() => {} }
        });
        tracing::info!(addr = %self.addr(), condition, "serving HTTP");
        self.serve(router, condition, health, drain, closing).await;
        fresh.abort();
    }
}

async fn authenticate(
    State((callers, metadata)): State<(CallerAuthenticator, Option<ResourceMetadata>)>,
    mut request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions().get().map(|ClientIp(addr)| *addr);
    match callers.authenticate(request.headers(), peer).await {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            match tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await {
                Ok(response) => response,
                Err(_) => Problem::from(ErrorCode::RequestTimeout).into_response(),
            }
        }
        Err(AuthenticationError(problem)) => {
            let mut response = problem.into_response();
            if let Some(metadata) = metadata.filter(|_| response.status() == StatusCode::UNAUTHORIZED) {
                metadata.challenge(request.uri(), request.headers(), &mut response);
            }
            response
        }
    }
}
