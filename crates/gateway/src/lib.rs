//! HTTP: turns, tasks and agents, event streams, history, probes.
//!
//! Entry: [`run`]. A request writes its change into the stream of its partition (`commands`), and
//! the owner executes it. A request for events attaches to the thread's [`feed::Feed`]. One task
//! per thread listens to the thread's owner and sends each event, encoded once, to the send queues
//! of all subscribers (`streaming`).
//!
//! Invariants: a stream ends cleanly only after the end of the one message that it was opened for.
//! Nothing is shown past a gap. Each subscriber gets each chunk once, in order, and one end per
//! message, and can continue at any other gateway with the last event's id.

mod api;
mod app;
mod auth;
mod backend;
mod background;
mod commands;
mod config;
mod error;
mod extract;
mod http;
mod metrics;
mod openapi;
mod protected_resource;
mod role_server;
mod router;
mod settings_cache;
mod streaming;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use bus::Bus;
use embeddings::Embeddings;
use model::{GatewayId, PriceTable};
use runtime::{Clock, Health, spawn_named};
use store::Store;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::app::state::AppState;
use crate::auth::authenticator::Authenticator;
use crate::auth::erased_tenants::ErasedTenants;
use crate::auth::host_check::HostPolicy;
use crate::auth::quota::TenantLimiter;
use crate::backend::Backend;
use crate::http::listener::{self, ConnectionBounds};
use crate::streaming::registry::FeedRegistry;
use crate::streaming::revocation::OpenStreams;

pub use crate::api::views::KeyView;
pub use crate::auth::authenticator::new_key;
pub use crate::auth::config::{AccessConfig, TokenConfig, TokenError, TokenKeys};
pub use crate::config::{GatewayConfig, GatewayError, GatewayLimits, ReplicaConfig};
pub use crate::http::limits::HttpLimits;
pub use crate::http::trusted_proxies::{InvalidNetwork, TrustedProxies};
pub use crate::metrics::METRICS;
pub use crate::openapi::document::described as openapi_document;
pub use crate::protected_resource::ProtectedResource;
pub use crate::role_server::{AuthenticatedCaller, AuthenticationError, CallerAuthenticator, CallerError};

/// The readiness condition of a gateway.
pub const READINESS: &str = "gateway";

/// A gateway that listens and does not serve yet.
#[derive(Debug)]
pub struct Gateway {
    listener: TcpListener,
    addr: SocketAddr,
    limits: GatewayLimits,
    trusted_proxies: TrustedProxies,
    access: AccessConfig,
    authenticator: Arc<Authenticator>,
    prices: Option<Arc<PriceTable>>,
    embeddings: Option<Embeddings>,
    replica: Option<ReplicaConfig>,
    id: GatewayId,
}

impl Gateway {
    /// Binds the address, so that a port in use stops the start at once. Must be called within the
    /// runtime.
    ///
    /// # Errors
    /// The address cannot be listened on, or any client that reaches it could do everything, or the
    /// settings of tokens are invalid.
    pub fn bind(config: &GatewayConfig) -> Result<Self, GatewayError> {
        config.check()?;
        let authenticator = Arc::new(Authenticator::new(&config.access)?);
        let failed =
            |source| GatewayError::Bind { addr: config.addr, variable: config.addr_variable, source };
        let listener = listener::bind(config.addr).map_err(failed)?;
        let addr = listener.local_addr().map_err(failed)?;
        let access = config.access.clone();
        let trusted_proxies = config.trusted_proxies.clone();
        let prices = config.prices.clone();
        let id = GatewayId::of_number(rand::random());
        Ok(Self {
            listener,
            addr,
            limits: config.limits,
            trusted_proxies,
            access,
            authenticator,
            prices,
            embeddings: config.embeddings.clone(),
            replica: config.replica.clone(),
            id,
        })
    }

    /// The bound address.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The gateway's identity towards the owners of partitions; new after each start.
    pub fn id(&self) -> &GatewayId {
        &self.id
    }

    /// Serves until `drain` is cancelled, load balancers have had time to react, and the
    /// subscribers have their notice. Probes are answered from the start, other requests once the
    /// number of partitions has been read.
    pub async fn serve(self, bus: Bus, store: Store, health: Health, clock: Clock, drain: CancellationToken) {
        metrics::describe();
        embeddings::describe_metrics();
        health.set_ready(READINESS, false);
        if self.access.insecure {
            tracing::warn!("--insecure: any client that reaches this address may do everything");
        }
        let state = AppState {
            feeds: Arc::new(OnceLock::new()),
            limits: self.limits,
            authenticator: self.authenticator,
            limiter: TenantLimiter::new(self.access.limits, !self.access.insecure),
            open_streams: OpenStreams::default(),
            erased_tenants: ErasedTenants::default(),
        };
        let cors = Arc::new(self.access.cors);
        let policy = HostPolicy { cors: Arc::clone(&cors), is_insecure: self.access.insecure };
        let router = router::router(state.clone(), policy, health.clone());
        let refuse = router::refusals(cors);
        let limits = self.limits;
        let closing = CancellationToken::new();
        let (stop, ready) = (closing.clone(), health.clone());
        let store = store.with_prices(self.prices);
        let prepare = async move {
            let installation = store.of_installation();
            let count = background::partition_count(&installation).await;
            background::secure(&installation, &state, !self.access.insecure).await;
            let backend = Backend::new(self.id, bus, store, clock, count, limits, stop)
                .with_embeddings(self.embeddings);
            let feeds = FeedRegistry::new(backend.clone());
            if state.feeds.set(feeds.clone()).is_ok() {
                tracing::info!(partitions = count.get(), "the gateway is ready");
                ready.set_ready(READINESS, true);
            }
            (feeds, state, backend, installation, ready.register_loop("gateway watch"))
        };
        let (token, replica, nats_health) = (closing.clone(), self.replica, health.clone());
        let prepared = spawn_named("gateway watch", async move {
            let (feeds, state, backend, installation, heartbeat) = tokio::select! {
                prepared = prepare => prepared,
                () = token.cancelled() => return,
            };
            // Runs until the last connection has ended, because its frames arrive here.
            tokio::join!(
                feeds.watch(heartbeat),
                background::revalidate_loop(&state, &installation),
                background::refresh(&state, &installation),
                background::watch_erased_tenants(&state, &installation),
                background::watch_nats(&backend.bus, &nats_health),
                backend.follow_replica(replica)
            );
        });
        tracing::info!(addr = %self.addr, "serving HTTP");
        let closed = closing.clone();
        let unready = spawn_named("gateway readiness", async move {
            drain.cancelled().await;
            health.set_ready(READINESS, false);
            tokio::time::sleep(limits.http.close_delay).await;
            closed.cancel();
        });
        let trusted_proxies = self.trusted_proxies;
        let bounds =
            ConnectionBounds { limits: limits.http, connections: limits.connections, trusted_proxies };
        listener::serve(self.listener, router, refuse, bounds, closing).await;
        unready.abort();
        prepared.abort();
    }
}

/// Binds and serves. See [`Gateway::bind`] and [`Gateway::serve`].
///
/// # Errors
/// The address cannot be listened on.
pub async fn run(
    config: GatewayConfig,
    bus: Bus,
    store: Store,
    health: Health,
    clock: Clock,
    drain: CancellationToken,
) -> Result<(), GatewayError> {
    let gateway = Gateway::bind(&config)?;
    gateway.serve(bus, store, health, clock, drain).await;
    Ok(())
}
