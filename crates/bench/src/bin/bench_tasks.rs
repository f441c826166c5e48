//! Compares task queues and prints one table. `cargo xtask bench tasks` runs it.

use std::process::ExitCode;

use anyhow::Result;
use bench::tasks::{self, TaskBenchOptions};
use clap::Parser;

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let is_good = tasks::run(&TaskBenchOptions::parse()).await?;
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
