//! What a connection tells the handlers of its requests, as extensions.

use std::net::IpAddr;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// The connection that a request came on; cancelled, it is dropped at once.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionHandle(pub(crate) CancellationToken);

/// From where a request comes: the peer, or the client that trusted proxies name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientIp(pub(crate) IpAddr);

/// How long a body may take to arrive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyTimeout(pub(crate) Duration);
