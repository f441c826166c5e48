//! Provokes the deployment's alerts on a real fleet, and reports which of them fire.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use chaos::alerts::{self, AlertsOptions};
use clap::Parser;

/// Starts NATS, Postgres, a fleet and a Prometheus, and provokes the deployment's alerts.
#[derive(Debug, Parser)]
struct AlertsArguments {
    /// An alert to provoke instead of all; can be repeated.
    #[arg(long, value_name = "ALERT")]
    only: Vec<String>,
    /// An `antiphon` build of another version; without it AntiphonVersionsMixed is skipped.
    #[arg(long)]
    other_binary: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let AlertsArguments { only, other_binary } = AlertsArguments::parse();
    let report = alerts::run(AlertsOptions { only, other_binary }).await?;
    println!("\n{report}");
    Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
