//! Puts copies of Postgres and NATS back under load, and checks that what is still there is not missing and what is gone is named.

use std::process::ExitCode;

use anyhow::Result;
use chaos::restores;
use clap::Parser;

/// Starts NATS, Postgres, workers, a gateway and a workflow service, and puts servers back in time under load.
#[derive(Debug, Parser)]
struct RestoresArguments {
    /// How often each kind is done.
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
