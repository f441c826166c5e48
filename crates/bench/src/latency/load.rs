//! The load of the latency measurement, and its results.

use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::usage::Used;

/// Number of partitions of the measured fleet: the default.
pub(crate) const PARTITIONS: u16 = 8;
/// Number of chunks of each message. Messages follow each other in a thread.
pub(super) const CHUNKS_PER_MESSAGE: u32 = 150;

/// Prefix of the relay's subjects, which partition and thread number follow.
pub(super) const RELAY: &str = "relay";

/// The relay's subject for a thread's chunks, derived from its subject in the fleet,
/// `chunks.<partition>.<thread>`.
pub(super) fn relay_subject(exact: &str, stream: usize) -> Result<String> {
    let partition = exact.split('.').nth(1).context("a subject without a partition")?;
    Ok(format!("{RELAY}.{partition}.{stream}"))
}

/// Duration of the warm-up, whose chunks are checked for loss but not timed. Until every thread is
/// in the middle of a message, memory still grows.
pub(super) const WARM_UP: Duration = Duration::from_secs(8);

#[derive(Debug, Clone, Copy)]
pub(crate) struct LatencyLoad {
    /// Number of threads; each has one subscriber.
    pub(crate) streams: usize,
    /// Chunks per second of each thread.
    pub(crate) rate: f64,
    /// Duration after the warm-up.
    pub(crate) duration: Duration,
}

impl LatencyLoad {
    /// Chunks per second of all threads.
    pub(crate) fn offered(&self) -> f64 {
        self.streams as f64 * self.rate
    }
}

/// The results of one route.
#[derive(Debug, Clone)]
pub(crate) struct PathTiming {
    /// Latencies in milliseconds: the median, the 99th and the 99.9th percentile, and the maximum.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
    /// Numbers of chunks that were sent, that were lost, and that were received twice.
    pub(crate) sent: u64,
    pub(crate) lost: u64,
    pub(crate) repeated: u64,
    /// Measured chunks sent per second.
    pub(crate) rate: f64,
    /// Processor time; `own` is that of the publisher and the receivers.
    pub(crate) used: Used,
}
