//! Settings of a gateway.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use embeddings::Embeddings;
use model::PriceTable;
use store::{StoreConfig, TenantScope};

use crate::auth::authenticator::Authenticator;
use crate::auth::config::{AccessConfig, TokenError};
use crate::http::limits::HttpLimits;
use crate::http::trusted_proxies::TrustedProxies;

/// Settings of a gateway.
#[derive(Debug, Clone)]
pub struct GatewayConfig {
    /// Who may use it.
    pub access: AccessConfig,
    /// Where HTTP is served; port 0 takes any.
    pub addr: SocketAddr,
    /// The variable that says where, for people.
    pub addr_variable: &'static str,
    /// Bounds.
    pub limits: GatewayLimits,
    /// Whose `X-Forwarded-For` says from where a request comes.
    pub trusted_proxies: TrustedProxies,
    /// What tokens of models cost.
    pub prices: Option<Arc<PriceTable>>,
    /// Makes vectors of what memory is asked about; `None`: memory is searched by words alone.
    pub embeddings: Option<Embeddings>,
    /// Where reads go that may be some moments old.
    pub replica: Option<ReplicaConfig>,
}

/// A standby for reads.
#[derive(Debug, Clone)]
pub struct ReplicaConfig {
    /// Its database.
    pub store: StoreConfig,
    /// A standby that is further behind is not used.
    pub max_lag: Duration,
}

impl ReplicaConfig {
    /// Its sessions see nothing unless a request says for whom it reads; without credentials, all.
    #[must_use]
    pub fn seen_by(mut self, access: &AccessConfig) -> Self {
        self.store.tenant_scope = if access.insecure { TenantScope::All } else { TenantScope::Nothing };
        self
    }
}

impl GatewayConfig {
    /// A gateway at `addr` with the default bounds.
    pub fn new(addr: SocketAddr, access: AccessConfig) -> Self {
        Self {
            access,
            addr,
            addr_variable: "ANTIPHON_HTTP_ADDR",
            limits: GatewayLimits::default(),
            trusted_proxies: TrustedProxies::default(),
            prices: None,
            embeddings: None,
            replica: None,
        }
    }

    /// Says what no waiting can cure, before anything is waited for.
    ///
    /// # Errors
    /// Any client that reaches the address could do everything, or the settings of tokens are invalid.
    pub fn check(&self) -> Result<(), GatewayError> {
        if self.access.insecure && !self.addr.ip().is_loopback() {
            return Err(GatewayError::Insecure { addr: self.addr, variable: self.addr_variable });
        }
        Ok(Authenticator::new(&self.access).map(drop)?)
    }
}

/// Why a gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The address cannot be listened on.
    #[error("cannot listen on {addr} ({variable}): {source}")]
    Bind {
        /// The address.
        addr: SocketAddr,
        /// The variable that says it.
        variable: &'static str,
        /// Why.
        source: io::Error,
    },
    /// Anybody who reaches the address could do anything.
    #[error(
        "--insecure (ANTIPHON_INSECURE) is for loopback only, and {addr} ({variable}) is not: make keys with `antiphon keys create-first`"
    )]
    Insecure {
        /// The address.
        addr: SocketAddr,
        /// The variable that says it.
        variable: &'static str,
    },
    /// Tokens could not be checked.
    #[error(transparent)]
    Tokens(#[from] TokenError),
}

/// Bounds of a gateway.
#[derive(Debug, Clone, Copy)]
pub struct GatewayLimits {
    /// Open HTTP connections.
    pub connections: usize,
    /// Event streams of one thread.
    pub subscribers_per_thread: usize,
    /// Threads with viewers.
    pub feeds: usize,
    /// Bytes of open text kept per thread for viewers who join late.
    pub feed_bytes: usize,
    /// Bytes that a viewer may lag behind.
    pub lag_bytes: usize,
    /// How long a thread is followed after its last viewer left, ms; one of which nothing came meanwhile for a moment only.
    pub linger_ms: i64,
    /// How long a stop waits for the owner of its turn, ms.
    pub owner_timeout_ms: u64,
    /// Of connections.
    pub http: HttpLimits,
}

impl Default for GatewayLimits {
    fn default() -> Self {
        Self {
            connections: 20_000,
            subscribers_per_thread: 10_000,
            feeds: 10_000,
            feed_bytes: 16 << 20,
            lag_bytes: 1 << 20,
            linger_ms: 5_000,
            // Longer than a lease: one that is not renewed runs out, and the next owner reads what there is.
            owner_timeout_ms: 15_000,
            http: HttpLimits::default(),
        }
    }
}
