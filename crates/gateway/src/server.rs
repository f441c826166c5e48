//! The accept loop: a bounded number of connections, bounded waits for heads and for stalled writes.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use runtime::spawn_named;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::Service;

use crate::guarded::Guarded;
use crate::metrics;
use crate::routes::Connection;

const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
const WRITE_PATIENCE: Duration = Duration::from_secs(30);
/// After the drain notice connections have this long to take it.
const DRAIN_DEADLINE: Duration = Duration::from_secs(10);
/// Buffers between us and the client hide how far it lags behind: they are kept small.
const SEND_BUFFER: u32 = 256 * 1024;
const HTTP_BUFFER: usize = 64 * 1024;
const BACKLOG: u32 = 1_024;

/// Listens on `addr`.
pub(crate) fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    // Accepted sockets inherit it.
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

/// Serves until `drain`, then waits for the connections, up to a deadline.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    connections: usize,
    drain: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(connections));
    let (tracker, abort) = (TaskTracker::new(), CancellationToken::new());
    loop {
        // Taken before a connection is: beyond the bound, clients wait in the backlog instead of in our memory.
        let place = tokio::select! {
            place = Arc::clone(&places).acquire_owned() => place,
            () = drain.cancelled() => break,
        };
        let Ok(place) = place else { break };
        let stream = tokio::select! {
            accepted = listener.accept() => accepted,
            () = drain.cancelled() => break,
        };
        match stream {
            Ok((stream, _)) => {
                let served = connection(stream, router.clone(), place, drain.clone(), abort.clone());
                spawn_named("http connection", tracker.track_future(served));
            }
            Err(error) => {
                // Usually out of file descriptors: those that end give theirs back.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(listener);
    tracker.close();
    if tokio::time::timeout(DRAIN_DEADLINE, tracker.wait()).await.is_err() {
        tracing::warn!(connections = tracker.len(), "connections did not end in time and are dropped");
        abort.cancel();
        tracker.wait().await;
    }
}

async fn connection(
    stream: TcpStream,
    router: Router,
    _place: OwnedSemaphorePermit,
    drain: CancellationToken,
    abort: CancellationToken,
) {
    metrics::connections(1.0);
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY was refused");
    }
    let cut = abort.child_token();
    let own = Connection(cut.clone());
    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(own.clone());
        router.clone().call(request)
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HTTP_BUFFER)
        .serve_connection(TokioIo::new(Guarded::new(stream, WRITE_PATIENCE)), service);
    let mut served = std::pin::pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = cut.cancelled() => Ok(()),
        () = drain.cancelled() => {
            served.as_mut().graceful_shutdown();
            tokio::select! {
                ended = served.as_mut() => ended,
                () = cut.cancelled() => Ok(()),
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
    metrics::connections(-1.0);
}
