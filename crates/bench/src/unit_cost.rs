//! The cost of one unit of work: a message or a task.

use std::{fmt, time::Duration};

use crate::{drain::Drain, table::median};

/// The cost of one message or task.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct UnitCost {
    /// Microseconds of processor time of the worker.
    pub(super) worker_us: f64,
    /// Microseconds of processor time of Postgres.
    pub(super) postgres_us: f64,
    /// Pages that Postgres accesses.
    pub(super) pages: f64,
    /// Bytes of WAL.
    pub(super) wal_bytes: f64,
}

impl UnitCost {
    pub(super) fn of(drain: &Drain, units: usize) -> Self {
        let of = |name: &str| {
            let times = drain.used.processes.iter().filter(|(it, _)| *it == name);
            times.map(|(_, time)| *time).sum::<Duration>().as_secs_f64() * 1e6 / units as f64
        };
        Self {
            worker_us: of("worker"),
            postgres_us: of("postgres"),
            pages: drain.buffers as f64 / units as f64,
            wal_bytes: drain.wal_bytes as f64 / units as f64,
        }
    }

    /// The median of each figure.
    pub(super) fn median(costs: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| median(costs.iter().map(figure));
        Self {
            worker_us: of(|cost| cost.worker_us),
            postgres_us: of(|cost| cost.postgres_us),
            pages: of(|cost| cost.pages),
            wal_bytes: of(|cost| cost.wal_bytes),
        }
    }
}

impl fmt::Display for UnitCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { worker_us, postgres_us, pages, wal_bytes } = self;
        write!(
            f,
            "worker {worker_us:.1} us, Postgres {postgres_us:.1} us, {pages:.1} pages, {wal_bytes:.0} bytes of WAL"
        )
    }
}
