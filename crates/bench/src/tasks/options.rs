//! The selection and duration of the measurements.

use std::{path::PathBuf, time::Duration};

use clap::Parser;

use super::load::TaskLoad;

/// Number of agents in the partition that is taken over, and of tasks per agent.
const TAKEN_OVER: (u32, u32) = (6_250, 10);

/// Factor by which queues are longer while a snapshot is held, because rows that cannot be vacuumed
/// need time to accumulate.
const LONGER: u32 = 5;

/// Compares task queues and prints one table.
#[derive(Debug, Clone, Parser)]
pub struct TaskBenchOptions {
    /// Number of agents, each with its own queue.
    #[arg(long, default_value_t = 1_000)]
    pub agents: u32,
    /// Number of tasks per agent.
    #[arg(long, default_value_t = 20)]
    pub tasks: u32,
    /// Number of rounds for each contender; a very slow one has only the first.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Tasks per second, of all agents together, when latency is measured.
    #[arg(long, default_value_t = 50.0)]
    pub rate: f64,
    /// Duration of the latency measurement in seconds.
    #[arg(long, default_value_t = 20.0)]
    pub seconds: f64,
    /// Seconds after which a round is cut off and counts as far as it got.
    #[arg(long, default_value_t = 120.0)]
    pub limit: f64,
    /// Test run with 100 agents with 5 tasks, one round, two seconds of latency, and a limit of ten
    /// seconds.
    #[arg(long)]
    pub quick: bool,
    /// Parts to measure: a queue alone with a handler that does nothing, b with a workflow behind
    /// NATS, c latency, d beside a held snapshot, e takeover of a large partition, f an idle fleet,
    /// g round trips.
    #[arg(long, value_delimiter = ',', default_value = "a,b,c,d,e,f,g")]
    pub rows: Vec<char>,
    /// Names of the contenders to measure; each matches every contender whose name contains it.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// File to which the figures are written as JSON.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

impl TaskBenchOptions {
    pub(super) fn resolved(&self) -> Self {
        let mut options = self.clone();
        if options.quick {
            (options.agents, options.tasks, options.rounds) = (100, 5, 1);
            (options.seconds, options.limit) = (2.0, 10.0);
        }
        options
    }

    pub(super) fn load(&self, part: char) -> TaskLoad {
        let limit = Duration::from_secs_f64(self.limit);
        let load = TaskLoad { agents: self.agents, tasks: self.tasks, rate: None, limit };
        match part {
            'c' => {
                let total = (self.rate * self.seconds) as u32;
                TaskLoad { tasks: (total / self.agents).max(1), rate: Some(self.rate), ..load }
            }
            'd' => TaskLoad { tasks: self.tasks * LONGER, ..load },
            'e' if !self.quick => TaskLoad { agents: TAKEN_OVER.0, tasks: TAKEN_OVER.1, ..load },
            _ => load,
        }
    }

    pub(super) fn wants(&self, contender: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| contender.contains(part.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_load_lasts_about_as_long_as_requested() {
        let options = TaskBenchOptions::parse_from(["bench", "--rate", "200", "--seconds", "10"]);
        let load = options.load('c');
        assert_eq!((load.agents, load.tasks, load.rate), (1_000, 2, Some(200.0)));
        assert_eq!(options.load('a').rate, None);
    }
}
