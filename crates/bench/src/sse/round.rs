//! The figures of one round of one server.

use serde::Serialize;

/// One round of one server. A figure that the measurement does not have is 0.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct SseRound {
    /// Events delivered to all subscribers during the measurement.
    pub(super) events: u64,
    /// Measured events published per second.
    pub(super) rate: f64,
    /// Processor time of the process that serves the subscribers, per delivered event.
    pub(super) server_us: f64,
    /// Processor time of the other processes, per published event.
    pub(super) ingest_us: Vec<(&'static str, f64)>,
    /// Latency, from before an event was sent until its subscriber had read it.
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) p999_ms: f64,
    /// Number of events per read of a subscriber. It equals the number per write unless several
    /// writes are waiting.
    pub(super) events_per_read: f64,
    /// Number of bytes per event on the connection.
    pub(super) bytes_per_event: f64,
    /// Resident memory of the server per subscriber, above its memory before the first connection.
    pub(super) resident_per_viewer: f64,
    /// Kernel memory per subscriber, for both ends of the connection.
    pub(super) kernel_per_viewer: Option<f64>,
    /// Processor time of a server that sends only heartbeats, in cores.
    pub(super) idle_cores: f64,
    /// Time in a storm until half of the subscribers had all events, and until all had them.
    pub(super) half_ms: f64,
    pub(super) whole_ms: f64,
    pub(super) lost: u64,
    pub(super) repeated: u64,
    /// Number of connections that the server ended although the subscriber was fast enough.
    pub(super) ends: u64,
    /// Number of connections of slow subscribers that the server ended.
    pub(super) cuts: u64,
    /// Growth of resident memory during the measurement: bytes per second, and the maximum above
    /// the first sample.
    pub(super) memory_slope: f64,
    pub(super) memory_grown: u64,
    /// Load of other processes, in cores.
    pub(super) foreign_cores: f64,
}
