//! Measures how fast threads are listed and found, and prints one table.
//! `cargo xtask bench threads` runs it.

use std::process::ExitCode;

use anyhow::Result;
use bench::threads::{self, ThreadsBenchOptions};
use clap::Parser;

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let is_good = threads::run(&ThreadsBenchOptions::parse()).await?;
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
