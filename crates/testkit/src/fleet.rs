//! A fleet as an operator runs it: `antiphon migrate`, then workers, gateways and workflow services
//! as processes.

mod binary;
mod metrics;
mod process;
mod workflow;

use std::{
    env,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use devservices::services::ScratchDir;

pub use binary::binary;
pub use metrics::Metrics;
pub use process::Process;
pub use workflow::{WorkflowOptions, WorkflowProgram};

use process::Program;

/// Limit until a process is ready, on a busy machine.
pub const READY_LIMIT: Duration = Duration::from_secs(30);

/// The configuration of a fleet.
#[derive(Debug, Clone)]
pub struct FleetOptions {
    pub nats_url: String,
    /// For `migrate` and gateways.
    pub database_url: String,
    /// The database url of workers if it differs, for example behind a proxy.
    pub worker_database_url: Option<String>,
    pub workers: usize,
    pub gateways: usize,
    pub workflows: Vec<WorkflowOptions>,
    pub partitions: u16,
    /// Additional environment of every process; overrides the environment that the fleet sets.
    pub env: Vec<(String, String)>,
    /// Additional environment of one role's processes (`worker`, `gateway`, `workflow`, `migrate`);
    /// overrides all others.
    pub role_env: Vec<(&'static str, String, String)>,
    /// Folder of the logs; `None`: a temporary folder.
    pub log_dir: Option<PathBuf>,
}

impl FleetOptions {
    /// Two workers and one gateway with 8 partitions and the binary's defaults, without a workflow
    /// service.
    pub fn new(nats_url: &str, database_url: &str) -> Self {
        Self {
            nats_url: nats_url.to_owned(),
            database_url: database_url.to_owned(),
            worker_database_url: None,
            workers: 2,
            gateways: 1,
            workflows: Vec::new(),
            partitions: 8,
            env: Vec::new(),
            role_env: Vec::new(),
            log_dir: None,
        }
    }

    /// Sets an environment variable of every process.
    #[must_use]
    pub fn with_env(mut self, name: &str, value: impl ToString) -> Self {
        self.env.push((name.to_owned(), value.to_string()));
        self
    }

    #[must_use]
    pub fn with_workflow(mut self, workflow: WorkflowOptions) -> Self {
        self.workflows.push(workflow);
        self
    }

    /// Sets an environment variable of one role's processes.
    #[must_use]
    pub fn with_role_env(mut self, role: &'static str, name: &str, value: impl ToString) -> Self {
        self.role_env.push((role, name.to_owned(), value.to_string()));
        self
    }

    fn environment(&self, role: &str, database_url: &str) -> Vec<(String, String)> {
        let log = env::var("ANTIPHON_LOG").unwrap_or_else(|_| "info".to_owned());
        let partitions = self.partitions.to_string();
        let own = [
            ("NATS_URL", self.nats_url.as_str()),
            ("DATABASE_URL", database_url),
            ("ANTIPHON_PARTITIONS", &partitions),
            ("ANTIPHON_LOG", &log),
            // All clients of a test or a benchmark have the same address.
            ("ANTIPHON_MAX_CONNECTIONS_PER_IP", "0"),
        ];
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        let of_role = self.role_env.iter().filter(|(of, _, _)| *of == role);
        let of_role = of_role.map(|(_, name, value)| (name.clone(), value.clone()));
        own.chain(self.env.iter().cloned()).chain(of_role).collect()
    }
}

/// Running processes. Dropping it kills them and removes temporary logs.
#[derive(Debug)]
pub struct Fleet {
    pub workers: Vec<Process>,
    pub gateways: Vec<Process>,
    pub workflows: Vec<Process>,
    options: FleetOptions,
    log_dir: PathBuf,
    _scratch: Option<ScratchDir>,
}

impl Fleet {
    /// Migrates, starts everything and waits until it is ready.
    pub async fn start(options: FleetOptions) -> Result<Self> {
        let mut fleet = Self::prepare(options)?;
        fleet.migrate().await?;
        fleet.spawn()?;
        fleet.ready(READY_LIMIT).await?;
        Ok(fleet)
    }

    /// Reserves ports and names, but starts nothing.
    pub fn prepare(options: FleetOptions) -> Result<Self> {
        let scratch = options.log_dir.is_none().then(|| ScratchDir::new("fleet")).transpose()?;
        let log_dir = options.log_dir.clone().or(scratch.as_ref().map(|dir| dir.path().to_path_buf()));
        let log_dir = log_dir.context("no folder for logs")?;
        std::fs::create_dir_all(&log_dir)?;
        let (workers, gateways, workflows) = (Vec::new(), Vec::new(), Vec::new());
        let mut fleet = Self { workers, gateways, workflows, options, log_dir, _scratch: scratch };
        for _ in 0..fleet.options.workers {
            fleet.add_worker()?;
        }
        for number in 0..fleet.options.gateways {
            let env = fleet.options.environment("gateway", &fleet.options.database_url);
            let name = format!("gateway-{number}");
            fleet.gateways.push(Process::new(Program::role("gateway")?, name, &fleet.log_dir, env)?);
        }
        for workflow in fleet.options.workflows.clone() {
            fleet.add_workflow(&workflow)?;
        }
        Ok(fleet)
    }

    /// Adds a worker without starting it, and returns its index.
    pub fn add_worker(&mut self) -> Result<usize> {
        let number = self.workers.len();
        let name = format!("worker-{number}");
        let database_url = self.options.worker_database_url.as_ref().unwrap_or(&self.options.database_url);
        let mut env = self.options.environment("worker", database_url);
        env.push(("ANTIPHON_WORKER_ID".to_owned(), name.clone()));
        self.workers.push(Process::new(Program::role("worker")?, name, &self.log_dir, env)?);
        Ok(number)
    }

    /// Adds a workflow service without starting it, and returns its index.
    pub fn add_workflow(&mut self, workflow: &WorkflowOptions) -> Result<usize> {
        let number = self.workflows.len();
        let env = self.options.environment("workflow", &self.options.database_url);
        self.workflows.push(workflow.process(format!("workflow-{number}"), &self.log_dir, env)?);
        Ok(number)
    }

    /// Runs `antiphon migrate`.
    pub async fn migrate(&self) -> Result<()> {
        self.migrate_with(&["migrate"]).await
    }

    /// Like [`Self::migrate`], for a database that takes over the streams of another one.
    pub async fn migrate_and_adopt(&self) -> Result<()> {
        let adopted = self.migrate_with(&["migrate", "--adopt-streams"]).await;
        match adopted {
            // This binary is older than the option that takes over streams.
            Err(error) if error.to_string().contains("unexpected argument") => self.migrate().await,
            adopted => adopted,
        }
    }

    async fn migrate_with(&self, arguments: &[&str]) -> Result<()> {
        let environment = self.options.environment("migrate", &self.options.database_url);
        let migrated = invoke(arguments, &environment).await?;
        if migrated.code != Some(0) {
            bail!("antiphon migrate ended with {:?}:\n{}", migrated.code, migrated.stderr);
        }
        Ok(())
    }

    pub fn spawn(&mut self) -> Result<()> {
        self.processes_mut().try_for_each(Process::spawn)
    }

    /// Waits until every process is ready.
    pub async fn ready(&mut self, limit: Duration) -> Result<()> {
        for process in self.processes_mut() {
            process.ready(limit).await?;
        }
        Ok(())
    }

    /// The addresses of the gateways' APIs.
    pub fn gateway_addrs(&self) -> Vec<SocketAddr> {
        self.gateways.iter().map(Process::http_addr).collect()
    }

    /// The folder of the logs.
    pub fn log_dir(&self) -> &Path {
        &self.log_dir
    }

    /// The last lines of every log, for the report of a failure.
    pub fn log_tails(&self) -> String {
        let processes = self.workers.iter().chain(&self.gateways).chain(&self.workflows);
        processes.map(|process| format!("--- {}\n{}\n", process.name(), process.log_tail())).collect()
    }

    fn processes_mut(&mut self) -> impl Iterator<Item = &mut Process> {
        self.workers.iter_mut().chain(&mut self.gateways).chain(&mut self.workflows)
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log_tails());
        }
    }
}

/// The outcome of one run of the binary.
#[derive(Debug, Clone)]
pub struct Invocation {
    /// Exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs the binary to its end with this environment.
pub async fn invoke(arguments: &[&str], env: &[(String, String)]) -> Result<Invocation> {
    let invocation = invoke_until(arguments, env, tokio::time::sleep(crate::WAIT_TIMEOUT)).await?;
    invocation.with_context(|| format!("antiphon {arguments:?} has not ended after 60 s"))
}

/// Runs the binary with this environment. Sends SIGKILL and returns `None` if `kill` completes
/// first.
pub async fn invoke_until(
    arguments: &[&str],
    env: &[(String, String)],
    kill: impl Future<Output = ()>,
) -> Result<Option<Invocation>> {
    let mut command = process::command(&binary()?, env);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let output = tokio::select! {
        output = command.output() => output?,
        () = kill => return Ok(None),
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    Ok(Some(Invocation { code: output.status.code(), stdout, stderr }))
}
