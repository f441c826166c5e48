//! Shows Antiphon at work on this terminal and checks what it shows. `cargo xtask demo` runs it.

use std::process::ExitCode;

use clap::Parser;
use demo::{self, DemoOptions, DemoOutcome};
use tokio::signal::unix::{SignalKind, signal};

/// Exit code of what a signal ended.
const INTERRUPTED: u8 = 130;

/// Dialog with a model through a fleet of real processes, then watch ten agents work while a worker is killed.
#[derive(Debug, Parser)]
struct DemoArguments {
    /// Without a person: scripted lines are said, and the exit code is the verdict. So it is too when stdin is no terminal.
    #[arg(long)]
    once: bool,
    /// Where NATS is.
    #[arg(long, env = "NATS_URL")]
    nats_url: String,
    /// Where Postgres is.
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
    // Given up in the middle, everything that was started is dropped, and so ended.
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

/// Ctrl-C, or SIGTERM of the parent process.
async fn interrupted() {
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        },
        Err(_) => _ = tokio::signal::ctrl_c().await,
    }
}
