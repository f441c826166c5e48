//! A fleet of one process for each page, with its own NATS and Postgres.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use devservices::{
    services::{NatsOptions, NatsProcess, Port, Postgres, PostgresOptions, ScratchDir},
    workspace,
};

use super::super::{Tools, antiphon};

/// The addresses of the processes of the quick start.
const GATEWAY: u16 = 8080;
const TOOLS_OF_AGENTS: u16 = 8090;
const METRICS: u16 = 9464;
const START_LIMIT: Duration = Duration::from_secs(60);

/// The data that fleets are copied from: a database with all tables.
pub(super) struct FleetTemplate {
    nats_server: PathBuf,
    postgres: PostgresOptions,
    migrated: Postgres,
}

impl FleetTemplate {
    pub(super) fn new(tools: &Tools) -> Result<Self> {
        let postgres = PostgresOptions::new(&tools.pg_bin);
        let mut migrated = Postgres::start(None, &postgres)?;
        let nats = nats(&tools.nats_server)?;
        let mut migrate = program(&nats, &migrated.url());
        let output = migrate.arg("migrate").output().context("starting antiphon")?;
        ensure!(output.status.success(), "antiphon migrate: {}", String::from_utf8_lossy(&output.stderr));
        // Its files do not change while they are copied.
        migrated.stop()?;
        Ok(Self { nats_server: tools.nats_server.clone(), postgres, migrated })
    }
}

fn nats(program: &Path) -> Result<NatsProcess> {
    let mut options = NatsOptions::new(program);
    options.partitions = Some(8);
    NatsProcess::start(None, &options)
}

/// The binary with the two services, and nothing else of our environment.
fn program(nats: &NatsProcess, database: &str) -> Command {
    let mut command = Command::new(antiphon("debug"));
    without_settings(&mut command);
    command.env("NATS_URL", nats.url()).env("DATABASE_URL", database).current_dir(workspace::root());
    command
}

/// Removes the variables of a developer's shell.
fn without_settings(command: &mut Command) {
    for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ANTIPHON_")) {
        command.env_remove(name);
    }
}

/// A running fleet. `Drop` ends it with its services.
pub(super) struct PageFleet {
    process: Child,
    ports: Vec<(u16, Port)>,
    nats: NatsProcess,
    postgres: Postgres,
    _folder: ScratchDir,
}

impl PageFleet {
    /// Starts services and the process, and waits until it is ready. The log of the process is in
    /// `folder`.
    pub(super) fn start(template: &FleetTemplate, folder: &Path) -> Result<Self> {
        let place = ScratchDir::new("docs-pg")?;
        fs::create_dir_all(place.path().join("data"))?;
        template.migrated.copy(&place.path().join("data"))?;
        let postgres = Postgres::start(Some(place.path()), &template.postgres)?;
        let nats = nats(&template.nats_server)?;
        let mut ports = Vec::new();
        for port in [GATEWAY, TOOLS_OF_AGENTS, METRICS] {
            ports.push((port, Port::reserve()?));
        }
        let log = File::create(folder.join("fleet.log"))?;
        let mut all = program(&nats, &postgres.url());
        all.args(["all", "--insecure"]).env("ANTIPHON_SCRIPT_FILE", "deploy/workflow/script.json");
        for (name, (_, port)) in
            ["ANTIPHON_HTTP_ADDR", "ANTIPHON_MCP_ADDR", "ANTIPHON_METRICS_ADDR"].iter().zip(&ports)
        {
            all.env(name, format!("127.0.0.1:{}", port.number()));
        }
        let process = all.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
        let mut fleet = Self { process, ports, nats, postgres, _folder: place };
        fleet.wait_until_ready()?;
        Ok(fleet)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let begun = Instant::now();
        while !curl(&[&self.url(METRICS, "/readyz")])? {
            if self.process.try_wait()?.is_some() || begun.elapsed() > START_LIMIT {
                bail!("the fleet is not ready after {} s", begun.elapsed().as_secs());
            }
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Sends the first message of the quick start, which later pages expect to exist.
    pub(super) fn say_hello(&self) -> Result<()> {
        let message = self.url(GATEWAY, "/v1/threads/hello/messages");
        let json = ["--header", "Content-Type: application/json", "--data", r#"{"content": "Hello"}"#];
        let sent = curl(&[&[message.as_str(), "--header", "Accept: text/event-stream"], &json[..]].concat())?;
        ensure!(sent, "the first message was not answered");
        Ok(())
    }

    fn url(&self, port: u16, path: &str) -> String {
        let used = self.ports.iter().find(|(book, _)| *book == port).map_or(port, |(_, port)| port.number());
        format!("http://127.0.0.1:{used}{path}")
    }

    /// Ports that the book names, each with the port that is used instead.
    pub(super) fn ports(&self) -> Vec<(u16, u16)> {
        let services = [(4222, self.nats.port()), (5432, self.postgres.port())];
        self.ports.iter().map(|(book, port)| (*book, port.number())).chain(services).collect()
    }

    /// Sets the environment in which the blocks of a page run.
    pub(super) fn export(&self, command: &mut Command) {
        without_settings(command);
        command.env("NATS_URL", self.nats.url()).env("DATABASE_URL", self.postgres.url());
        command.env("ANTIPHON_URL", self.url(GATEWAY, ""));
    }
}

/// Whether a request succeeds.
fn curl(args: &[&str]) -> Result<bool> {
    let mut curl = Command::new("curl");
    let answer = curl.args(["--silent", "--fail"]).args(args).output().context("starting curl")?;
    Ok(answer.status.success())
}

impl Drop for PageFleet {
    fn drop(&mut self) {
        // A failed kill means that the process has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
