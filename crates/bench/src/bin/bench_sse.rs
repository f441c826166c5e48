//! Compares event streams with those of other servers. `cargo xtask bench sse` runs it.

use std::process::ExitCode;

use anyhow::Result;
use bench::sse::{self, SseBenchOptions};
use clap::Parser;

// The runtime has one thread, because it is moved to the core of the subscribers.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode> {
    let is_good = sse::run(&SseBenchOptions::parse()).await?;
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
