//! What is measured, and how long.

use std::{path::PathBuf, time::Duration};

use clap::Parser;

use super::load::TaskLoad;

/// Agents of the partition that is taken over, and the tasks of each.
const TAKEN_OVER: (u32, u32) = (6_250, 10);

/// How much longer queues are where a snapshot is held: what cannot be cleaned up needs time to pile up.
const LONGER: u32 = 5;

/// Measures queues of tasks beside each other and prints one table.
#[derive(Debug, Clone, Parser)]
pub struct TaskBenchOptions {
    /// How many agents, each with a queue of its own.
    #[arg(long, default_value_t = 1_000)]
    pub agents: u32,
    /// How many tasks each of them has.
    #[arg(long, default_value_t = 20)]
    pub tasks: u32,
    /// Rounds of each contender; a very slow one has only the first.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Tasks a second, of all agents together, where latency is measured.
    #[arg(long, default_value_t = 50.0)]
    pub rate: f64,
    /// How long latency is measured.
    #[arg(long, default_value_t = 20.0)]
    pub seconds: f64,
    /// Seconds after which a round is cut and counts as far as it came.
    #[arg(long, default_value_t = 120.0)]
    pub limit: f64,
    /// 100 agents with 5 tasks, one round, two seconds of latency, a limit of ten: whether it works at all.
    #[arg(long)]
    pub quick: bool,
    /// Parts to measure: a queue alone with a handler that does nothing, b with a workflow behind NATS, c latency, d beside
    /// a snapshot that is held, e takeover of a large partition, f an idle fleet, g round trips.
    #[arg(long, value_delimiter = ',', default_value = "a,b,c,d,e,f,g")]
    pub rows: Vec<char>,
    /// Only contenders whose names contain one of these.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// Where the figures go as JSON.
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
