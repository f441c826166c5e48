//! Bounds of connections.

use std::time::Duration;

/// Bounds of connections.
#[derive(Debug, Clone, Copy)]
pub struct HttpLimits {
    /// Connections, and requests under way on HTTP/2 ones, of one client: an IPv4 address or an IPv6 network of 64 bits.
    /// Behind trusted proxies the requests of each client are counted. 0 is no bound, for behind other proxies all have their address.
    pub connections_per_peer: usize,
    /// How long a head may take once it has begun, and how long a new connection may say nothing.
    pub head_timeout: Duration,
    /// How long a connection may have nothing to do after a request. Proxies keep theirs for a minute, and the proxy must be
    /// the one that closes first: else it would send a request into a connection that has just been closed.
    pub idle_timeout: Duration,
    /// How long a body may take.
    pub body_timeout: Duration,
    /// How long a client may take nothing of what is there for it.
    pub write_timeout: Duration,
    /// How long the gateway still takes connections after it has said that it is not ready, so that load balancers forget it.
    pub close_delay: Duration,
    /// How long connections have to end then.
    pub drain: Duration,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            connections_per_peer: 1_000,
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            close_delay: Duration::ZERO,
            drain: Duration::from_secs(10),
        }
    }
}
