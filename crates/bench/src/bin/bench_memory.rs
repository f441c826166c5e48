//! Measures how fast facts are found, and which share of them is found, and prints one table.
//! `cargo xtask bench memory` runs it.

use std::process::ExitCode;

use anyhow::Result;
use bench::memory::{self, MemoryBenchOptions};
use clap::Parser;

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let is_good = memory::run(&MemoryBenchOptions::parse()).await?;
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
