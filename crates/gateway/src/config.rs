//! Configuration of a gateway.

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

/// Configuration of a gateway.
#[derive(Debug, Clone)]
pub struct GatewayConfig {
    /// Accepted credentials and limits of tenants.
    pub access: AccessConfig,
    /// Listen address; port 0 takes any free port.
    pub addr: SocketAddr,
    /// Name of the variable that sets the address, for error messages.
    pub addr_variable: &'static str,
    /// Limits of connections, streams and feeds.
    pub limits: GatewayLimits,
    /// Proxies whose `X-Forwarded-For` is trusted.
    pub trusted_proxies: TrustedProxies,
    /// Prices of the models' tokens.
    pub prices: Option<Arc<PriceTable>>,
    /// Computes vectors for memory searches; `None`: memory is searched by words alone.
    pub embeddings: Option<Embeddings>,
    /// Standby for reads that may be slightly stale; `None`: all reads go to the primary.
    pub replica: Option<ReplicaConfig>,
}

/// A standby for reads.
#[derive(Debug, Clone)]
pub struct ReplicaConfig {
    /// The standby's database.
    pub store: StoreConfig,
    /// Maximum lag; a standby further behind is not used.
    pub max_lag: Duration,
}

impl ReplicaConfig {
    /// Restricts the standby's sessions: they see nothing until a request sets its tenant. Without
    /// authentication they see everything.
    #[must_use]
    pub fn seen_by(mut self, access: &AccessConfig) -> Self {
        self.store.tenant_scope = if access.insecure { TenantScope::All } else { TenantScope::Nothing };
        self
    }
}

impl GatewayConfig {
    /// A gateway at `addr` with the default limits.
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

    /// Checks for errors that no waiting can cure, before anything is waited for.
    ///
    /// # Errors
    /// Any client that reaches the address could do everything, or the settings of tokens are
    /// invalid.
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
        /// The listen address.
        addr: SocketAddr,
        /// The variable that sets it.
        variable: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// Anybody who reaches the address could do anything.
    #[error(
        "--insecure (ANTIPHON_INSECURE) is for loopback only, and {addr} ({variable}) is not: make keys with `antiphon keys create-first`"
    )]
    Insecure {
        /// The listen address.
        addr: SocketAddr,
        /// The variable that sets it.
        variable: &'static str,
    },
    /// Tokens could not be checked.
    #[error(transparent)]
    Tokens(#[from] TokenError),
}

/// Limits of a gateway.
#[derive(Debug, Clone, Copy)]
pub struct GatewayLimits {
    /// Maximum number of open HTTP connections.
    pub connections: usize,
    /// Maximum number of event streams per thread.
    pub subscribers_per_thread: usize,
    /// Maximum number of threads with subscribers.
    pub feeds: usize,
    /// Maximum bytes of open text kept per thread for subscribers that join late.
    pub feed_bytes: usize,
    /// Maximum bytes that a subscriber may lag behind.
    pub lag_bytes: usize,
    /// Time a thread is followed after its last subscriber left, ms; shorter for a thread that sent
    /// nothing meanwhile.
    pub linger_ms: i64,
    /// Maximum time a stop waits for the owner of its turn, ms.
    pub owner_timeout_ms: u64,
    /// Limits of connections.
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
            // Longer than a lease: if it is not renewed it runs out, and the next owner reads what
            // there is.
            owner_timeout_ms: 15_000,
            http: HttpLimits::default(),
        }
    }
}
