//! What one round of one server has measured.

use serde::Serialize;

/// One round of one server. What a measurement does not have is 0.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct SseRound {
    /// Delivered while it was measured, to all viewers.
    pub(super) events: u64,
    /// Published per second, in fact.
    pub(super) rate: f64,
    /// Processor time of what serves the viewers, for each delivered event.
    pub(super) server_us: f64,
    /// Processor time of what else takes part, for each published event.
    pub(super) ingest_us: Vec<(&'static str, f64)>,
    /// From before an event was sent until its viewer had read it.
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) p999_ms: f64,
    /// Events that one read of a viewer brought, which is what one write has brought unless several wait.
    pub(super) events_per_read: f64,
    /// On the connection.
    pub(super) bytes_per_event: f64,
    /// Resident memory of the server, above what it had before the first connection.
    pub(super) resident_per_viewer: f64,
    /// Of the kernel, both ends of the connection.
    pub(super) kernel_per_viewer: Option<f64>,
    /// Processor time of a server with nothing to do but heartbeats.
    pub(super) idle_cores: f64,
    /// Of a storm: until half of the viewers had everything, and until all had.
    pub(super) half_ms: f64,
    pub(super) whole_ms: f64,
    pub(super) lost: u64,
    pub(super) repeated: u64,
    /// Connections of viewers that keep up which the server has ended.
    pub(super) ends: u64,
    /// Connections of slow viewers which the server has ended.
    pub(super) cuts: u64,
    /// Resident memory while it was measured: bytes a second, and at most above the beginning.
    pub(super) memory_slope: f64,
    pub(super) memory_grown: u64,
    /// How much of the machine was used by others.
    pub(super) foreign_cores: f64,
}
