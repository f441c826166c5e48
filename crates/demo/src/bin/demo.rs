//! Shows Antiphon at work on this terminal and checks the outcome. `cargo xtask demo` runs it.

use std::process::ExitCode;

use clap::Parser;
use demo::{self, DemoOptions, DemoOutcome};
use tokio::signal::unix::{SignalKind, signal};

/// Exit code of a program that a signal ended.
const INTERRUPTED: u8 = 130;

/// Talks with a model through a fleet of real processes, then shows ten agents at work while a
/// worker is killed.
#[derive(Debug, Parser)]
struct DemoArguments {
    /// Runs without a person: scripted lines are sent, and the exit code is the verdict. This is
    /// the default if stdin is no terminal.
    #[arg(long)]
    once: bool,
    /// URL of NATS.
    #[arg(long, env = "NATS_URL")]
    nats_url: String,
    /// URL of Postgres.
    #[arg(long, env = "DATABASE_URL")]
    database_url: String,
    /// Number of partitions of the fleet.
    #[arg(long, env = "ANTIPHON_PARTITIONS", default_value_t = 8)]
    partitions: u16,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = DemoArguments::parse();
    let options = DemoOptions {
        nats_url: arguments.nats_url,
        database_url: arguments.database_url,
        partitions: arguments.partitions,
        is_once: arguments.once,
    };
    // On an interrupt all processes that were started are dropped, which ends them.
    tokio::select! {
        outcome = demo::run(&options) => match outcome {
            Ok(DemoOutcome::Pass | DemoOutcome::Left) => ExitCode::SUCCESS,
            Ok(DemoOutcome::Fail) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("\nThe demo could not be shown: {error:#}");
                ExitCode::FAILURE
            }
        },
        () = interrupted() => ExitCode::from(INTERRUPTED),
    }
}

/// Waits for Ctrl-C, or for SIGTERM from the parent process.
async fn interrupted() {
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        },
        Err(_) => _ = tokio::signal::ctrl_c().await,
    }
}
