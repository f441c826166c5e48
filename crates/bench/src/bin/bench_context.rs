//! Measures contexts, history, compaction, export and import of long threads and prints one table.
//! `cargo xtask bench context` runs it.

use std::process::ExitCode;

use anyhow::Result;
use bench::context::{self, ContextBenchOptions};
use clap::Parser;

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let is_good = context::run(&ContextBenchOptions::parse()).await?;
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
