//! Subscribers of event streams: plain sockets whose bytes are searched only for stamps.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};

use super::{publisher, recorder::Board};

const BUFFER_BYTES: usize = 32 << 10;

pub(super) async fn receive(
    addr: SocketAddr,
    streams: usize,
    board: &Arc<Board>,
    stop: &AtomicBool,
) -> Result<()> {
    one_each(streams, stop, |stream| view(addr, stream, Arc::clone(board))).await
}

/// Runs a client for each thread, until all are stopped.
pub(super) async fn one_each<F>(streams: usize, stop: &AtomicBool, client: impl Fn(usize) -> F) -> Result<()>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let mut clients = JoinSet::new();
    for stream in 0..streams {
        clients.spawn(client(stream));
    }
    while !stop.load(Ordering::Relaxed) {
        let ended = tokio::time::timeout(Duration::from_millis(50), clients.join_next()).await;
        if let Ok(Some(ended)) = ended
            && !stop.load(Ordering::Relaxed)
        {
            ended??;
            anyhow::bail!("a stream has ended");
        }
    }
    Ok(())
}

async fn view(addr: SocketAddr, stream: usize, board: Arc<Board>) -> Result<()> {
    let mut socket = TcpStream::connect(addr).await?;
    let thread = publisher::thread(stream);
    let request = format!("GET /v1/threads/{thread}/events HTTP/1.1\r\nhost: {addr}\r\n\r\n");
    socket.write_all(request.as_bytes()).await?;
    let mut buffer = Vec::with_capacity(BUFFER_BYTES);
    while !buffer.windows(6).any(|window| window == b": open") {
        ensure!(socket.read_buf(&mut buffer).await? > 0, "the gateway closed the connection");
    }
    ensure!(buffer.starts_with(b"HTTP/1.1 200"), "the gateway answered {}", String::from_utf8_lossy(&buffer));
    board.attach();
    loop {
        let done = board.take(stream, &buffer);
        buffer.drain(..done);
        if socket.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
    }
}
