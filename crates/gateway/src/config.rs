//! Configuration of a gateway.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderName;
use embeddings::Embeddings;
use http_server::{AccessConfig, HttpConfig};
use model::{AgentId, PriceTable};
use store::{StoreConfig, TenantScope};

/// Configuration of a gateway.
#[derive(Debug, Clone)]
pub struct GatewayConfig {
    /// Address, credentials and limits of connections.
    pub http: HttpConfig,
    /// Limits of streams and feeds.
    pub limits: GatewayLimits,
    /// What applies to requests that say nothing else.
    pub requests: RequestDefaults,
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
            http: HttpConfig::new(addr, access),
            limits: GatewayLimits::default(),
            requests: RequestDefaults::default(),
            prices: None,
            embeddings: None,
            replica: None,
        }
    }
}

/// What applies to requests that say nothing else in their bodies.
#[derive(Debug, Clone)]
pub struct RequestDefaults {
    /// The agent that answers in threads whose first message names none. It belongs to each tenant
    /// by this name.
    pub agent: AgentId,
    /// Headers with the id of a chat, which names the thread. The first one that is sent counts.
    pub thread_headers: Vec<HeaderName>,
    /// Headers with the id of a user, which names the user of a new thread. The first one counts.
    pub user_headers: Vec<HeaderName>,
}

impl Default for RequestDefaults {
    fn default() -> Self {
        let headers = |names: [&'static str; 2]| names.map(HeaderName::from_static).into();
        Self {
            agent: AgentId::standard(),
            thread_headers: headers(["x-antiphon-chat", "x-openwebui-chat-id"]),
            user_headers: headers(["x-antiphon-user", "x-openwebui-user-id"]),
        }
    }
}

/// Limits of a gateway.
#[derive(Debug, Clone, Copy)]
pub struct GatewayLimits {
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
}

impl Default for GatewayLimits {
    fn default() -> Self {
        Self {
            subscribers_per_thread: 10_000,
            feeds: 10_000,
            feed_bytes: 16 << 20,
            lag_bytes: 1 << 20,
            linger_ms: 5_000,
            // Longer than a lease: a lease that is not renewed expires within this time, and the
            // next owner reads the stored entries.
            owner_timeout_ms: 15_000,
        }
    }
}
