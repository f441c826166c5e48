//! Shows Antiphon at work on this terminal and checks what it shows. `cargo xtask demo` runs it.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::Parser;
use testkit::demo::{self, DemoOptions};

/// Two workers, a gateway, chunks in the wrong order, and a worker that is killed in the middle.
#[derive(Debug, Parser)]
struct Arguments {
    /// Ends after the verdict, with 0 or 1. Otherwise the fleet keeps running until Ctrl-C.
    #[arg(long)]
    once: bool,
    /// A text file to send instead of the licence.
    #[arg(long)]
    text: Option<PathBuf>,
    /// Where NATS is.
    #[arg(long, env = "NATS_URL")]
    nats_url: String,
    /// Where Postgres is.
    #[arg(long, env = "DATABASE_URL")]
    database_url: String,
    /// Number of partitions of the fleet.
    #[arg(long, env = "ANTIPHON_PARTITIONS", default_value_t = 8)]
    partitions: u16,
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let is_right = demo::run(&DemoOptions {
        nats_url: arguments.nats_url,
        database_url: arguments.database_url,
        partitions: arguments.partitions,
        text: arguments.text,
        is_once: arguments.once,
    })
    .await?;
    Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
