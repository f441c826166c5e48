//! Provokes the alerts of the deployment on a real fleet, and says which of them fire.

use std::process::ExitCode;

use anyhow::Result;
use chaos::alerts;
use clap::Parser;

/// Starts NATS, Postgres, a fleet and a Prometheus, and gives their alerts reasons to fire.
#[derive(Debug, Parser)]
struct AlertsArguments {}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    AlertsArguments::parse();
    let report = alerts::run().await?;
    println!("\n{report}");
    Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
