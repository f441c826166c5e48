//! The three servers, on their core. They are restarted for every measurement, so that memory and
//! threads of an earlier one are released.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use devservices::{
    services::{Port, ScratchDir},
    workspace,
};
use tokio::process::{Child, Command};

use crate::environment::ChunkEnvironment;

use super::{
    cores::AmongServers,
    load::PARTITIONS,
    subscribers,
    target::{ServerKind, Target},
};
use testkit::{
    fleet::{Fleet, Metrics, READY_LIMIT},
    http,
    services::TestDatabase,
};

/// The memory limit of nchan. The number of messages limits its use per thread.
const NCHAN_MEMORY: &str = "1g";
/// Number of messages that nchan keeps: as many as a subscriber may be behind. With its default of
/// ten, resuming would be impossible.
const NCHAN_MESSAGES: u32 = 5_000;
/// Heartbeat interval of nchan, because Antiphon and durable-streams also send heartbeats into idle
/// streams.
const HEARTBEAT_SECONDS: u32 = 15;
const START_LIMIT: Duration = Duration::from_secs(10);
const STOP_LIMIT: Duration = Duration::from_secs(2);
/// The worker's default for the purge, which the benchmarks of the chunk path disable.
const PURGE_TAIL_SECONDS: u32 = 60;
/// Size of a partition's stream: more than arrives in that time, but not more than a small disk can
/// reserve.
const STREAM_BYTES: u64 = 256 << 20;

/// A running server; dropping it ends it.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) target: Target,
    /// The NATS server for Antiphon's publishers.
    pub(super) nats_url: String,
    /// The process that serves the subscribers.
    pub(super) server: u32,
    /// The other processes through which an event reaches the server.
    pub(super) others: Vec<(&'static str, u32)>,
    /// The address at which the server reports the number of subscribers that it has disconnected.
    metrics: Option<SocketAddr>,
    _peer: Option<Peer>,
}

impl Running {
    /// The number of subscribers that the server has disconnected, if it reports them. They notice
    /// this later, because they first read the data that the kernel has buffered.
    pub(super) async fn cuts(&self) -> Result<Option<u64>> {
        let Some(addr) = self.metrics else { return Ok(None) };
        let metrics = Metrics::parse(&http::get(addr, "/metrics").await?.text);
        Ok(Some(metrics.sum("antiphon_gateway_subscribers_aborted_total") as u64))
    }
}

#[derive(Default)]
pub(super) struct Servers {
    antiphon: Option<Antiphon>,
    started: u32,
}

/// The services that are kept between measurements. They are dropped in this order.
struct Antiphon {
    fleet: Fleet,
    _database: TestDatabase,
    environment: ChunkEnvironment,
}

impl Servers {
    /// Starts a server, and creates its threads if the server needs that.
    pub(super) async fn start(&mut self, kind: ServerKind, threads: usize) -> Result<Running> {
        self.started += 1;
        let prefix = format!("bench{}", self.started);
        let running = {
            let _among = AmongServers::enter()?;
            match kind {
                ServerKind::Antiphon => self.antiphon(&prefix).await?,
                ServerKind::Nchan => nchan(&prefix).await?,
                ServerKind::Durable => durable(&prefix).await?,
            }
        };
        if kind == ServerKind::Durable {
            for thread in 0..threads {
                create(&running.target, thread).await?;
            }
        }
        Ok(running)
    }

    pub(super) fn log_tails(&self) -> String {
        self.antiphon.as_ref().map(|antiphon| antiphon.fleet.log_tails()).unwrap_or_default()
    }

    async fn antiphon(&mut self, prefix: &str) -> Result<Running> {
        let antiphon = match &mut self.antiphon {
            Some(antiphon) => antiphon,
            none => none.insert(Antiphon::start().await?),
        };
        let gateway = antiphon.fleet.gateways.first_mut().context("no gateway")?;
        gateway.restart().await?;
        gateway.ready(READY_LIMIT).await?;
        let server = gateway.pid().context("the gateway has ended")?;
        let target = Target::new(ServerKind::Antiphon, gateway.http_addr(), prefix);
        let worker = antiphon.fleet.workers.first().and_then(testkit::fleet::Process::pid);
        let mut others = antiphon.environment.processes();
        others.push(("worker", worker.context("the worker has ended")?));
        Ok(Running {
            target,
            nats_url: antiphon.environment.nats.url(),
            server,
            others,
            metrics: Some(gateway.metrics_addr()),
            _peer: None,
        })
    }
}

impl Antiphon {
    async fn start() -> Result<Self> {
        let environment = ChunkEnvironment::start(PARTITIONS)?;
        let database = environment.database().await?;
        let options = environment
            .fleet(database.url(), 1, 1)
            .with_env("ANTIPHON_STREAM_RETAIN_SECONDS", PURGE_TAIL_SECONDS)
            .with_env("ANTIPHON_STREAM_MAX_BYTES", STREAM_BYTES);
        let fleet = Fleet::start(options).await?;
        Ok(Self { fleet, _database: database, environment })
    }
}

/// The reason why a server cannot be measured here.
pub(super) fn missing(kind: ServerKind) -> Option<String> {
    let program = match kind {
        ServerKind::Antiphon => return None,
        ServerKind::Nchan => nginx(),
        ServerKind::Durable => durable_streams(),
    };
    (!program.is_file())
        .then(|| format!("{} is not there: see what was said about fetching it", program.display()))
}

fn peers(path: &str) -> PathBuf {
    workspace::target_dir().join("peers").join(path)
}

fn nginx() -> PathBuf {
    peers("nchan/usr/sbin/nginx")
}

fn durable_streams() -> PathBuf {
    peers("durable-streams/bin/durable-streams-server")
}

/// Another program. It is ended by SIGTERM, because killing it could leave its children running.
#[derive(Debug)]
struct Peer {
    child: Child,
    dir: ScratchDir,
    addr: SocketAddr,
    _port: Port,
}

impl Peer {
    /// Starts the program and waits until it listens. `command` adds arguments for its port and
    /// folder.
    async fn start(
        program: &Path,
        command: impl FnOnce(&mut Command, &ScratchDir, u16) -> Result<()>,
    ) -> Result<Self> {
        let (dir, port) = (ScratchDir::new("peer")?, Port::reserve()?);
        let log: OwnedFd = fs::File::create(dir.path().join("log"))?.into();
        let mut started = Command::new(program);
        command(&mut started, &dir, port.number())?;
        started.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        end_with_us(&mut started);
        let child = started.spawn().with_context(|| format!("starting {}", program.display()))?;
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port.number()));
        let peer = Self { child, dir, addr, _port: port };
        let listening = subscribers::until_listening(addr, START_LIMIT).await;
        listening.with_context(|| format!("{} says:\n{}", program.display(), peer.log()))?;
        Ok(peer)
    }

    fn running(self, kind: ServerKind, prefix: &str) -> Result<Running> {
        let server = self.child.id().context("it has ended")?;
        let target = Target::new(kind, self.addr, prefix);
        let others = Vec::new();
        Ok(Running { target, nats_url: String::new(), server, others, metrics: None, _peer: Some(self) })
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

/// Makes the program receive SIGTERM when this process ends for any reason.
#[cfg_attr(not(target_os = "linux"), allow(unused_variables))]
fn end_with_us(command: &mut Command) {
    // SAFETY: the closure makes one async-signal-safe system call.
    #[cfg(target_os = "linux")]
    #[allow(unsafe_code, reason = "prctl has no safe form")]
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(pid) = self.child.id().and_then(|pid| libc::pid_t::try_from(pid).ok()) {
            // SAFETY: kill touches none of our memory; the pid is positive and belongs to our
            // unreaped child.
            #[allow(unsafe_code, reason = "tokio sends SIGKILL only")]
            unsafe {
                libc::kill(pid, libc::SIGTERM)
            };
        }
        let begun = std::time::Instant::now();
        while begun.elapsed() < STOP_LIMIT && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.start_kill();
    }
}

async fn nchan(prefix: &str) -> Result<Running> {
    let program = nginx();
    let peer = Peer::start(&program, |command, dir, port| {
        let config = dir.path().join("nginx.conf");
        fs::write(&config, nchan_config(&peers("nchan"), dir.path(), port))?;
        command.arg("-c").arg(config).arg("-p").arg(dir.path()).args(["-e", "stderr"]);
        Ok(())
    });
    peer.await?.running(ServerKind::Nchan, prefix)
}

/// The configuration with one worker process, for one core, and high limits.
fn nchan_config(installed: &Path, dir: &Path, port: u16) -> String {
    let module = installed.join("usr/lib/nginx/modules/ngx_nchan_module.so");
    let user = if workspace::is_root() { "user root;\n" } else { "" };
    let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {}/{name};", dir.display()))
        .join("\n");
    format!(
        "{user}load_module {module};
daemon off; worker_processes 1; worker_rlimit_nofile 20000; pid {dir}/pid; error_log stderr warn;
events {{ worker_connections 19000; multi_accept on; }}
http {{
access_log off; tcp_nodelay on; keepalive_requests 1000000000; keepalive_timeout 1h; client_body_buffer_size 16k;
nchan_shared_memory_size {NCHAN_MEMORY};
{paths}
server {{
listen 127.0.0.1:{port} backlog=4096;
location ~ ^/publish/(.+)$ {{
nchan_publisher; nchan_channel_id $1;
nchan_message_buffer_length {NCHAN_MESSAGES}; nchan_message_timeout 1h;
}}
location ~ ^/events/(.+)$ {{
nchan_subscriber eventsource; nchan_channel_id $1;
nchan_subscriber_first_message newest; nchan_eventsource_ping_interval {HEARTBEAT_SECONDS};
}}
}}
}}
",
        module = module.display(),
        dir = dir.display(),
    )
}

async fn durable(prefix: &str) -> Result<Running> {
    let program = durable_streams();
    let peer = Peer::start(&program, |command, dir, port| {
        command.args(["--host", "127.0.0.1", "--port", &port.to_string(), "--durability", "memory"]);
        command.args(["--worker-threads", "1", "--data-dir"]).arg(dir.path().join("data"));
        Ok(())
    });
    peer.await?.running(ServerKind::Durable, prefix)
}

async fn create(target: &Target, thread: usize) -> Result<()> {
    let path = format!("/{}", target.thread(thread));
    let headers = [("content-type", "application/json")];
    let made = http::exchange(
        target.addr,
        http::HttpRequest { method: "PUT", path: &path, headers: &headers, body: b"" },
    );
    let status = made.await?.status;
    ensure!(status == 201, "making a stream was answered with {status}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_of_nginx_is_ours() {
        let config = nchan_config(Path::new("/installed"), Path::new("/scratch"), 7);
        assert!(config.contains("load_module /installed/usr/lib/nginx/modules/ngx_nchan_module.so;\n"));
        assert!(config.contains("client_body_temp_path /scratch/client_body;\n"));
        assert_eq!(config.matches('{').count(), config.matches('}').count());
    }
}
