//! Request extensions through which a connection informs its handlers.

use std::net::IpAddr;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// The connection of a request; cancelling it drops the connection at once.
#[derive(Debug, Clone)]
pub struct ConnectionHandle(pub CancellationToken);

/// The origin of a request: the peer, or the client that trusted proxies name.
#[derive(Debug, Clone, Copy)]
pub struct ClientIp(pub IpAddr);

/// Maximum time for a body to arrive.
#[derive(Debug, Clone, Copy)]
pub struct BodyTimeout(pub Duration);
