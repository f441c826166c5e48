//! A role's server, from the bound address to the last connection.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use runtime::{Health, spawn_named};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::auth::authenticator::Authenticator;
use crate::auth::config::AccessConfig;
use crate::auth::host_check::HostPolicy;
use crate::auth::quota::TenantLimiter;
use crate::config::{HttpConfig, HttpServerError};
use crate::transport::limits::HttpLimits;
use crate::transport::listener::{self, ConnectionBounds};
use crate::transport::trusted_proxies::TrustedProxies;
use crate::{metrics, refusals};

/// A server that listens and does not serve yet.
#[derive(Debug)]
pub struct HttpServer {
    listener: TcpListener,
    addr: SocketAddr,
    limits: HttpLimits,
    trusted_proxies: TrustedProxies,
    access: AccessConfig,
    authenticator: Arc<Authenticator>,
}

impl HttpServer {
    /// Binds the address, so that a port in use stops the start at once. Must be called within the
    /// runtime.
    ///
    /// # Errors
    /// The address cannot be listened on, or any client that reaches it would have all permissions,
    /// or the settings of tokens are invalid.
    pub fn bind(config: &HttpConfig) -> Result<Self, HttpServerError> {
        config.check()?;
        let authenticator = Arc::new(Authenticator::new(&config.access)?);
        let failed =
            |source| HttpServerError::Bind { addr: config.addr, variable: config.addr_variable, source };
        let listener = listener::bind(config.addr).map_err(failed)?;
        let addr = listener.local_addr().map_err(failed)?;
        Ok(Self {
            listener,
            addr,
            limits: config.limits,
            trusted_proxies: config.trusted_proxies.clone(),
            access: config.access.clone(),
            authenticator,
        })
    }

    /// The bound address.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Accepted credentials and limits of tenants.
    pub fn access(&self) -> &AccessConfig {
        &self.access
    }

    /// Checks the credentials of this server's requests.
    pub fn authenticator(&self) -> Arc<Authenticator> {
        Arc::clone(&self.authenticator)
    }

    /// Counts what tenants use of this server.
    pub fn tenant_limiter(&self) -> TenantLimiter {
        TenantLimiter::new(self.access.limits, !self.access.insecure)
    }

    /// The rules for the `Host` and `Origin` of requests.
    pub fn host_policy(&self) -> HostPolicy {
        HostPolicy { cors: Arc::new(self.access.cors.clone()), is_insecure: self.access.insecure }
    }

    /// Registers the metrics, and reports the role as not ready.
    pub fn begin(&self, condition: &'static str, health: &Health) {
        metrics::describe();
        health.set_ready(condition, false);
        if self.access.insecure {
            tracing::warn!("--insecure: any client that reaches this address may do everything");
        }
    }

    /// Serves until `drain` is cancelled. Then the role is not ready; after the time that load
    /// balancers have to react, `closing` is cancelled, and connections have their time to end.
    pub async fn serve(
        self,
        router: Router,
        condition: &'static str,
        health: Health,
        drain: CancellationToken,
        closing: CancellationToken,
    ) {
        let limits = self.limits;
        let closed = closing.clone();
        let unready = spawn_named("http readiness", async move {
            drain.cancelled().await;
            health.set_ready(condition, false);
            tokio::time::sleep(limits.close_delay).await;
            closed.cancel();
        });
        let refuse = refusals::refusals(Arc::new(self.access.cors));
        let bounds = ConnectionBounds { limits, trusted_proxies: self.trusted_proxies };
        listener::serve(self.listener, router, refuse, bounds, closing).await;
        unready.abort();
    }
}
