//! A request to erase.

use std::time::Duration;

use store::{ErasedData, ErasureHold};

/// What is erased, in whose name, and how long owners may take to read the streams.
#[derive(Debug, Clone)]
pub struct Erasure {
    pub data: ErasedData,
    /// The actor in marks, audit entries and the receipt.
    pub actor: String,
    /// Timeout for workers to read the streams up to their ends.
    pub wait: Duration,
    /// The worker's claim on the request; `None` for the command that works on the database.
    pub hold: Option<ErasureHold>,
}
