//! Gauges of a worker: most are sums over its partitions, so that the number of series does not
//! grow with them.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use metrics::gauge;
use model::{PartitionId, WaitReason};
use partition::{Stats, WaitCounts};
use runtime::metrics::MetricDescription;

/// Gauges of one partition.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PartitionGauges {
    pub(crate) stats: Stats,
    /// Entries of the stream that are not read yet.
    pub(crate) unread: u64,
    /// Time since the last read entry was stored, ms; 0 if no entry is unread.
    pub(crate) lag_ms: i64,
}

type OfOne = fn(&PartitionGauges) -> f64;

/// One series per partition, removed when the worker releases the partition.
const OF_PARTITIONS: [(MetricDescription, OfOne); 6] = [
    (gauge_of_partition("antiphon_worker_read_sequence", "Last stream sequence read"), |it| {
        it.stats.last_seq as f64
    }),
    (
        gauge_of_partition(
            "antiphon_worker_checkpoint_sequence",
            "Last checkpoint; the difference from the last stream sequence read is the lag",
        ),
        |it| it.stats.checkpoint as f64,
    ),
    (
        gauge_of_partition(
            "antiphon_worker_replay_ratio",
            "Ratio of what a new owner would have to read again to what is allowed: the highest of entries, bytes and \
             keys of commands",
        ),
        |it| it.stats.replay_permille as f64 / 1_000.0,
    ),
    (
        gauge_of_partition("antiphon_worker_oldest_message_age_seconds", "Age of the oldest open message"),
        |it| it.stats.oldest_ms as f64 / 1_000.0,
    ),
    (gauge_of_partition("antiphon_worker_queued_tasks", "Tasks in memory"), |it| {
        it.stats.queued_tasks as f64
    }),
    (
        gauge_of_partition(
            "antiphon_worker_reader_lag_entries",
            "Entries of the stream that are not read yet",
        ),
        |it| it.unread as f64,
    ),
];

/// One series each, the sum over the held partitions.
const SUMS: [(MetricDescription, OfOne); 10] = [
    (
        MetricDescription::gauge("antiphon_worker_open_messages", "Messages in memory (active buffers)"),
        |it| it.stats.open as f64,
    ),
    (MetricDescription::gauge("antiphon_worker_buffered_chunks", "Chunks of open messages"), |it| {
        it.stats.chunks as f64
    }),
    (MetricDescription::gauge("antiphon_worker_buffered_bytes", "Bytes of open messages"), |it| {
        it.stats.bytes as f64
    }),
    (
        MetricDescription::gauge(
            "antiphon_worker_pending_commits",
            "Ended inputs that wait for their commit, and new messages that wait for the store's answer whether they \
             have already ended",
        ),
        |it| it.stats.uncommitted as f64,
    ),
    (MetricDescription::gauge("antiphon_worker_active_turns", "Turns in progress"), |it| {
        it.stats.active_turns as f64
    }),
    (
        MetricDescription::gauge(
            "antiphon_worker_backing_off_agents",
            "Agents whose task has failed and whose backoff has not ended",
        ),
        |it| it.stats.backing_off as f64,
    ),
    (
        MetricDescription::gauge(
            "antiphon_worker_runnable_agents",
            "Agents whose first task is in progress or can begin",
        ),
        |it| it.stats.runnable_agents as f64,
    ),
    (MetricDescription::gauge("antiphon_worker_timers", "Timers in memory: those that are due next"), |it| {
        it.stats.timers as f64
    }),
    (
        MetricDescription::gauge(
            "antiphon_worker_outbox_pending",
            "Batches of the outbox that are not published yet",
        ),
        |it| it.stats.unsent as f64,
    ),
    (
        MetricDescription::gauge(
            "antiphon_worker_deduplication_bytes",
            "Bytes of the remembered keys of recent messages (at most 256 KiB per partition) and commands (until the \
             checkpoint has passed them), by which repetitions are recognised",
        ),
        |it| it.stats.remembered_bytes as f64,
    ),
];

type WaitsOfOne = fn(&PartitionGauges) -> WaitCounts;

/// One series per reason, the sum over the held partitions.
const BY_REASON: [(MetricDescription, WaitsOfOne, &[WaitReason]); 2] = [
    (
        MetricDescription::gauge(
            "antiphon_worker_waiting_turns",
            "Inputs that wait for their thread, by `reason`: `head_of_line`, `backoff`, `paused`, `budget`, `limited`",
        )
        .by(&["reason"]),
        |it| it.stats.waiting_turns,
        &[
            WaitReason::HeadOfLine,
            WaitReason::Backoff { for_ms: 0 },
            WaitReason::Paused,
            WaitReason::Budget { for_ms: 0 },
            WaitReason::Limited { for_ms: 0 },
        ],
    ),
    (
        MetricDescription::gauge(
            "antiphon_worker_waiting_agents",
            "Agents whose first task cannot begin, by `reason`: `backoff`, `paused`, `budget`, `limited`",
        )
        .by(&["reason"]),
        |it| it.stats.waiting_agents,
        &[
            WaitReason::Backoff { for_ms: 0 },
            WaitReason::Paused,
            WaitReason::Budget { for_ms: 0 },
            WaitReason::Limited { for_ms: 0 },
        ],
    ),
];

/// One series each, the maximum over the held partitions.
const HIGHEST: [(MetricDescription, OfOne); 2] = [
    (
        MetricDescription::gauge(
            "antiphon_worker_oldest_runnable_task_age_seconds",
            "Age of the oldest task that can begin and has not begun; the maximum over the worker's partitions",
        ),
        |it| it.stats.oldest_runnable_ms as f64 / 1_000.0,
    ),
    (
        MetricDescription::gauge(
            "antiphon_worker_reader_lag_seconds",
            "Age of the last entry read while others are unread; the maximum over the worker's partitions",
        ),
        |it| it.lag_ms as f64 / 1_000.0,
    ),
];

const CHUNKS_PER_MESSAGE: MetricDescription =
    MetricDescription::gauge("antiphon_worker_chunks_per_message", "Average chunks per open message");

const fn gauge_of_partition(name: &'static str, help: &'static str) -> MetricDescription {
    MetricDescription::gauge(name, help).by(&["partition"])
}

/// Descriptions for the metrics endpoint and the reference.
pub(crate) fn described() -> impl Iterator<Item = MetricDescription> {
    let of_partitions = OF_PARTITIONS.iter().chain(&SUMS).chain(&HIGHEST).map(|(metric, _)| *metric);
    of_partitions.chain(BY_REASON.iter().map(|(metric, ..)| *metric)).chain([CHUNKS_PER_MESSAGE])
}

/// Last reported figures of the held partitions.
#[derive(Debug, Default)]
pub(crate) struct WorkerGauges {
    held: Mutex<BTreeMap<String, PartitionGauges>>,
}

impl WorkerGauges {
    pub(crate) fn set(&self, partition: &str, now: PartitionGauges) {
        for (metric, value) in OF_PARTITIONS {
            gauge!(metric.name, "partition" => partition.to_owned()).set(value(&now));
        }
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.insert(partition.to_owned(), now);
        set_totals(&held);
    }

    /// Held partitions that have reported.
    pub(crate) fn partitions(&self) -> Vec<PartitionId> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.keys().filter_map(|partition| partition.parse().ok()).map(PartitionId).collect()
    }

    pub(crate) fn remove(&self, partition: &str) {
        for (metric, _) in OF_PARTITIONS {
            // A gauge with NaN is not shown.
            gauge!(metric.name, "partition" => partition.to_owned()).set(f64::NAN);
        }
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.remove(partition);
        set_totals(&held);
    }
}

fn set_totals(held: &BTreeMap<String, PartitionGauges>) {
    let sum = |value: OfOne| held.values().map(value).sum::<f64>();
    for (metric, value) in SUMS {
        gauge!(metric.name).set(sum(value));
    }
    for (metric, waits, reasons) in BY_REASON {
        for reason in reasons {
            let count: usize = held.values().map(|it| waits(it).of(*reason)).sum();
            gauge!(metric.name, "reason" => reason.name()).set(count as f64);
        }
    }
    for (metric, value) in HIGHEST {
        gauge!(metric.name).set(held.values().map(value).fold(0.0, f64::max));
    }
    let (open, chunks) = (sum(|it| it.stats.open as f64), sum(|it| it.stats.chunks as f64));
    gauge!(CHUNKS_PER_MESSAGE.name).set(if open == 0.0 { 0.0 } else { chunks / open });
}
