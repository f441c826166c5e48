//! How much is measured.

use std::{path::PathBuf, time::Duration};

use clap::Parser;

/// Load before the first probe that counts.
const WARM_UP: Duration = Duration::from_secs(25);
/// Open messages of part h: with the probes a few less than a worker holds by default.
const OPEN: usize = 9_900;
/// Entries of part i: a few less than a takeover may have to read again by default.
const REPLAYED: u64 = 490_000;

/// Measures what a unit of work costs beside ten times as much, and prints one table.
#[derive(Debug, Clone, Parser)]
pub struct GrowthBenchOptions {
    /// Messages of a backlog, and tasks.
    #[arg(long, default_value_t = 40_000)]
    pub units: usize,
    /// Rounds of each number.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Parts to measure: a open messages, b threads, c messages that threads have already, d agents, e partitions; f others beside long answers, g what
    /// a long answer writes, h others beside many open messages, i a takeover, j a message that stays open.
    #[arg(long, value_delimiter = ',', default_value = "a,b,c,d,e,f,g,h,i,j")]
    pub rows: Vec<char>,
    /// How long an answer takes in parts f to j, in seconds.
    #[arg(long, default_value_t = 90)]
    pub seconds: u64,
    /// Answers at a time in parts f and j.
    #[arg(long, default_value_t = 500)]
    pub streams: usize,
    /// Open messages of part h.
    #[arg(long, default_value_t = OPEN)]
    pub open: usize,
    /// Entries of part i.
    #[arg(long, default_value_t = REPLAYED)]
    pub replayed: u64,
    /// Few units, one round: whether it works at all. The exit code says nothing of the figures.
    #[arg(long)]
    pub quick: bool,
    /// Where the figures go as JSON.
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

    /// Load before the first probe that counts.
    pub(super) fn warm_up(&self) -> Duration {
        WARM_UP.min(Duration::from_secs(self.seconds))
    }
}
