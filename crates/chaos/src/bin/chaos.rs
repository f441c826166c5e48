//! Kills real processes at random for some minutes, and checks that nothing was lost, duplicated or
//! reordered.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Result;
use chaos::ChaosSettings;
use clap::Parser;

/// Starts NATS, Postgres, workers and gateways, kills and disconnects them under load, and checks
/// the outcome.
#[derive(Debug, Parser)]
struct ChaosArguments {
    /// Duration of the faults in minutes.
    #[arg(long, default_value_t = 3.0)]
    minutes: f64,
    /// Random seed; random by default, and printed.
    #[arg(long)]
    seed: Option<u64>,
    /// Number of workers in the fleet.
    #[arg(long, default_value_t = 3)]
    workers: usize,
    /// Number of gateways in the fleet.
    #[arg(long, default_value_t = 2)]
    gateways: usize,
    /// Number of NATS servers: 1, or 3 for a cluster with streams of three replicas.
    #[arg(long, default_value_t = 1)]
    nats_servers: usize,
    /// Another build of `antiphon`; each process start uses one of the two builds at random.
    #[arg(long)]
    other_binary: Option<PathBuf>,
    /// Number of messages begun per second.
    #[arg(long, default_value_t = 25.0)]
    rate: f64,
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let arguments = ChaosArguments::parse();
    let seed = arguments.seed.unwrap_or_else(|| rand::random::<u32>().into());
    let mut settings = ChaosSettings::new(Duration::from_secs_f64(arguments.minutes * 60.0), seed);
    (settings.workers, settings.gateways) = (arguments.workers, arguments.gateways);
    (settings.nats_servers, settings.other_binary) = (arguments.nats_servers, arguments.other_binary);
    (settings.messages_per_second, settings.is_verbose) = (arguments.rate, true);
    println!(
        "chaos: {} minutes of faults, seed {seed}; logs in {}",
        arguments.minutes,
        settings.log_dir.display()
    );
    let report = chaos::run(&settings).await?;
    println!("\n{report}");
    Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
