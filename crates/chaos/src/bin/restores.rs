//! Restores copies of Postgres and NATS under load, and checks that remaining data is complete and
//! lost data is recorded.

use std::process::ExitCode;

use anyhow::Result;
use chaos::restores;
use clap::Parser;

/// Starts NATS, Postgres, workers, a gateway and a workflow service, and restores earlier server
/// states under load.
#[derive(Debug, Parser)]
struct RestoresArguments {
    /// Number of times that each kind of restore is done.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let arguments = RestoresArguments::parse();
    let report = restores::run(arguments.rounds, true).await?;
    println!("\n{report}");
    Ok(if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
