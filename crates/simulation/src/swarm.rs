//! Many seeds on all cores.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Coverage, PlantedBug, SeedReport, simulate};

/// The outcome of many seeds.
#[derive(Debug, Default)]
pub struct SwarmOutcome {
    /// Sums over all seeds that were run.
    pub coverage: Coverage,
    /// Number of seeds that were run.
    pub seeds: u64,
    /// The report of the lowest seed that failed, if any.
    pub failed: Option<SeedReport>,
}

/// Runs seeds until one fails or all are done. `progress` is called after each with the number
/// done.
pub fn swarm(
    seeds: Range<u64>,
    bug: Option<PlantedBug>,
    threads: usize,
    progress: impl Fn(u64) + Sync,
) -> SwarmOutcome {
    let next = AtomicU64::new(seeds.start);
    let outcome = Mutex::new(SwarmOutcome::default());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let report = simulate(seed, bug, false);
            let Ok(mut outcome) = outcome.lock() else { return };
            outcome.coverage.add(&report.coverage);
            outcome.seeds += 1;
            progress(outcome.seeds);
            if !report.violations.is_empty() {
                // Lower seeds are done or running; no higher one starts.
                next.store(seeds.end, Ordering::Relaxed);
                let is_lowest = outcome.failed.as_ref().is_none_or(|failed| failed.seed > seed);
                if is_lowest {
                    outcome.failed = Some(report);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
    outcome.into_inner().unwrap_or_default()
}
