//! Provokes the alerts of the deployment on a real fleet, and says which of them fire.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use chaos::alerts::{self, AlertsOptions};
use clap::Parser;

/// Starts NATS, Postgres, a fleet and a Prometheus, and gives their alerts reasons to fire.
#[derive(Debug, Parser)]
struct AlertsArguments {
    /// An alert to be provoked, instead of all; may be given several times.
    #[arg(long, value_name = "ALERT")]
    only: Vec<String>,
    /// A build of `antiphon` of another version, without which AntiphonVersionsMixed is left out.
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
