//! The rounds of a backlog.

use crate::{backlog::Backlog, drain::Drain, read::Reading};

/// The rounds of a backlog, with the limits and the worker in turn.
#[derive(Debug)]
pub(super) struct BacklogRounds {
    pub(super) backlog: Backlog,
    pub(super) readings: Vec<Reading>,
    /// Turns per second over one connection and over two, with inserts only.
    pub(super) inserts: Vec<[f64; 2]>,
    pub(super) drains: Vec<Drain>,
}
