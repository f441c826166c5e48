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
mod backend;
mod background;
mod book;
mod commands;
mod config;
mod document;
mod metrics;
mod openapi;
mod router;
mod stale_cache;
mod streaming;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bus::Bus;
use embeddings::Embeddings;
use http_server::auth::erased_tenants::ErasedTenants;
use http_server::{HttpServer, HttpServerError};
use model::{GatewayId, PriceTable};
use runtime::{Clock, Health, spawn_named};
use store::Store;
use tokio_util::sync::CancellationToken;

use crate::app::state::AppState;
use crate::backend::{Backend, BackendParts};
use crate::streaming::registry::FeedRegistry;
use crate::streaming::revocation::OpenStreams;

pub use crate::api::views::KeyView;
pub use crate::config::{GatewayConfig, GatewayLimits, ReplicaConfig, RequestDefaults};
pub use crate::document::described as openapi_document;
pub use crate::metrics::METRICS;

/// The readiness condition of a gateway.
pub const READINESS: &str = "gateway";

/// A gateway that listens and does not serve yet.
#[derive(Debug)]
pub struct Gateway {
    server: HttpServer,
    /// Time that connections have to end in a drain.
    drain_time: Duration,
    limits: GatewayLimits,
    prices: Option<Arc<PriceTable>>,
    requests: RequestDefaults,
    embeddings: Option<Embeddings>,
    replica: Option<ReplicaConfig>,
    id: GatewayId,
}

impl Gateway {
    /// Binds the address, so that a port in use stops the start at once. Must be called within the
    /// runtime.
    ///
    /// # Errors
    /// The address cannot be listened on, or any client that reaches it would have all permissions,
    /// or the settings of tokens are invalid.
    pub fn bind(config: &GatewayConfig) -> Result<Self, HttpServerError> {
        Ok(Self {
            server: HttpServer::bind(&config.http)?,
            drain_time: config.http.limits.drain,
            limits: config.limits,
            requests: config.requests.clone(),
            prices: config.prices.clone(),
            embeddings: config.embeddings.clone(),
            replica: config.replica.clone(),
            id: GatewayId::of_number(rand::random()),
        })
    }

    /// The bound address.
    pub fn addr(&self) -> SocketAddr {
        self.server.addr()
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
        let server = self.server;
        server.begin(READINESS, &health);
        let state = AppState {
            feeds: Arc::new(OnceLock::new()),
            limits: self.limits,
            authenticator: server.authenticator(),
            limiter: server.tenant_limiter(),
            open_streams: OpenStreams::default(),
            erased_tenants: ErasedTenants::default(),
        };
        let router = router::router(state.clone(), server.host_policy(), health.clone());
        let (limits, drain_time, is_insecure) = (self.limits, self.drain_time, server.access().insecure);
        let closing = CancellationToken::new();
        let (stop, ready) = (closing.clone(), health.clone());
        let store = store.with_prices(self.prices);
        let prepare = async move {
            let installation = store.of_installation();
            let count = background::partition_count(&installation).await;
            background::secure(&installation, &state, !is_insecure).await;
            let backend = Backend::new(BackendParts {
                id: self.id,
                bus,
                store,
                clock,
                count,
                limits,
                requests: Arc::new(self.requests),
                drain: stop,
                drain_time,
                embeddings: self.embeddings,
            });
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
            // These tasks run until the last connection has ended, because its frames arrive here.
            tokio::join!(
                feeds.watch(heartbeat),
                background::revalidate_loop(&state, &installation),
                background::refresh(&state, &installation),
                background::watch_erased_tenants(&state, &installation),
                background::watch_nats(&backend.bus, &nats_health),
                backend.follow_replica(replica)
            );
        });
        tracing::info!(addr = %server.addr(), "serving HTTP");
        server.serve(router, READINESS, health, drain, closing).await;
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
) -> Result<(), HttpServerError> {
    let gateway = Gateway::bind(&config)?;
    gateway.serve(bus, store, health, clock, drain).await;
    Ok(())
}
