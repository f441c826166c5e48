//! The `nats-server` process of a test.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bus::{Bus, BusConfig, StreamOptions};
use bytes::Bytes;
use model::{PartitionCount, PartitionId, Seq, ThreadId};

/// Longer than any wait of a test.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);
pub(crate) const P0: PartitionId = PartitionId(0);

pub(crate) struct Server {
    port: u16,
    store: PathBuf,
    arguments: Vec<String>,
    child: Option<Child>,
}

impl Server {
    pub(crate) fn start() -> Result<Self> {
        Self::start_with(&[])
    }

    pub(crate) fn start_with(arguments: &[&str]) -> Result<Self> {
        let mut server = Self::absent()?;
        server.arguments = arguments.iter().map(ToString::to_string).collect();
        server.run()?;
        Ok(server)
    }

    /// A server that has an address but is not started.
    pub(crate) fn absent() -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let store = std::env::temp_dir().join(format!("bus-test-{}", uuid::Uuid::new_v4()));
        Ok(Self { port, store, arguments: Vec::new(), child: None })
    }

    pub(crate) fn run(&mut self) -> Result<()> {
        self.run_with(&["-js"])
    }

    pub(crate) fn run_without_jetstream(&mut self) -> Result<()> {
        self.run_with(&[])
    }

    fn run_with(&mut self, kind: &[&str]) -> Result<()> {
        let program =
            std::env::var("ANTIPHON_NATS_SERVER").context("ANTIPHON_NATS_SERVER names no nats-server")?;
        let child = Command::new(program)
            .args(["-a", "127.0.0.1", "-p", &self.port.to_string(), "-sd"])
            .arg(&self.store)
            .args(kind)
            .args(&self.arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        self.child = Some(child);
        let listens = (0..400).any(|_| {
            std::thread::sleep(Duration::from_millis(25));
            TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        });
        ensure!(listens, "nats-server does not listen on {}", self.port);
        Ok(())
    }

    /// Sends SIGKILL: no data is flushed, and no connection is closed properly.
    pub(crate) fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// A copy of the store, made while the server is stopped.
    pub(crate) fn copy(&self) -> Result<PathBuf> {
        let copy = self.store.with_extension("copy");
        ensure!(Command::new("cp").arg("-a").arg(&self.store).arg(&copy).status()?.success());
        Ok(copy)
    }

    /// Replaces the store by a copy while the server is stopped.
    pub(crate) fn put_back(&self, copy: &Path) -> Result<()> {
        std::fs::remove_dir_all(&self.store)?;
        Ok(std::fs::rename(copy, &self.store)?)
    }

    /// Sends SIGSTOP: connections stay open, but the server does not answer.
    pub(crate) fn pause(&self) -> Result<()> {
        self.signal("-STOP")
    }

    pub(crate) fn resume(&self) -> Result<()> {
        self.signal("-CONT")
    }

    fn signal(&self, signal: &str) -> Result<()> {
        let pid = self.child.as_ref().context("it runs")?.id().to_string();
        ensure!(Command::new("kill").args([signal, &pid]).status()?.success());
        Ok(())
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub(crate) async fn bus(&self) -> Result<Bus> {
        Ok(Bus::connect(&BusConfig::new(self.url(), "test")).await?)
    }

    /// A bus with the stream of one partition.
    pub(crate) async fn bus_with_stream(&self) -> Result<Bus> {
        let bus = self.bus().await?;
        bus.ensure_streams(PartitionCount::new(1)?, &small_streams()).await?;
        Ok(bus)
    }

    /// The context of the client library itself, for operations that the bus lacks.
    pub(crate) async fn jetstream(&self) -> Result<async_nats::jetstream::Context> {
        Ok(async_nats::jetstream::new(async_nats::connect(self.url()).await?))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.kill();
        let _ = std::fs::remove_dir_all(&self.store);
    }
}

pub(crate) fn small_streams() -> StreamOptions {
    StreamOptions { max_bytes: 64 << 20, ..StreamOptions::default() }
}

pub(crate) fn thread() -> Result<ThreadId> {
    Ok(ThreadId::parse("t-1")?)
}

/// Publishes the text `"<n>"` for each number.
pub(crate) async fn publish(bus: &Bus, numbers: impl IntoIterator<Item = u64>) -> Result<Vec<Seq>> {
    let subject = wire::subject::chunks_in(P0, &thread()?);
    let mut seqs = Vec::new();
    for number in numbers {
        let payload = Bytes::from(number.to_string());
        seqs.push(bus.publish_acked(&subject, payload, None, TEST_TIMEOUT).await?.seq);
    }
    Ok(seqs)
}
