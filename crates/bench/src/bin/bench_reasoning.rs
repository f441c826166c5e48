//! Measures reasoning sessions and the WAL of turns and prints one table. `cargo xtask bench
//! reasoning` runs it.

use std::process::ExitCode;

use anyhow::Result;
use bench::reasoning::{self, Options};
use clap::Parser;

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let is_good = reasoning::run(&Options::parse()).await?;
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
