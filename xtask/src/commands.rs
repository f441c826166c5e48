//! The commands of `cargo xtask`, and their common parts: stages, children that get our signals,
//! tools, services.

pub(crate) mod bench;
pub(crate) mod demo;
pub(crate) mod docs;
pub(crate) mod doctor;
pub(crate) mod figures;
pub(crate) mod image;
pub(crate) mod interrupt;
pub(crate) mod mutants;
pub(crate) mod pods;
pub(crate) mod test;
pub(crate) mod upgrade;

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use devservices::{
    services::{NatsOptions, NatsProcess, Postgres, PostgresOptions},
    tools, workspace,
};

/// Exit code of a program that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

/// Prints one line of progress at once.
pub(crate) fn say(text: &str) {
    eprintln!("==> {text}");
}

/// Cargo with the environment in which it started us, but without the variables that describe this
/// crate: they would make build scripts detect a change.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.args(args).current_dir(workspace::root());
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let ours = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"];
        if ours.iter().any(|prefix| text.starts_with(prefix)) || text == "OUT_DIR" {
            command.env_remove(&name);
        }
    }
    command
}

/// Runs a child with our terminal and returns its exit code. It gets our signals (Ctrl-C from the
/// terminal, SIGTERM from us). We outlive it, so that what it uses is cleaned up after it.
pub(crate) fn run(command: &mut Command) -> Result<i32> {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().with_context(|| format!("starting {program}"))?;
    let mut forwarded = false;
    loop {
        if let Some(status) = child.try_wait()? {
            let interrupted = interrupt::received().then_some(INTERRUPTED);
            return Ok(interrupted.or(status.code()).unwrap_or(1));
        }
        if interrupt::terminated() && !forwarded {
            forwarded = true;
            interrupt::terminate(&child);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Runs a build and returns its exit code if it failed.
pub(crate) fn build(args: &[&str]) -> Result<Option<i32>> {
    say(&format!("cargo {}", args.join(" ")));
    let code = run(&mut cargo(args))?;
    Ok((code != 0).then_some(code))
}

/// The paths of the two tools.
pub(crate) struct Tools {
    pub(crate) nats_server: PathBuf,
    pub(crate) pg_bin: PathBuf,
}

impl Tools {
    /// Finds or fetches the tools of both services. A service that the caller gave by URL needs no
    /// tool.
    pub(crate) fn resolve() -> Result<Tools> {
        say("looking for nats-server and Postgres (cargo xtask doctor tells more)");
        let found = |tool: tools::Tool| {
            let (name, link) = (tool.kind.name(), tool.link.name());
            say(&format!("{name} {} from {link}: {}", tool.version, tool.path.display()));
            tool.path
        };
        Ok(Tools { nats_server: found(tools::nats_server()?), pg_bin: found(tools::postgres()?) })
    }

    /// Sets their paths in a child's environment.
    pub(crate) fn export(&self, command: &mut Command) {
        command.env("ANTIPHON_NATS_SERVER", &self.nats_server).env("ANTIPHON_PG_BIN", &self.pg_bin);
    }
}

/// A service that is ours or was given by its URL.
pub(crate) struct Service<S> {
    pub(crate) url: String,
    _ours: Option<S>,
}

/// The service of `DATABASE_URL`, or else our own Postgres.
pub(crate) fn database(options: impl FnOnce() -> Result<PostgresOptions>) -> Result<Service<Postgres>> {
    if let Some(url) = given("DATABASE_URL") {
        say("Postgres: DATABASE_URL is set, using it");
        return Ok(Service { url, _ours: None });
    }
    let postgres = Postgres::start(None, &options()?)?;
    say(&format!("Postgres at {}", postgres.url()));
    Ok(Service { url: postgres.url(), _ours: Some(postgres) })
}

/// The service of `NATS_URL`, or else our own server with the account mapping.
pub(crate) fn nats() -> Result<Service<NatsProcess>> {
    if let Some(url) = given("NATS_URL") {
        say("NATS: NATS_URL is set, using it");
        return Ok(Service { url, _ours: None });
    }
    let mut options = NatsOptions::new(tools::nats_server()?.path);
    options.partitions = Some(partitions()?);
    let nats = NatsProcess::start(None, &options)?;
    say(&format!("NATS at {}", nats.url()));
    Ok(Service { url: nats.url(), _ours: Some(nats) })
}

fn given(variable: &str) -> Option<String> {
    env::var(variable).ok().filter(|value| !value.is_empty())
}

/// `ANTIPHON_PARTITIONS`, 8 by default.
fn partitions() -> Result<u32> {
    match given("ANTIPHON_PARTITIONS") {
        Some(text) => text.parse().with_context(|| format!("ANTIPHON_PARTITIONS={text} is not a number")),
        None => Ok(8),
    }
}

/// Builds the shipped binary and the programs of one more package, in the test profile. Returns the
/// exit code if it failed.
pub(crate) fn build_antiphon_and(package: &str) -> Result<Option<i32>> {
    build(&["build", "-p", "antiphon", "-p", package, "--bins"])
}

/// A workspace program that drives the shipped binary, with the environment that all of them
/// expect.
pub(crate) fn program(name: &str, profile_dir: &str, args: &[String]) -> Result<Command> {
    let program = workspace::built_binary(name, profile_dir);
    anyhow::ensure!(program.exists(), "no program `{name}` was built ({})", program.display());
    let mut command = Command::new(program);
    command.args(args).current_dir(workspace::root());
    command.env("ANTIPHON_BIN", antiphon(profile_dir));
    Ok(command)
}

/// The path of the built antiphon binary.
pub(crate) fn antiphon(profile_dir: &str) -> PathBuf {
    workspace::built_binary("antiphon", profile_dir)
}

/// The standard output of a program.
///
/// # Errors
/// It cannot be started or fails; the error contains its standard error.
pub(crate) fn output_of(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("starting {program}"))?;
    ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The first line of `program --version`, if it runs.
pub(crate) fn version_of(program: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then(|| text.lines().next().unwrap_or_default().trim().to_owned())
}
