//! What is sent, and what came of it.

use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::usage::Used;

/// Partitions of the fleet whose latency is measured: the default.
pub(crate) const PARTITIONS: u16 = 8;
/// Messages of so many chunks follow each other in a thread.
pub(super) const CHUNKS_PER_MESSAGE: u32 = 150;

/// What subjects of the relay begin with: partition and thread's number follow.
pub(super) const RELAY: &str = "relay";

/// The subject of a thread's chunks for the relay, by its subject in the fleet, `chunks.<partition>.<thread>`.
pub(super) fn relay_subject(exact: &str, stream: usize) -> Result<String> {
    let partition = exact.split('.').nth(1).context("a subject without a partition")?;
    Ok(format!("{RELAY}.{partition}.{stream}"))
}

/// What is sent in the beginning is checked for loss, but not timed: until every thread is in the middle of a message
/// memory still grows.
pub(super) const WARM_UP: Duration = Duration::from_secs(8);

/// What is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LatencyLoad {
    /// Threads with one viewer each.
    pub(crate) streams: usize,
    /// Chunks per second of each.
    pub(crate) rate: f64,
    /// How long, after the warm-up.
    pub(crate) duration: Duration,
}

impl LatencyLoad {
    /// Chunks a second of all threads.
    pub(crate) fn offered(&self) -> f64 {
        self.streams as f64 * self.rate
    }
}

/// One way, measured.
#[derive(Debug, Clone)]
pub(crate) struct PathTiming {
    /// Milliseconds at the median, the 99th and the 99.9th percentile, and the longest.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
    /// Chunks sent, lost and received again.
    pub(crate) sent: u64,
    pub(crate) lost: u64,
    pub(crate) repeated: u64,
    /// Sent per second, in fact.
    pub(crate) rate: f64,
    /// What it took; `own` is publisher and receivers.
    pub(crate) used: Used,
}
