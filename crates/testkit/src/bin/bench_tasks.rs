//! Measures queues of tasks beside each other and prints one table. `cargo xtask bench tasks` runs it.

use anyhow::Result;
use clap::Parser;
use testkit::bench::tasks::{self, Options};

#[tokio::main]
async fn main() -> Result<()> {
    tasks::run(&Options::parse()).await
}
