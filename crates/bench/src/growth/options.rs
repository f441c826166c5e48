//! The amounts that are measured.

use std::{path::PathBuf, time::Duration};

use clap::Parser;

/// Load before the first probe that counts.
const WARM_UP: Duration = Duration::from_secs(25);
/// Open messages of part h: together with the probes slightly fewer than a worker holds by default.
const OPEN: usize = 9_900;
/// Entries of part i: slightly fewer than a takeover may have to replay by default.
const REPLAYED: u64 = 490_000;

/// Measures the cost of a unit of work with ten times as much load or data around it, and prints
/// one table.
#[derive(Debug, Clone, Parser)]
pub struct GrowthBenchOptions {
    /// Number of messages of a backlog, and of tasks.
    #[arg(long, default_value_t = 40_000)]
    pub units: usize,
    /// Number of rounds for each of the compared numbers.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Parts to measure: a open messages, b threads, c existing messages of threads, d agents, e
    /// partitions; f others beside long answers, g WAL of a long answer, h others beside many open
    /// messages, i a takeover, j a message that stays open.
    #[arg(long, value_delimiter = ',', default_value = "a,b,c,d,e,f,g,h,i,j")]
    pub rows: Vec<char>,
    /// Duration of an answer in parts f to j, in seconds.
    #[arg(long, default_value_t = 90)]
    pub seconds: u64,
    /// Number of concurrent answers in parts f and j.
    #[arg(long, default_value_t = 500)]
    pub streams: usize,
    /// Number of open messages in part h.
    #[arg(long, default_value_t = OPEN)]
    pub open: usize,
    /// Number of entries in part i.
    #[arg(long, default_value_t = REPLAYED)]
    pub replayed: u64,
    /// Test run with few units and one round. The exit code then ignores the figures.
    #[arg(long)]
    pub quick: bool,
    /// File to which the figures are written as JSON.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

impl GrowthBenchOptions {
    pub(super) fn resolved(&self) -> Self {
        let mut options = self.clone();
        if options.quick {
            (options.units, options.rounds) = (2_000, 1);
            (options.seconds, options.streams) = (3, 20);
            (options.open, options.replayed) = (100, 5_000);
        }
        options
    }

    /// Duration of the load before the first probe that counts.
    pub(super) fn warm_up(&self) -> Duration {
        WARM_UP.min(Duration::from_secs(self.seconds))
    }
}
