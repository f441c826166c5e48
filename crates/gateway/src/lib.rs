//! HTTP: turns, tasks and agents, event streams, history, probes.
//!
//! Entry: [`run`]. What a request changes it puts into the stream of its partition ([`orders`], [`acts`]); the owner does
//! it. A request for events takes a place in the thread's [`feed::Feed`]; a driver per thread listens to the
//! thread's owner and hands each event, encoded once, to the lanes of all viewers.
//!
//! Invariants: a stream never ends cleanly but after the end of the one message that it was opened for; nothing is shown
//! past a hole; each viewer gets each chunk once, in order, and one end per message, and can continue at any other gateway
//! with the last event's id.

mod app;
mod settings_cache;
mod commands;
mod streaming;
mod auth;
mod error;
mod extract;
mod forms;
mod http;
mod metrics;
mod routes;
mod settings;
pub mod shown;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use bus::Bus;
use model::PartitionCount;
use runtime::{Backoff, Clock, Health, spawn_named};
use store::Store;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::auth::authenticator::Credentials;

pub use self::auth::authenticator::new_key;
pub use self::auth::config::{AccessConfig, TokenConfig, TokenError, TokenKeys};
pub use hub::{HttpLimits, Limits};

/// How often it is looked whether credentials still count.
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_secs(4);

/// Settings of a gateway.
#[derive(Debug, Clone)]
pub struct GatewayConfig {
    /// Who may use it.
    pub access: AccessConfig,
    /// Where HTTP is served; port 0 takes any.
    pub addr: SocketAddr,
    /// Bounds.
    pub limits: Limits,
}

impl GatewayConfig {
    /// A gateway at `addr` with the default bounds.
    pub fn new(addr: SocketAddr, access: AccessConfig) -> Self {
        Self { access, addr, limits: Limits::default() }
    }

    /// Says what no waiting can cure, before anything is waited for.
    ///
    /// # Errors
    /// Whoever reaches the address could do anything, or the settings of tokens are no good.
    pub fn check(&self) -> Result<(), GatewayError> {
        if self.access.insecure && !self.addr.ip().is_loopback() {
            return Err(GatewayError::Insecure(self.addr));
        }
        Ok(Credentials::new(&self.access).map(drop)?)
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
    /// Anybody who reaches the address could do anything.
    #[error(
        "--insecure (ANTIPHON_INSECURE) is for loopback only, and {0} (ANTIPHON_HTTP_ADDR) is not: make keys with `antiphon keys create`"
    )]
    Insecure(SocketAddr),
    /// Tokens could not be checked.
    #[error(transparent)]
    Tokens(#[from] TokenError),
}

/// A gateway that listens and does not serve yet.
#[derive(Debug)]
pub struct Gateway {
    listener: TcpListener,
    addr: SocketAddr,
    limits: Limits,
    access: AccessConfig,
    credentials: Arc<Credentials>,
}

impl Gateway {
    /// Takes the address, so that a port in use stops the start at once. Must be called within the runtime.
    ///
    /// # Errors
    /// The address cannot be listened on, or whoever reaches it could do anything, or the settings of tokens are no good.
    pub fn bind(config: &GatewayConfig) -> Result<Self, GatewayError> {
        config.check()?;
        let credentials = Arc::new(Credentials::new(&config.access)?);
        let failed = |source| GatewayError::Bind { addr: config.addr, source };
        let listener = http::listener::bind(config.addr).map_err(failed)?;
        let addr = listener.local_addr().map_err(failed)?;
        let access = config.access.clone();
        Ok(Self { listener, addr, limits: config.limits, access, credentials })
    }

    /// The address that was taken.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Serves until `drain` is cancelled, load balancers have had their time, and the viewers have their notice. Probes are answered from the beginning,
    /// the rest once the number of partitions has been read.
    pub async fn serve(self, bus: Bus, store: Store, health: Health, clock: Clock, drain: CancellationToken) {
        metrics::describe();
        health.set_ready(READINESS, false);
        if self.access.insecure {
            tracing::warn!("--insecure: whoever reaches this address may do everything");
        }
        let counter = desk::Counter {
            hub: Arc::new(OnceLock::new()),
            limits: self.limits,
            credentials: self.credentials,
            usage: guard::Usage::new(self.access.limits, !self.access.insecure),
            vigil: vigil::Vigil::default(),
            clock,
        };
        let cors = Arc::new(self.access.cors);
        let router = routes::router(counter.clone(), Arc::clone(&cors), health.clone());
        let heads = crate::auth::host_check::Heads { cors, is_insecure: self.access.insecure };
        let limits = self.limits;
        let closing = CancellationToken::new();
        let (stop, ready) = (closing.clone(), health.clone());
        let prepare = async move {
            let whole = store.of_all();
            let count = partition_count(&whole).await;
            secure(&whole, &counter, !self.access.insecure).await;
            let hub = hub::Hub::new(bus, store, clock, count, limits, stop);
            if counter.hub.set(hub.clone()).is_ok() {
                tracing::info!(partitions = count.get(), "the gateway is ready");
                ready.set_ready(READINESS, true);
            }
            let fresh = keep_fresh(&counter, &whole);
            tokio::join!(
                hub.watch(ready.register_loop("gateway watch")),
                look_after(&counter, &whole),
                fresh
            );
        };
        let token = closing.clone();
        let prepared = spawn_named("gateway watch", async move {
            tokio::select! { () = prepare => {}, () = token.cancelled() => {} }
        });
        tracing::info!(addr = %self.addr, "serving HTTP");
        let closed = closing.clone();
        let unready = spawn_named("gateway readiness", async move {
            drain.cancelled().await;
            health.set_ready(READINESS, false);
            tokio::time::sleep(limits.http.close_delay).await;
            closed.cancel();
        });
        http::listener::serve(self.listener, router, heads, limits, closing).await;
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

/// Reads what tickets are signed with and which keys there are, and says when the second wall between tenants is wanted and does not stand.
async fn secure(store: &Store, counter: &desk::Counter, wants_wall: bool) {
    let credentials = &counter.credentials;
    let mut backoff = Backoff::default();
    loop {
        match tokio::try_join!(
            store.signing_key(),
            store.passes_walls(),
            credentials.learn_keys(store, counter.now())
        ) {
            Ok((key, passes, ())) => {
                credentials.sign_with(&key);
                if passes && wants_wall {
                    tracing::warn!(
                        "the role of DATABASE_URL passes row-level security: only the gateway separates tenants"
                    );
                }
                return;
            }
            Err(error) => tracing::warn!(%error, "waiting for the database"),
        }
        backoff.wait().await;
    }
}

/// Looks at credentials again while streams are open in their name.
async fn look_after(counter: &desk::Counter, store: &Store) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let now = counter.now();
        // What ends by itself ends, whether or not the store can be asked.
        let keys = counter.vigil.end_expired(now);
        let revoked = counter.credentials.revoked(store, &keys, now).await;
        counter.vigil.end_revoked(&revoked);
    }
}

/// Beside it, for an identity provider may take its time. Neither loop has a heartbeat: they wait for others, and that these hang is no
/// reason to restart the gateway.
async fn keep_fresh(counter: &desk::Counter, store: &Store) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        counter.credentials.keep_fresh(store, counter.now()).await;
    }
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
