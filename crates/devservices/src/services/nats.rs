//! One `nats-server` with JetStream.

use std::{
    fmt::Write as _,
    fs::{self, File},
    io::Read,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Result, bail};

use super::{
    files,
    port::Port,
    process::{self, log_tail, wait_for_end, wait_until},
    scratch::ScratchDir,
};

const START_LIMIT: Duration = Duration::from_secs(60);
/// The server's own default is three quarters of the free disk, so a test would pass on one machine
/// and fail on another.
const MAX_FILE_STORE: u64 = 64 << 30;

/// The options of a server. Everything else is the server's default.
#[derive(Debug, Clone)]
pub struct NatsOptions {
    /// The `nats-server` program.
    pub program: PathBuf,
    /// The address of this machine for clients: loopback, unless the clients are in other networks.
    pub address: Ipv4Addr,
    /// If set to N, the account mapping of the deployment: `chunks.<thread>` to
    /// `chunks.<p>.<thread>`, and the same for each class of subjects.
    pub partitions: Option<u32>,
    /// The most bytes that all streams together may use and reserve. 64 GiB by default.
    pub max_file_store: u64,
    /// The most bytes of one message. 1 MiB by default.
    pub max_payload: u64,
    /// If set, a server of a cluster with the production setting that every acknowledged entry is
    /// on disk.
    pub cluster: Option<ClusterOptions>,
}

/// How a server of a cluster finds the others.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// Port for the routes of the others.
    pub port: u16,
    /// The addresses at which this server reaches all servers of the cluster. Its own address is
    /// included, because the number of routes is the size of the cluster.
    pub routes: Vec<SocketAddr>,
}

impl NatsOptions {
    /// Defaults for a program: no mapping, and the server's own sync interval.
    pub fn new(program: impl Into<PathBuf>) -> NatsOptions {
        NatsOptions {
            program: program.into(),
            address: Ipv4Addr::LOCALHOST,
            partitions: None,
            max_file_store: MAX_FILE_STORE,
            max_payload: 1 << 20,
            cluster: None,
        }
    }

    fn config(&self, port: u16, store: &Path) -> String {
        let sync = if self.cluster.is_some() { ", sync_interval: always" } else { "" };
        let mut config = format!(
            "server_name: {}\nhost: {}\nport: {port}\nmax_payload: {}\n\
             jetstream {{ store_dir: {store:?}, max_file_store: {}{sync} }}\n",
            name(port),
            self.address,
            self.max_payload,
            self.max_file_store
        );
        if let Some(ClusterOptions { port, routes }) = &self.cluster {
            let routes: Vec<_> = routes.iter().map(|route| format!("nats://{route}")).collect();
            // The advertised address leads nowhere: the routes above are the only ones, so cutting
            // a route really cuts it.
            let _ = writeln!(
                config,
                "cluster {{ name: antiphon_dev, listen: \"127.0.0.1:{port}\", advertise: \"127.0.0.1:1\", \
                 routes: [{}], ping_interval: 2s, ping_max: 2 }}",
                routes.join(", ")
            );
        }
        if let Some(partitions) = self.partitions {
            config.push_str("mappings = {\n");
            for subject in ["chunks", "commands", "messages", "tasks"] {
                let target = format!("{subject}.{{{{partition({partitions},1)}}}}.{{{{wildcard(1)}}}}");
                let _ = writeln!(config, "  \"{subject}.*\": \"{target}\"");
            }
            config.push_str("}\n");
        }
        config
    }
}

/// A running (or killed) server. `Drop` ends it, and removes its folder if it is temporary.
#[derive(Debug)]
pub struct NatsProcess {
    child: Option<Child>,
    options: NatsOptions,
    dir: PathBuf,
    port: Port,
    _scratch: Option<ScratchDir>,
}

impl NatsProcess {
    /// Starts a server with its files in `dir`, or in a temporary folder, and waits until it
    /// accepts clients.
    pub fn start(dir: Option<&Path>, options: &NatsOptions) -> Result<NatsProcess> {
        let scratch = if dir.is_none() { Some(ScratchDir::new("nats")?) } else { None };
        let dir = dir.or(scratch.as_ref().map(ScratchDir::path)).unwrap_or(Path::new(".")).to_path_buf();
        fs::create_dir_all(&dir)?;
        let port = Port::reserve()?;
        fs::write(dir.join("nats.conf"), options.config(port.number(), &dir.join("jetstream")))?;
        let options = options.clone();
        let mut nats = NatsProcess { child: None, options, dir, port, _scratch: scratch };
        nats.restart()?;
        Ok(nats)
    }

    /// `nats://<address>:<port>`, which never changes.
    pub fn url(&self) -> String {
        format!("nats://{}", self.socket())
    }

    /// The port, which never changes.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The server's name within a cluster.
    pub fn name(&self) -> String {
        name(self.port.number())
    }

    /// The process id; `None` while it does not run.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    pub fn log(&self) -> PathBuf {
        self.dir.join("nats.log")
    }

    /// Kills the server like a crash (SIGKILL) and reaps it. Does nothing if it is down.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Stops the server with SIGTERM, so that it writes everything to disk.
    pub fn stop(&mut self) -> Result<()> {
        if let Some(child) = &mut self.child {
            process::signal(child.id(), libc::SIGTERM);
            wait_for_end(child, Duration::from_secs(10));
        }
        self.kill()
    }

    /// Changes the number of partitions in the account mapping, and makes the server reload its
    /// settings (SIGHUP).
    pub fn map_to(&self, partitions: u32) -> Result<()> {
        let options = NatsOptions { partitions: Some(partitions), ..self.options.clone() };
        fs::write(self.dir.join("nats.conf"), options.config(self.port.number(), &self.store()))?;
        self.pid().into_iter().for_each(|pid| process::signal(pid, libc::SIGHUP));
        Ok(())
    }

    /// Pauses the server (SIGSTOP): connections stay open and nothing answers.
    pub fn freeze(&self) {
        self.pid().into_iter().for_each(|pid| process::signal(pid, libc::SIGSTOP));
    }

    /// Resumes a paused server.
    pub fn thaw(&self) {
        self.pid().into_iter().for_each(|pid| process::signal(pid, libc::SIGCONT));
    }

    /// Copies all stored data to `to`, as of one moment: the server is paused meanwhile.
    pub fn copy(&self, to: &Path) -> Result<()> {
        self.freeze();
        let copied = files::copy(&self.store(), to);
        self.thaw();
        copied
    }

    /// Kills the server like a crash, and starts it with the data of [`NatsProcess::copy`].
    pub fn put_back(&mut self, from: &Path) -> Result<()> {
        self.kill()?;
        files::copy(from, &self.store())?;
        self.restart()
    }

    fn socket(&self) -> SocketAddr {
        SocketAddr::from((self.options.address, self.port.number()))
    }

    fn store(&self) -> PathBuf {
        self.dir.join("jetstream")
    }

    /// Kills the server if it runs, starts it on the same port with the same data, and waits until
    /// it accepts clients.
    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        let log = File::options().create(true).append(true).open(self.log())?;
        let mut command = Command::new(&self.options.program);
        command.arg("-c").arg(self.dir.join("nats.conf")).current_dir(&self.dir);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut child = process::spawn(command, libc::SIGKILL)?;
        let mut ended = false;
        let ready = wait_until(START_LIMIT, || {
            ended = child.try_wait().is_ok_and(|status| status.is_some());
            ended || greets(self.socket())
        });
        self.child = Some(child);
        if ended || !ready {
            self.kill()?;
            bail!("nats-server did not start; its last words:\n{}", log_tail(&self.log()));
        }
        Ok(())
    }
}

impl Drop for NatsProcess {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

fn name(port: u16) -> String {
    format!("antiphon_dev_{port}")
}

/// True if the server sends its `INFO` line, which it does once JetStream is up.
fn greets(address: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_millis(500)) else {
        return false;
    };
    let mut word = [0; 4];
    stream.set_read_timeout(Some(Duration::from_secs(2))).is_ok()
        && stream.read_exact(&mut word).is_ok()
        && &word == b"INFO"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mapping_is_the_one_of_the_deployment() {
        let mut options = NatsOptions::new("nats-server");
        options.partitions = Some(8);
        let config = options.config(4222, Path::new("/data"));
        assert!(config.contains(r#"  "chunks.*": "chunks.{{partition(8,1)}}.{{wildcard(1)}}""#), "{config}");
        assert!(config.contains(r#"  "tasks.*": "tasks.{{partition(8,1)}}.{{wildcard(1)}}""#), "{config}");
        assert!(
            config.contains(r#"  "messages.*": "messages.{{partition(8,1)}}.{{wildcard(1)}}""#),
            "{config}"
        );
        assert!(
            config.contains("jetstream { store_dir: \"/data\", max_file_store: 68719476736 }"),
            "{config}"
        );
    }

    #[test]
    fn a_server_of_a_cluster_knows_its_routes() {
        let mut options = NatsOptions::new("nats-server");
        let routes = vec![([127, 0, 0, 1], 6222).into(), ([127, 0, 0, 1], 6223).into()];
        options.cluster = Some(ClusterOptions { port: 6222, routes });
        let config = options.config(4222, Path::new("/data"));
        assert!(config.contains("routes: [nats://127.0.0.1:6222, nats://127.0.0.1:6223]"), "{config}");
        assert!(config.contains("sync_interval: always"), "{config}");
    }
}
