//! HTTP: turns, tasks and agents, event streams, history, probes.
//!
//! Entry: [`run`]. What a request changes it puts into the stream of its partition ([`orders`], [`acts`]); the owner does
//! it. A request for events takes a place in the thread's feed ([`feed`], the pure part); a driver per thread listens to the
//! thread's owner and hands each event, encoded once, to the lanes of all viewers.
//!
//! Invariants: a stream never ends cleanly but after the end of the one message that it was opened for; nothing is shown
//! past a hole; each viewer gets each chunk once, in order, and one end per message, and can continue at any other gateway
//! with the last event's id.

mod acts;
mod adapted;
mod body;
mod desk;
mod driver;
pub mod feed;
mod forms;
mod guarded;
mod hub;
mod input;
mod lane;
mod metrics;
mod orders;
mod owner;
mod params;
mod problem;
mod reads;
mod routes;
mod seated;
mod server;
mod settings;
pub mod shown;
mod standing;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use bus::Bus;
use model::PartitionCount;
use runtime::{Backoff, Clock, Health, spawn_named};
use store::Store;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use hub::Limits;

/// Settings of a gateway.
#[derive(Debug, Clone)]
pub struct GatewayConfig {
    /// Where HTTP is served; port 0 takes any.
    pub addr: SocketAddr,
    /// Bounds.
    pub limits: Limits,
}

impl GatewayConfig {
    /// A gateway at `addr` with the default bounds.
    pub fn new(addr: SocketAddr) -> Self {
        Self { addr, limits: Limits::default() }
    }
}

/// The condition under which a gateway says whether it is ready.
pub const READINESS: &str = "gateway";

/// Why a gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The address cannot be listened on.
    #[error("cannot listen on {addr} (ANTIPHON_HTTP_ADDR): {source}")]
    Bind {
        /// The address.
        addr: SocketAddr,
        /// Why.
        source: io::Error,
    },
}

/// A gateway that listens and does not serve yet.
#[derive(Debug)]
pub struct Gateway {
    listener: TcpListener,
    addr: SocketAddr,
    limits: Limits,
}

impl Gateway {
    /// Takes the address, so that a port in use stops the start at once. Must be called within the runtime.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub fn bind(config: &GatewayConfig) -> Result<Self, GatewayError> {
        let failed = |source| GatewayError::Bind { addr: config.addr, source };
        let listener = server::bind(config.addr).map_err(failed)?;
        let addr = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, addr, limits: config.limits })
    }

    /// The address that was taken.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Serves until `drain` is cancelled and the viewers have their notice. Probes are answered from the beginning,
    /// the rest once the number of partitions has been read.
    pub async fn serve(self, bus: Bus, store: Store, health: Health, clock: Clock, drain: CancellationToken) {
        metrics::describe();
        health.set_ready(READINESS, false);
        let counter = desk::Counter { hub: Arc::new(OnceLock::new()), limits: self.limits };
        let router = routes::router(counter.clone(), health.clone());
        let limits = self.limits;
        let (stop, ready) = (drain.clone(), health.clone());
        let prepare = async move {
            let count = partition_count(&store).await;
            let hub = hub::Hub::new(bus, store, clock, count, limits, stop);
            if counter.hub.set(hub.clone()).is_ok() {
                tracing::info!(partitions = count.get(), "the gateway is ready");
                ready.set_ready(READINESS, true);
            }
            hub.watch(ready.register_loop("gateway watch")).await;
        };
        let token = drain.clone();
        let prepared = spawn_named("gateway watch", async move {
            tokio::select! { () = prepare => {}, () = token.cancelled() => {} }
        });
        tracing::info!(addr = %self.addr, "serving HTTP");
        let closing = health.clone();
        let closed = drain.clone();
        let unready = spawn_named("gateway readiness", async move {
            closed.cancelled().await;
            closing.set_ready(READINESS, false);
        });
        server::serve(self.listener, router, limits.connections, drain).await;
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

async fn partition_count(store: &Store) -> PartitionCount {
    let mut backoff = Backoff::default();
    loop {
        match store.partition_count().await {
            Ok(Some(count)) => return count,
            Ok(None) => tracing::info!("waiting for the database to be migrated"),
            Err(error) => tracing::warn!(%error, "waiting for the database"),
        }
        backoff.wait().await;
    }
}
