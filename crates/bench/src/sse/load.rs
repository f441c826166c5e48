//! The steady load of a measurement.

use std::time::Duration;

/// Of our fleet: the default.
pub(super) const PARTITIONS: u16 = 8;

/// A steady load.
#[derive(Debug, Clone, Copy)]
pub(super) struct SteadyLoad {
    pub(super) threads: usize,
    /// Of all threads together; they are spread evenly.
    pub(super) viewers: usize,
    /// Every so manieth of them reads slowly.
    pub(super) slow_every: Option<usize>,
    /// Events per second of each thread, and how many of them come at once.
    pub(super) rate: f64,
    pub(super) burst: u32,
    /// Of an event's text.
    pub(super) bytes: usize,
    pub(super) warm_up: Duration,
    pub(super) duration: Duration,
}
