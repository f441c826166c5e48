//! A TCP proxy in front of Postgres that fails where it hurts most: around the statement that
//! commits.
//!
//! [`Proxy::arm`] prepares one [`Cut`]; the next statement that contains a marker takes it. To the
//! client every cut looks the same, as a closed connection; only the proxy knows whether the
//! statement ran.

mod frames;

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use tokio::{
    io::{AsyncWriteExt, BufReader},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Mutex as AsyncMutex, watch},
    task::JoinHandle,
    time::sleep,
};

use crate::locked;
use frames::{PgMessage, StatementWatch};

/// First words of the statement that commits, and of one that saves. Earlier versions began commits
/// with the second.
pub const COMMIT_MARKERS: [&str; 2] = ["WITH commit_rows AS", "WITH fence AS MATERIALIZED"];

/// Where a connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The statement never reaches the server.
    Before,
    /// The statement has run, but its answer never reaches the client.
    After,
    /// The client is cut off at once; the statement reaches the server this much later.
    Late(Duration),
}

/// How often each cut was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cuts {
    /// Count of [`Cut::Before`].
    pub before: usize,
    /// Count of [`Cut::After`].
    pub after: usize,
    /// Count of [`Cut::Late`].
    pub late: usize,
}

impl Cuts {
    pub fn total(&self) -> usize {
        self.before + self.after + self.late
    }
}

/// How bytes flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    Normal,
    /// Bytes are discarded, connections stay open.
    HalfOpen,
    /// Connections of an earlier generation are closed.
    Closed,
}

#[derive(Debug)]
struct ProxyState {
    upstream: Mutex<SocketAddr>,
    markers: Vec<String>,
    armed: Mutex<VecDeque<Cut>>,
    cuts: Mutex<Cuts>,
    seen: AtomicUsize,
    delay_ms: AtomicU64,
    flow: watch::Sender<Flow>,
}

/// A running proxy. Dropping it closes everything.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<ProxyState>,
    acceptor: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port in front of `upstream`, and watches for [`COMMIT_MARKERS`].
    pub async fn start(upstream: SocketAddr) -> Result<Self> {
        Self::start_with(upstream, &COMMIT_MARKERS.map(str::to_owned)).await
    }

    /// Listens on a free port in front of `upstream`, and watches for statements with one of
    /// `markers`.
    pub async fn start_with(upstream: SocketAddr, markers: &[String]) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("binding the proxy")?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(ProxyState {
            upstream: Mutex::new(upstream),
            markers: markers.to_vec(),
            armed: Mutex::default(),
            cuts: Mutex::default(),
            seen: AtomicUsize::new(0),
            delay_ms: AtomicU64::new(0),
            flow: watch::Sender::new(Flow::Normal),
        });
        let acceptor = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { addr, shared, acceptor })
    }

    /// The address on which it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `url` with the proxy in place of its host and port.
    pub fn url(&self, url: &str) -> Result<String> {
        let (_, port) = crate::host_and_port(url)?;
        let (before, after) = url.rsplit_once(&format!(":{port}")).context("a url without its port")?;
        let credentials = before.rsplit_once('@').map_or("postgres://", |(credentials, _)| credentials);
        let at = if credentials.ends_with("//") { "" } else { "@" };
        Ok(format!("{credentials}{at}{}{after}", self.addr))
    }

    /// Sets the server for new connections; open ones keep theirs.
    pub fn set_upstream(&self, upstream: SocketAddr) {
        *locked(&self.shared.upstream) = upstream;
    }

    /// Prepares a cut; the next marked statement takes it.
    pub fn arm(&self, cut: Cut) {
        locked(&self.shared.armed).push_back(cut);
    }

    /// Removes the cuts that no statement has taken yet.
    pub fn disarm(&self) {
        locked(&self.shared.armed).clear();
    }

    /// The cuts made so far.
    pub fn cuts(&self) -> Cuts {
        *locked(&self.shared.cuts)
    }

    /// The number of marked statements seen so far.
    pub fn marked_statements(&self) -> usize {
        self.shared.seen.load(Ordering::Relaxed)
    }

    /// Delays every message of clients by this much.
    pub fn set_delay(&self, delay: Duration) {
        self.shared.delay_ms.store(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// If `true`, discards what both sides send while all connections stay open. `false` closes
    /// those connections, because the discarded bytes are lost, and lets new ones work.
    pub fn set_half_open(&self, half_open: bool) {
        let flow = if half_open { Flow::HalfOpen } else { Flow::Closed };
        self.shared.flow.send_replace(flow);
        if !half_open {
            self.shared.flow.send_replace(Flow::Normal);
        }
    }

    pub fn drop_connections(&self) {
        self.set_half_open(false);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.acceptor.abort();
        self.drop_connections();
    }
}

async fn accept(listener: TcpListener, shared: Arc<ProxyState>) {
    while let Ok((client, _)) = listener.accept().await {
        let connection = Connection::new(Arc::clone(&shared));
        tokio::spawn(async move {
            // A proxy causes errors on purpose; the client sees them as a closed connection.
            let _ = connection.run(client).await;
        });
    }
}

struct Connection {
    shared: Arc<ProxyState>,
    flow: watch::Receiver<Flow>,
    /// The client's side for answers; `None` after the client was cut off.
    answers: AsyncMutex<Option<OwnedWriteHalf>>,
    /// Number of exchanges that the server has finished.
    ready: watch::Sender<usize>,
}

impl Connection {
    fn new(shared: Arc<ProxyState>) -> Self {
        let flow = shared.flow.subscribe();
        Self { shared, flow, answers: AsyncMutex::default(), ready: watch::Sender::new(0) }
    }

    async fn run(self, client: TcpStream) -> io::Result<()> {
        let upstream = *locked(&self.shared.upstream);
        let server = TcpStream::connect(upstream).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (client_read, mut client_write) = client.into_split();
        let (server_read, mut server_write) = server.into_split();
        let mut client_read = BufReader::new(client_read);
        greet(&mut client_read, &mut client_write, &mut server_write).await?;
        *self.answers.lock().await = Some(client_write);
        let mut flow = self.flow.clone();
        tokio::select! {
            ended = self.upwards(client_read, server_write) => ended,
            ended = self.downwards(BufReader::new(server_read)) => ended,
            () = closed(&mut flow) => Ok(()),
        }
    }

    /// Forwards from client to server, until a cut.
    async fn upwards(
        &self,
        mut client: BufReader<OwnedReadHalf>,
        mut server: OwnedWriteHalf,
    ) -> io::Result<()> {
        let mut watched = StatementWatch::new(&self.shared.markers);
        while let Some(message) = PgMessage::read(&mut client).await? {
            if watched.runs_marked(&message) {
                self.shared.seen.fetch_add(1, Ordering::Relaxed);
                let cut = locked(&self.shared.armed).pop_front();
                if let Some(cut) = cut {
                    return self.cut(cut, message, client, server).await;
                }
            }
            let delay = self.shared.delay_ms.load(Ordering::Relaxed);
            if delay > 0 {
                sleep(Duration::from_millis(delay)).await;
            }
            if *self.flow.borrow() == Flow::Normal {
                server.write_all(&message.bytes).await?;
            }
        }
        Ok(())
    }

    async fn cut(
        &self,
        cut: Cut,
        statement: PgMessage,
        mut client: BufReader<OwnedReadHalf>,
        mut server: OwnedWriteHalf,
    ) -> io::Result<()> {
        if cut == Cut::Before {
            locked(&self.shared.cuts).before += 1;
            return Ok(());
        }
        let exchange = read_exchange(statement, &mut client).await?;
        let mut ready = self.ready.subscribe();
        let answers = self.answers.lock().await.take();
        if let Cut::Late(delay) = cut {
            drop((answers, client));
            sleep(delay).await;
            server.write_all(&exchange).await?;
            self.finished(&mut ready).await?;
            locked(&self.shared.cuts).late += 1;
        } else {
            server.write_all(&exchange).await?;
            self.finished(&mut ready).await?;
            locked(&self.shared.cuts).after += 1;
            drop(answers);
        }
        Ok(())
    }

    /// Waits until the server has finished one more exchange, which means that the statement's
    /// transaction has ended.
    async fn finished(&self, ready: &mut watch::Receiver<usize>) -> io::Result<()> {
        ready.changed().await.map_err(io::Error::other)
    }

    /// Forwards from server to client, until the client is cut off.
    async fn downwards(&self, mut server: BufReader<OwnedReadHalf>) -> io::Result<()> {
        while let Some(message) = PgMessage::read(&mut server).await? {
            if let Some(client) = self.answers.lock().await.as_mut()
                && *self.flow.borrow() == Flow::Normal
            {
                client.write_all(&message.bytes).await?;
            }
            if message.tag == Some(b'Z') {
                self.ready.send_modify(|exchanges| *exchanges += 1);
            }
        }
        Ok(())
    }
}

/// Forwards the first message and declines encryption, which would hide everything that follows.
async fn greet(
    client: &mut BufReader<OwnedReadHalf>,
    answer: &mut OwnedWriteHalf,
    server: &mut OwnedWriteHalf,
) -> io::Result<()> {
    loop {
        let message = PgMessage::read_startup(client).await?;
        if !message.asks_for_encryption() {
            return server.write_all(&message.bytes).await;
        }
        answer.write_all(b"N").await?;
    }
}

/// A statement and everything up to the Sync that ends its exchange; a simple query is a whole
/// exchange.
async fn read_exchange(statement: PgMessage, client: &mut BufReader<OwnedReadHalf>) -> io::Result<Vec<u8>> {
    let (mut last, mut bytes) = (statement.tag, statement.bytes);
    while !matches!(last, Some(b'S' | b'Q')) {
        let Some(message) = PgMessage::read(client).await? else { break };
        bytes.extend_from_slice(&message.bytes);
        last = message.tag;
    }
    Ok(bytes)
}

async fn closed(flow: &mut watch::Receiver<Flow>) {
    // Any change after HalfOpen, or the end of a generation, closes the connections that are open
    // now.
    loop {
        if flow.changed().await.is_err() || *flow.borrow_and_update() != Flow::HalfOpen {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
