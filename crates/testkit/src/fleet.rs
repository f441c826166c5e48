//! A fleet as an operator runs it: `antiphon migrate`, then workers, gateways and workflow services as processes.

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

/// How long a process may take until it is ready, on a busy machine.
pub const READY_LIMIT: Duration = Duration::from_secs(30);

/// What a fleet is made of.
#[derive(Debug, Clone)]
pub struct FleetOptions {
    /// Where NATS is.
    pub nats_url: String,
    /// Where Postgres is, for `migrate` and gateways.
    pub database_url: String,
    /// Where workers find Postgres, if elsewhere: behind a proxy.
    pub worker_database_url: Option<String>,
    /// Number of workers.
    pub workers: usize,
    /// Number of gateways.
    pub gateways: usize,
    /// Workflow services.
    pub workflows: Vec<WorkflowOptions>,
    /// Number of partitions.
    pub partitions: u16,
    /// Further environment of every process, which wins over ours.
    pub env: Vec<(String, String)>,
    /// Further environment of a role's processes (`worker`, `gateway`, `workflow`, `migrate`), which wins over all other.
    pub role_env: Vec<(&'static str, String, String)>,
    /// Where logs go; a temporary folder when `None`.
    pub log_dir: Option<PathBuf>,
}

impl FleetOptions {
    /// Two workers and one gateway with 8 partitions and the defaults of the binary; no workflow service.
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

    /// Sets a variable of every process.
    #[must_use]
    pub fn with_env(mut self, name: &str, value: impl ToString) -> Self {
        self.env.push((name.to_owned(), value.to_string()));
        self
    }

    /// Adds a workflow service.
    #[must_use]
    pub fn with_workflow(mut self, workflow: WorkflowOptions) -> Self {
        self.workflows.push(workflow);
        self
    }

    /// Sets a variable of a role's processes.
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
            // All clients of a test or a bench have one address.
            ("ANTIPHON_MAX_CONNECTIONS_PER_IP", "0"),
        ];
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        let of_role = self.role_env.iter().filter(|(of, _, _)| *of == role);
        let of_role = of_role.map(|(_, name, value)| (name.clone(), value.clone()));
        own.chain(self.env.iter().cloned()).chain(of_role).collect()
    }
}

/// Running processes; dropped, they are killed and temporary logs removed.
#[derive(Debug)]
pub struct Fleet {
    /// The workers.
    pub workers: Vec<Process>,
    /// The gateways.
    pub gateways: Vec<Process>,
    /// The workflow services.
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

    /// Reserves ports and names; nothing runs yet.
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

    /// Adds a worker, not started yet, and returns its index.
    pub fn add_worker(&mut self) -> Result<usize> {
        let number = self.workers.len();
        let name = format!("worker-{number}");
        let database_url = self.options.worker_database_url.as_ref().unwrap_or(&self.options.database_url);
        let mut env = self.options.environment("worker", database_url);
        env.push(("ANTIPHON_WORKER_ID".to_owned(), name.clone()));
        self.workers.push(Process::new(Program::role("worker")?, name, &self.log_dir, env)?);
        Ok(number)
    }

    /// Adds a workflow service, not started yet, and returns its index.
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

    /// As [`Self::migrate`], for a database that takes the streams over from another one.
    pub async fn migrate_and_adopt(&self) -> Result<()> {
        let adopted = self.migrate_with(&["migrate", "--adopt-streams"]).await;
        match adopted {
            // A binary from before streams had an owner.
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

    /// Starts every process.
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

    /// Where the gateways' APIs listen.
    pub fn gateway_addrs(&self) -> Vec<SocketAddr> {
        self.gateways.iter().map(Process::http_addr).collect()
    }

    /// Where the logs are.
    pub fn log_dir(&self) -> &Path {
        &self.log_dir
    }

    /// The last lines of every log, for a failure's report.
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

/// What a command of the binary did.
#[derive(Debug, Clone)]
pub struct Invocation {
    /// Its exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
}

/// Runs the binary to its end with this environment.
pub async fn invoke(arguments: &[&str], env: &[(String, String)]) -> Result<Invocation> {
    let invocation = invoke_until(arguments, env, tokio::time::sleep(Duration::from_secs(60))).await?;
    invocation.with_context(|| format!("antiphon {arguments:?} has not ended after 60 s"))
}

/// Runs the binary with this environment; `None` when `kill` comes before its end, which is SIGKILL.
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
