//! The steady load of a measurement.

use std::time::Duration;

/// Number of partitions of our fleet: the default.
pub(super) const PARTITIONS: u16 = 8;

#[derive(Debug, Clone, Copy)]
pub(super) struct SteadyLoad {
    pub(super) threads: usize,
    /// Number of subscribers over all threads, which are spread evenly.
    pub(super) viewers: usize,
    /// If `Some(n)`, every n-th subscriber reads slowly.
    pub(super) slow_every: Option<usize>,
    /// Events per second of each thread, and events per burst.
    pub(super) rate: f64,
    pub(super) burst: u32,
    /// Bytes of an event's text.
    pub(super) bytes: usize,
    pub(super) warm_up: Duration,
    pub(super) duration: Duration,
}
