//! One `antiphon` process with its ports, its log, and the signals that disturb it.

use std::{
    ffi::OsString,
    fs::File,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use devservices::services::Port;
use tokio::{
    process::{Child, Command},
    time::{sleep, timeout},
};

use super::{binary::binary, metrics::Metrics};
use crate::http;

/// The program that a process runs.
#[derive(Debug, Clone)]
pub(super) struct Program {
    pub(super) binary: PathBuf,
    pub(super) arguments: Vec<OsString>,
    pub(super) dir: Option<PathBuf>,
    /// The program serves `/readyz`. A program that does not serve it counts as ready while it
    /// runs.
    pub(super) has_probes: bool,
}

impl Program {
    /// A role of the binary under test.
    pub(super) fn role(name: &str) -> Result<Self> {
        let binary = binary()?;
        Ok(Self { binary, arguments: vec![name.into()], dir: None, has_probes: true })
    }
}

/// A worker, a gateway or a workflow service. Dropping it kills the process.
#[derive(Debug)]
pub struct Process {
    name: String,
    program: Program,
    env: Vec<(String, String)>,
    http: Port,
    metrics: Port,
    log: PathBuf,
    child: Option<Child>,
}

impl Process {
    pub(super) fn new(
        program: Program,
        name: String,
        dir: &Path,
        mut env: Vec<(String, String)>,
    ) -> Result<Self> {
        let (http, metrics) = (Port::reserve()?, Port::reserve()?);
        env.push(("ANTIPHON_HTTP_ADDR".to_owned(), local(&http).to_string()));
        // Only `antiphon all` and `antiphon mcp` listen on this address.
        env.push(("ANTIPHON_MCP_ADDR".to_owned(), "127.0.0.1:0".to_owned()));
        env.push(("ANTIPHON_METRICS_ADDR".to_owned(), local(&metrics).to_string()));
        if !env.iter().any(|(name, _)| name == "ANTIPHON_INSECURE") {
            env.push(("ANTIPHON_INSECURE".to_owned(), "true".to_owned()));
        }
        let log = dir.join(format!("{name}.log"));
        Ok(Self { name, program, env, http, metrics, log, child: None })
    }

    /// The name in logs and reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address of its API (gateways only).
    pub fn http_addr(&self) -> SocketAddr {
        local(&self.http)
    }

    /// The address of its metrics and health checks.
    pub fn metrics_addr(&self) -> SocketAddr {
        local(&self.metrics)
    }

    /// The path of its log; every start appends to it.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The process id; `None` if it does not run.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    /// Sets the build that the next start runs.
    pub fn use_binary(&mut self, binary: &Path) {
        self.program.binary = binary.to_owned();
    }

    /// Starts the process with the same ports, environment and log as at its first start.
    pub fn spawn(&mut self) -> Result<()> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = command(&self.program.binary, &self.env);
        if let Some(dir) = &self.program.dir {
            command.current_dir(dir);
        }
        command.args(&self.program.arguments).stdin(Stdio::null()).kill_on_drop(true);
        command.stdout(log.try_clone()?).stderr(log);
        let child = command.spawn();
        let child = child.with_context(|| format!("starting {}", self.program.binary.display()))?;
        self.child = Some(child);
        Ok(())
    }

    /// Waits until `/readyz` answers 200.
    ///
    /// # Errors
    /// It ends or does not become ready; the error contains the end of its log.
    pub async fn ready(&mut self, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        while !self.is_ready().await {
            if let Some(status) = self.has_ended() {
                bail!("{} ended ({status}); its log ends with:\n{}", self.name, self.log_tail());
            }
            if Instant::now() > deadline {
                bail!("{} is not ready after {limit:?}; its log ends with:\n{}", self.name, self.log_tail());
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Whether `/readyz` answers 200 now; for a program without probes, whether it was started.
    pub async fn is_ready(&self) -> bool {
        if !self.program.has_probes {
            return self.pid().is_some();
        }
        let asked = timeout(Duration::from_secs(1), http::get(self.metrics_addr(), "/readyz")).await;
        asked.is_ok_and(|answer| answer.is_ok_and(|answer| answer.status == 200))
    }

    /// Sends SIGKILL and waits for the end.
    pub async fn kill(&mut self) -> Result<()> {
        match self.child.take() {
            Some(mut child) => child.kill().await.with_context(|| format!("killing {}", self.name)),
            None => Ok(()),
        }
    }

    /// Sends SIGSTOP: connections stay open, nothing answers.
    pub fn pause(&self) {
        self.signal(libc::SIGSTOP);
    }

    pub fn resume(&self) {
        self.signal(libc::SIGCONT);
    }

    /// Sends SIGTERM, so that it drains. See [`Process::ended`].
    pub fn terminate(&self) {
        self.signal(libc::SIGTERM);
    }

    /// The exit status if it has ended by itself.
    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.as_mut().and_then(|child| child.try_wait().ok().flatten())
    }

    /// Waits until the process has ended by itself.
    ///
    /// # Errors
    /// The process has not ended within `limit`; it is then killed.
    pub async fn ended(&mut self, limit: Duration) -> Result<ExitStatus> {
        let Some(mut child) = self.child.take() else { bail!("{} does not run", self.name) };
        match timeout(limit, child.wait()).await {
            Ok(status) => Ok(status?),
            Err(_) => {
                child.kill().await?;
                bail!("{} has not ended after {limit:?}; its log ends with:\n{}", self.name, self.log_tail())
            }
        }
    }

    /// Kills it if it runs, and starts it.
    pub async fn restart(&mut self) -> Result<()> {
        self.kill().await?;
        self.spawn()
    }

    pub async fn metrics(&self) -> Result<Metrics> {
        Ok(Metrics::parse(&http::get(self.metrics_addr(), "/metrics").await?.text))
    }

    pub fn log_tail(&self) -> String {
        tail(&self.log, 15)
    }

    fn signal(&self, signal: i32) {
        let pid = self.pid().and_then(|pid| libc::pid_t::try_from(pid).ok());
        if let Some(pid) = pid {
            // SAFETY: kill touches none of our memory; the pid is positive and belongs to our
            // unreaped child.
            #[allow(unsafe_code, reason = "std and tokio send SIGKILL only")]
            unsafe {
                libc::kill(pid, signal)
            };
        }
    }
}

/// The binary with this environment and without our own `ANTIPHON_*` variables; it is killed when
/// we die.
pub(super) fn command(binary: &Path, env: &[(String, String)]) -> Command {
    let mut command = Command::new(binary);
    let inherited = std::env::vars_os().map(|(name, _)| name);
    for name in inherited.filter(|name| name.to_string_lossy().starts_with("ANTIPHON_")) {
        command.env_remove(name);
    }
    command.envs(env.iter().map(|(name, value)| (name, value))).process_group(0);
    // The signal is sent when the *thread* that forked ends. So start processes from the runtime's
    // own threads, not from `spawn_blocking`.
    // SAFETY: the closure makes one async-signal-safe system call.
    #[cfg(target_os = "linux")]
    #[allow(unsafe_code, reason = "prctl has no safe form")]
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    command
}

pub(super) fn tail(path: &Path, lines: usize) -> String {
    let text =
        std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

fn local(port: &Port) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port.number()))
}
