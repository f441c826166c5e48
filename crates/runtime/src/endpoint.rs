//! The HTTP endpoint for probes and metrics.

use std::future::Future;
use std::io;
use std::net::SocketAddr;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::health::{Health, ProbeAnswer};
use crate::metrics::Recorder;

/// Listening on an address failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {addr}: {source}")]
pub struct BindError {
    pub addr: SocketAddr,
    pub source: io::Error,
}

/// `/livez`, `/readyz` and `/startupz`: 200 or 503, with the faults as text.
pub fn probes_router(health: Health) -> Router {
    let (live, ready, started) = (health.clone(), health.clone(), health);
    Router::new()
        .route("/livez", get(move || probe(live.livez())))
        .route("/readyz", get(move || probe(ready.readyz())))
        .route("/startupz", get(move || probe(started.startupz())))
}

/// The probes and `/metrics`, as served on the metrics address.
pub fn metrics_router(recorder: Recorder, health: Health) -> Router {
    let scrape = move || {
        let text = recorder.render();
        async move { ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text) }
    };
    probes_router(health).route("/metrics", get(scrape))
}

/// Binds `addr` before the process starts, so that a port in use fails the start and not the first
/// scrape.
///
/// # Errors
/// The address cannot be bound.
pub async fn bind(addr: SocketAddr) -> Result<TcpListener, BindError> {
    TcpListener::bind(addr).await.map_err(|source| BindError { addr, source })
}

/// Serves `router` until `token` is cancelled and the requests in flight have been answered.
///
/// # Errors
/// The listener failed for good.
pub async fn serve(listener: TcpListener, router: Router, token: CancellationToken) -> io::Result<()> {
    axum::serve(listener, router).with_graceful_shutdown(token.cancelled_owned()).await
}

fn probe(answer: ProbeAnswer) -> impl Future<Output = Response> {
    let status = if answer.ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    std::future::ready((status, answer.body).into_response())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;
    use crate::spawn_named;

    async fn get(addr: SocketAddr, path: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect(addr).await?;
        stream
            .write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes())
            .await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    }

    #[tokio::test]
    async fn probes_answer_until_the_token_is_tripped() -> Result<(), Box<dyn std::error::Error>> {
        let (health, token) = (Health::default(), CancellationToken::new());
        let listener = bind("127.0.0.1:0".parse()?).await?;
        let addr = listener.local_addr()?;
        assert!(bind(addr).await.is_err(), "the port is taken");
        let server = spawn_named("http", serve(listener, probes_router(health.clone()), token.clone()));
        assert!(get(addr, "/livez").await?.starts_with("HTTP/1.1 200"));
        let text = get(addr, "/readyz").await?;
        assert!(text.starts_with("HTTP/1.1 503") && text.ends_with("starting\n"), "{text}");
        health.set_started();
        assert!(get(addr, "/readyz").await?.starts_with("HTTP/1.1 200"));
        assert!(get(addr, "/startupz").await?.starts_with("HTTP/1.1 200"));
        token.cancel();
        Ok(server.await??)
    }
}
