//! A TCP link between two hosts. It can be slow, be cut, or be silent like a host without power: it
//! neither refuses nor answers anything.
//!
//! It does not interpret the bytes, so it can be in front of NATS, Postgres or a gateway. Each
//! direction has its own queue, so a delay does not reduce the rate.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};

use crate::locked;

/// The most bytes in flight per connection and direction.
const ON_THE_WAY: usize = 16 << 20;

#[derive(Debug)]
struct LinkState {
    upstream: Mutex<SocketAddr>,
    delay_ms: AtomicU64,
    is_silent: AtomicBool,
    connections: AtomicUsize,
    /// Rises when all connections must be cut.
    cuts: watch::Sender<u64>,
}

/// A running link. Dropping it cuts all connections.
#[derive(Debug)]
pub struct Link {
    addr: SocketAddr,
    shared: Arc<LinkState>,
    acceptor: JoinHandle<()>,
}

impl Link {
    /// Listens on a free port in front of `upstream`.
    pub async fn start(upstream: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("binding the link")?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(LinkState {
            upstream: Mutex::new(upstream),
            delay_ms: AtomicU64::new(0),
            is_silent: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            cuts: watch::Sender::new(0),
        });
        let acceptor = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { addr, shared, acceptor })
    }

    /// Listens in front of the server of `url`.
    pub async fn before(url: &str) -> Result<Self> {
        let (host, port) = crate::host_and_port(url)?;
        let mut found = tokio::net::lookup_host((host.as_str(), port)).await?;
        Self::start(found.next().context("a url whose host has no address")?).await
    }

    /// The address on which it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `url` with the link in place of its host and port.
    pub fn url(&self, url: &str) -> Result<String> {
        let (_, port) = crate::host_and_port(url)?;
        let (before, after) = url.split_once(&format!(":{port}")).context("a url without its port")?;
        let host = before.rfind(['@', '/']).context("a url without its host")? + 1;
        Ok(format!("{}{}{after}", &before[..host], self.addr))
    }

    /// Sets the server for new connections.
    pub fn lead_to(&self, upstream: SocketAddr) {
        *locked(&self.shared.upstream) = upstream;
    }

    /// Delays all bytes sent from now on in either direction.
    pub fn set_delay(&self, delay: Duration) {
        self.shared.delay_ms.store(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// If `true`, nothing arrives on either side, and a new connection receives nothing. Bytes sent
    /// in that time are lost, so `false` cuts those connections and lets new ones work.
    pub fn set_silent(&self, silent: bool) {
        self.shared.is_silent.store(silent, Ordering::Relaxed);
        if !silent {
            self.cut();
        }
    }

    pub fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Number of open connections.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.acceptor.abort();
        self.cut();
    }
}

async fn accept(listener: TcpListener, shared: Arc<LinkState>) {
    while let Ok((near, _)) = listener.accept().await {
        let (shared, mut cuts) = (Arc::clone(&shared), shared.cuts.subscribe());
        tokio::spawn(async move {
            shared.connections.fetch_add(1, Ordering::Relaxed);
            tokio::select! {
                // A link causes errors on purpose; both sides see them as a closed connection.
                _ = carry(near, &shared) => {}
                _ = cuts.changed() => {}
            }
            shared.connections.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

async fn carry(near: TcpStream, shared: &LinkState) -> io::Result<()> {
    if shared.is_silent.load(Ordering::Relaxed) {
        std::future::pending::<()>().await;
    }
    let upstream = *locked(&shared.upstream);
    let far = TcpStream::connect(upstream).await?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
    // A connection ends when both directions have ended: an end of one side is forwarded like all
    // other bytes.
    tokio::try_join!(one_way(near_read, far_write, shared), one_way(far_read, near_write, shared))?;
    Ok(())
}

/// Reads bytes as they arrive and forwards each when its delay has passed.
async fn one_way(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: &LinkState) -> io::Result<()> {
    let mut on_the_way: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    let (mut bytes, mut has_ended) = (0, false);
    let mut buffer = vec![0; 64 << 10];
    while !(has_ended && on_the_way.is_empty()) {
        let next_at = on_the_way.front().map(|(at, _)| *at);
        tokio::select! {
            biased;
            () = until(next_at) => {
                let Some((_, piece)) = on_the_way.pop_front() else { continue };
                bytes -= piece.len();
                if !shared.is_silent.load(Ordering::Relaxed) {
                    to.write_all(&piece).await?;
                }
            }
            read = from.read(&mut buffer), if !has_ended && bytes < ON_THE_WAY => {
                let read = read?;
                has_ended = read == 0;
                bytes += read;
                let delay = Duration::from_millis(shared.delay_ms.load(Ordering::Relaxed));
                on_the_way.push_back((Instant::now() + delay, buffer[..read].to_vec()));
            }
        }
    }
    while shared.is_silent.load(Ordering::Relaxed) {
        // The end of a connection is not forwarded either.
        sleep(Duration::from_millis(20)).await;
    }
    to.shutdown().await
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    /// A server that sends everything back.
    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = socket.into_split();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                });
            }
        });
        addr
    }

    async fn say(socket: &mut TcpStream, text: &[u8]) -> io::Result<Vec<u8>> {
        socket.write_all(text).await?;
        let mut heard = vec![0; text.len()];
        socket.read_exact(&mut heard).await?;
        Ok(heard)
    }

    #[tokio::test]
    async fn a_delay_is_kept_in_each_direction_and_costs_no_rate() {
        let link = Link::start(echo().await).await.unwrap();
        let mut socket = TcpStream::connect(link.addr()).await.unwrap();
        assert_eq!(say(&mut socket, b"at once").await.unwrap(), b"at once");
        link.set_delay(Duration::from_millis(300));
        let began = Instant::now();
        let (mut read, mut write) = socket.split();
        // Ten pieces, 20 ms apart: one after the other they would take six seconds.
        let saying = async {
            for _ in 0..10 {
                write.write_all(b"piece").await.unwrap();
                sleep(Duration::from_millis(20)).await;
            }
        };
        let mut heard = vec![0; 50];
        let (_, read) = tokio::join!(saying, read.read_exact(&mut heard));
        read.unwrap();
        let took = began.elapsed();
        assert!((600..1_500).contains(&took.as_millis()), "{took:?}");
        assert_eq!(heard, b"piece".repeat(10));
    }

    #[tokio::test]
    async fn a_silent_one_refuses_nothing_and_answers_nothing() {
        let link = Link::start(echo().await).await.unwrap();
        let mut old = TcpStream::connect(link.addr()).await.unwrap();
        assert_eq!(say(&mut old, b"x").await.unwrap(), b"x");
        link.set_silent(true);
        let mut new = TcpStream::connect(link.addr()).await.unwrap();
        let timeout_after = Duration::from_millis(300);
        assert!(timeout(timeout_after, say(&mut old, b"y")).await.is_err());
        assert!(timeout(timeout_after, say(&mut new, b"y")).await.is_err());
        assert_eq!(link.connections(), 2);
        link.set_silent(false);
        assert!(
            timeout(timeout_after, say(&mut old, b"z")).await.unwrap().is_err(),
            "what was lost is not hidden"
        );
        let mut third = TcpStream::connect(link.addr()).await.unwrap();
        assert_eq!(say(&mut third, b"z").await.unwrap(), b"z");
    }

    #[tokio::test]
    async fn urls_lead_over_it() {
        let link = Link::start(([127, 0, 0, 1], 9).into()).await.unwrap();
        let at = link.addr();
        assert_eq!(link.url("nats://u:p@h:4222").unwrap(), format!("nats://u:p@{at}"));
        assert_eq!(link.url("nats://h:4222").unwrap(), format!("nats://{at}"));
        assert_eq!(link.url("postgres://u@h:5432/d?x=1").unwrap(), format!("postgres://u@{at}/d?x=1"));
    }
}
