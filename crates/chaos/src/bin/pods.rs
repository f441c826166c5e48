//! Runs the pods of the chart, upgrades and hurts them under load, and checks that nothing was lost, doubled or reordered.

use std::process::ExitCode;

use anyhow::{Result, bail};
use chaos::pods::{self, PodsSettings};
use clap::Parser;

/// Runs the pods of the chart with podman, and replaces them one by one while clients look on.
#[derive(Debug, Parser)]
struct PodsArguments {
    /// The tag of the image with which it begins.
    #[arg(long)]
    tag: String,
    /// The tag of the image to which it is upgraded, and from which it goes back in the next round.
    #[arg(long)]
    other_tag: String,
    /// How often all pods are moved to the other image.
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    /// Followers of turns, together.
    #[arg(long, default_value_t = 60)]
    subscribers: usize,
    /// Turns begun per second.
    #[arg(long, default_value_t = 6)]
    rate: usize,
    /// Rounds alone: no pod is killed, squeezed, slowed down or cut off.
    #[arg(long)]
    without_faults: bool,
    /// Where randomness comes from; random by default, and printed.
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
