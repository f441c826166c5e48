//! Runs the pods of the chart, upgrades and disturbs them under load, and checks that nothing was
//! lost, duplicated or reordered.

use std::process::ExitCode;

use anyhow::{Result, bail};
use chaos::pods::{self, PodsSettings};
use clap::Parser;

/// Runs the pods of the chart with podman, and replaces them one by one while clients are
/// subscribed.
#[derive(Debug, Parser)]
struct PodsArguments {
    /// Image tag of the first version.
    #[arg(long)]
    tag: String,
    /// Image tag of the upgrade; the next round returns to the first tag.
    #[arg(long)]
    other_tag: String,
    /// Number of times that all pods are moved to the other image.
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    /// Total number of followers of turns.
    #[arg(long, default_value_t = 60)]
    subscribers: usize,
    /// Number of turns begun per second.
    #[arg(long, default_value_t = 6)]
    rate: usize,
    /// Only upgrade: no pod is killed, short of memory, slowed down or disconnected.
    #[arg(long)]
    without_faults: bool,
    /// Random seed; random by default, and printed.
    #[arg(long)]
    seed: Option<u64>,
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let arguments = PodsArguments::parse();
    let seed = arguments.seed.unwrap_or_else(|| rand::random::<u32>().into());
    let settings = PodsSettings {
        tags: [arguments.tag, arguments.other_tag],
        rounds: arguments.rounds,
        with_faults: !arguments.without_faults,
        subscribers: arguments.subscribers,
        turns_per_second: arguments.rate,
        seed,
    };
    println!("pods: {} rounds, seed {seed}", settings.rounds);
    let report = tokio::select! {
        report = pods::run(&settings) => report?,
        _ = tokio::signal::ctrl_c() => bail!("interrupted; the next run removes what is left"),
    };
    println!("\n{report}");
    Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
