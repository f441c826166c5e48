//! The accept loop: bounds connections, in total and per peer, and ends all of them in a drain.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use runtime::spawn_named;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::metrics;
use crate::transport::connection::{self, ConnectionContext, Refuse};
use crate::transport::ip_limit::{IpLimiter, IpPermit};
use crate::transport::limits::HttpLimits;
use crate::transport::trusted_proxies::TrustedProxies;

/// Small, because buffers between the gateway and the client hide how far it lags.
const SEND_BUFFER: u32 = 256 * 1024;
/// Bytes that the kernel accepts beyond those in flight. The rest waits in the send queue, where it
/// counts as lag.
#[cfg(target_os = "linux")]
const NOT_SENT: u32 = 16 * 1024;
const BACKLOG: u32 = 1_024;
/// When a drain begins, time to accept the connections in the backlog.
const LAST_ACCEPT: Duration = Duration::from_millis(50);

/// Limits of connections, and the proxies that are trusted to name their clients.
pub(crate) struct ConnectionBounds {
    pub(crate) limits: HttpLimits,
    pub(crate) trusted_proxies: TrustedProxies,
}

/// Listens on `addr`.
pub(crate) fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    // Accepted sockets inherit the size of the buffer.
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

/// Serves until `drain`, then waits for the connections, up to a deadline.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    refuse: Refuse,
    bounds: ConnectionBounds,
    drain: CancellationToken,
) {
    let ConnectionBounds { limits, trusted_proxies } = bounds;
    let tracker = TaskTracker::new();
    let shared = Arc::new(ConnectionContext {
        router,
        refuse,
        limits,
        ip_limiter: IpLimiter::new(limits.connections_per_peer),
        trusted_proxies,
        streams: Arc::new(Semaphore::new(limits.connections)),
        drain: drain.clone(),
        abort: CancellationToken::new(),
    });
    let places = Arc::new(Semaphore::new(limits.connections));
    let begin = |stream: TcpStream, addr: SocketAddr, place: OwnedSemaphorePermit| {
        // A trusted proxy's connections carry all its clients: their requests are counted instead.
        let of_peer = match shared.trusted_proxies.trusts(addr.ip()) {
            true => None,
            false => match shared.ip_limiter.admit(addr.ip()) {
                Some(permit) => Some(permit),
                None => return reset(&stream, addr),
            },
        };
        prepare(&stream, shared.limits.write_timeout);
        let served = serve_one(Arc::clone(&shared), stream, addr.ip(), (place, of_peer));
        spawn_named("http connection", tracker.track_future(served));
    };
    loop {
        // The place is taken before a connection is accepted: beyond the limit, clients wait in the
        // backlog and use no memory here.
        let place = tokio::select! {
            place = Arc::clone(&places).acquire_owned() => place,
            () = drain.cancelled() => break,
        };
        let Ok(place) = place else { break };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = drain.cancelled() => break,
        };
        match accepted {
            Ok((stream, addr)) => begin(stream, addr, place),
            Err(error) => {
                // Usually out of file descriptors: connections that end free theirs.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    // A client in the backlog may have sent a head already: closing the listener would reset the
    // connection.
    let rest = async {
        while let Ok(place) = Arc::clone(&places).try_acquire_owned()
            && let Ok((stream, addr)) = listener.accept().await
        {
            begin(stream, addr, place);
        }
    };
    let _ = tokio::time::timeout(LAST_ACCEPT, rest).await;
    drop(listener);
    tracker.close();
    if tokio::time::timeout(shared.limits.drain, tracker.wait()).await.is_err() {
        tracing::warn!(connections = tracker.len(), "connections did not end in time and are dropped");
        shared.abort.cancel();
        tracker.wait().await;
    }
}

async fn serve_one(
    shared: Arc<ConnectionContext>,
    stream: TcpStream,
    peer: IpAddr,
    _places: (OwnedSemaphorePermit, Option<IpPermit>),
) {
    connection::serve(shared, stream, peer).await;
}

/// Resets the connection, so that the kernel keeps no state of it.
fn reset(stream: &TcpStream, addr: SocketAddr) {
    metrics::connection_rejected();
    tracing::debug!(%addr, "the peer has as many connections as it may have");
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

fn prepare(stream: &TcpStream, timeout: Duration) {
    let socket = SockRef::from(stream);
    let set = || {
        socket.set_tcp_nodelay(true)?;
        #[cfg(target_os = "linux")]
        {
            socket.set_tcp_notsent_lowat(NOT_SENT)?;
            // Unacknowledged data ends the connection after this time: the client is gone.
            socket.set_tcp_user_timeout(Some(timeout))?;
        }
        Ok::<_, io::Error>(())
    };
    if let Err(error) = set() {
        tracing::debug!(%error, "an option of a socket was refused");
    }
}
