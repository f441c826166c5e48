//! Measures the cost of a unit of work when there is ten times as much data or load around it.
//! `cargo xtask bench growth` runs it.

use std::process::ExitCode;

use anyhow::Result;
use bench::growth::{self, GrowthBenchOptions};
use clap::Parser;

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let is_met = growth::run(&GrowthBenchOptions::parse()).await?;
    Ok(if is_met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
