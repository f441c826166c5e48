//! Limits of connections.

use std::time::Duration;

#[derive(Debug, Clone, Copy)]
pub struct HttpLimits {
    /// Maximum number of open HTTP connections.
    pub connections: usize,
    /// Maximum connections, and running requests on HTTP/2 ones, of one client: an IPv4 address or
    /// an IPv6 network of 64 bits. Behind trusted proxies the requests of each client are counted.
    /// 0 means no limit, for use behind other proxies, whose clients all share one address.
    pub connections_per_peer: usize,
    /// Maximum time for a head once it has begun, and for a new connection to send nothing.
    pub head_timeout: Duration,
    /// Maximum time a connection may be idle after a request. Proxies keep theirs for a minute, and
    /// the proxy must close first: otherwise it may send a request on a connection that has just
    /// been closed.
    pub idle_timeout: Duration,
    /// Maximum time for a body to arrive.
    pub body_timeout: Duration,
    /// Maximum time a client may accept no bytes while some are ready for it.
    pub write_timeout: Duration,
    /// Time the gateway still accepts connections after it reports that it is not ready, so that
    /// load balancers drop it.
    pub close_delay: Duration,
    /// Time connections have to end after that.
    pub drain: Duration,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            connections: 20_000,
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
