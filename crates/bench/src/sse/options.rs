//! The selection and duration of the measurements.

use std::{path::PathBuf, time::Duration};

use clap::Parser;

use super::{load::SteadyLoad, measurement::Measurement, target::ServerKind};

/// Duration with slow subscribers, which need time to fall so far behind that they are
/// disconnected.
const SLOW_SECONDS: f64 = 12.0;

/// Duration with idle connections: longer than one heartbeat interval.
const IDLE_SECONDS: f64 = 16.0;

/// Compares event streams of several servers and prints one table.
#[derive(Debug, Clone, Parser)]
pub struct SseBenchOptions {
    /// Duration of each measurement after its warm-up, in seconds.
    #[arg(long, default_value_t = 10.0)]
    pub seconds: f64,
    /// Number of rounds for each server.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Parts to measure: 1 fan-out, 2 many threads, 3 resume storm, 4 idle connections, 5 slow
    /// subscribers.
    #[arg(long, value_delimiter = ',', default_value = "1,2,3,4,5")]
    pub rows: Vec<char>,
    /// Names of the servers to measure; each matches every server whose name contains it.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// Test run: one round of three seconds with fewer threads and connections. The exit code is 0
    /// unless something is lost.
    #[arg(long)]
    pub short: bool,
    /// File to which the figures are written as JSON.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

impl SseBenchOptions {
    pub(super) fn resolved(&self) -> Self {
        let mut options = self.clone();
        if options.short {
            (options.seconds, options.rounds) = (3.0, 1);
        }
        options
    }

    pub(super) fn wants(&self, kind: ServerKind) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| kind.name().contains(part))
    }

    /// All measurements of the selected parts.
    pub(super) fn shapes(&self) -> Vec<Measurement> {
        let least = |full: usize, short: usize| if self.short { short } else { full };
        let stream = |threads, viewers, rate, burst, bytes| SteadyLoad {
            threads,
            viewers,
            slow_every: None,
            rate,
            burst,
            bytes,
            warm_up: Duration::from_secs_f64((self.seconds / 3.0).clamp(1.0, 4.0)),
            duration: Duration::from_secs_f64(self.seconds),
        };
        let long = |load: SteadyLoad, seconds: f64| {
            let duration = if self.short { seconds } else { self.seconds.max(seconds) };
            SteadyLoad { duration: Duration::from_secs_f64(duration), ..load }
        };
        let mut shapes = Vec::new();
        for viewers in [100, 1_000] {
            for burst in [1, 4] {
                shapes.push(Measurement::Fanout(stream(1, viewers, 50.0, burst, 256)));
            }
        }
        let threads = least(1_000, 200);
        for rate in [10.0, 30.0] {
            shapes.push(Measurement::Threads(stream(threads, threads * 3 / 2, rate, 1, 100)));
        }
        let viewers = least(1_000, 200);
        shapes.extend([1, viewers].map(|threads| Measurement::Storm { threads, viewers }));
        let idle = if self.short { IDLE_SECONDS } else { self.seconds.max(2.0 * IDLE_SECONDS) };
        let idle = |connections: usize, threads| {
            let duration = Duration::from_secs_f64(idle);
            Measurement::Idle { threads, connections, duration }
        };
        let connections = least(10_000, 1_000);
        shapes.push(idle(connections, connections / 100));
        // One of the servers has one file per thread and one per connection, and many systems allow
        // a process 20,000 files.
        let connections = least(9_000, 1_000);
        shapes.push(idle(connections, connections));
        let alone = long(stream(1, 90, 200.0, 1, 1_024), SLOW_SECONDS);
        shapes.push(Measurement::Slow(alone));
        shapes.push(Measurement::Slow(SteadyLoad { viewers: 100, slow_every: Some(10), ..alone }));
        shapes.retain(|measurement| self.rows.contains(&measurement.part()));
        shapes
    }
}
