//! The figures of one round of one contender.

use serde::Serialize;

use super::environment::Cost;

/// One round of one contender.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct TaskRound {
    /// Number of completed tasks.
    pub(super) tasks: u64,
    /// Time from the start until the database had the last completion.
    pub(super) seconds: f64,
    /// Median time from when a task was due until its durable completion. For raw inserts, the
    /// median time of one statement.
    pub(super) p50_ms: Option<f64>,
    /// The 99th percentile of the same times.
    pub(super) p99_ms: Option<f64>,
    /// Processor time of the postmaster and all its children.
    pub(super) server_cpu_us_per_task: f64,
    /// Bytes of WAL.
    pub(super) wal_bytes_per_task: f64,
    /// Number of pages that the connections of the shipped worker have accessed; `None` for others.
    pub(super) pages_per_task: Option<f64>,
    /// Number of transactions of these connections, most of which are one statement each; `None`
    /// for others.
    pub(super) transactions_per_task: Option<f64>,
    /// Processor time of the contender's own processes.
    pub(super) client_cpu_us_per_task: f64,
    /// Processor time of the nats-server, if there is one.
    pub(super) nats_cpu_us_per_task: f64,
    /// Number of tasks that began while an earlier one of the same agent had not ended; `None`
    /// without handlers.
    pub(super) out_of_order: Option<u64>,
    /// Number of tasks whose handler was called more than once.
    pub(super) repeated: u64,
    /// Number of attempts by agents that fail forever.
    pub(super) failures: u64,
    /// Time from the start until the first handler began.
    pub(super) first_ms: Option<f64>,
    /// The cost of enqueuing the tasks beforehand, if the contender does that itself.
    pub(super) enqueued: Option<Cost>,
    /// True if the round took too long; `tasks` is then the number completed by then.
    pub(super) is_cut: bool,
    /// Load of other processes, in cores.
    pub(super) foreign_cores: f64,
}

impl TaskRound {
    pub(super) fn new(tasks: u64, cost: &Cost) -> Self {
        Self {
            tasks,
            seconds: cost.seconds,
            server_cpu_us_per_task: cost.server_us,
            wal_bytes_per_task: cost.wal_bytes,
            client_cpu_us_per_task: cost.client_us,
            nats_cpu_us_per_task: cost.nats_us,
            foreign_cores: cost.foreign_cores,
            ..Self::default()
        }
    }

    /// Sets the percentiles of the latencies.
    pub(super) fn timed(mut self, latencies_us: &mut [u64]) -> Self {
        latencies_us.sort_unstable();
        (self.p50_ms, self.p99_ms) = (percentile_ms(latencies_us, 0.5), percentile_ms(latencies_us, 0.99));
        self
    }
}

/// The percentile by nearest rank.
fn percentile_ms(sorted_us: &[u64], part: f64) -> Option<f64> {
    let rank = (sorted_us.len() as f64 * part).ceil() as usize;
    Some(*sorted_us.get(rank.saturating_sub(1))? as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let sorted: Vec<u64> = (1..=200).map(|ms| ms * 1_000).collect();
        assert_eq!(percentile_ms(&sorted, 0.5), Some(100.0));
        assert_eq!(percentile_ms(&sorted, 0.99), Some(198.0));
        assert_eq!(percentile_ms(&[7_000], 0.99), Some(7.0));
        assert_eq!(percentile_ms(&[], 0.5), None);
    }
}
