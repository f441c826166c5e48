//! What a running erasure has removed so far, and what its time was spent on.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use store::{ErasedCounts, ErasedRows};
use tokio::time::Instant;

/// Counts and times, shared with whatever reports them while the erasure runs. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct ErasureProgress(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    counts: ErasedCounts,
    spent: BTreeMap<&'static str, Duration>,
}

/// What an erasure waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Share {
    /// Statements that delete rows.
    Postgres,
    /// Waiting for owners to read the streams to their ends, and purges.
    Streams,
    /// Waiting for processes that still act on data in their memory.
    Caches,
}

impl Share {
    const fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Streams => "streams",
            Self::Caches => "caches",
        }
    }
}

impl ErasureProgress {
    /// Continues from the counts of earlier runs of the same erasure.
    pub fn from(counts: ErasedCounts) -> Self {
        Self(Arc::new(Mutex::new(State { counts, spent: BTreeMap::new() })))
    }

    /// What has been removed so far.
    pub fn counts(&self) -> ErasedCounts {
        self.with(|state| state.counts.clone())
    }

    pub(crate) fn add_rows(&self, rows: &ErasedRows) {
        self.with(|state| {
            for (table, rows) in rows {
                *state.counts.tables.entry(table.clone()).or_default() += rows;
            }
        });
    }

    /// Adds the rows of a tenant. They include rows of its threads, which were counted before; only
    /// the audit entries are new.
    pub(crate) fn add_rows_of_tenant(&self, rows: &ErasedRows) {
        self.with(|state| {
            for (table, rows) in rows {
                let counted = state.counts.tables.entry(table.clone()).or_default();
                *counted = if table == "audit_log" { *counted + rows } else { (*rows).max(*counted) };
            }
        });
    }

    pub(crate) fn add_entries(&self, stream: &str, entries: u64) {
        self.with(|state| *state.counts.streams.entry(stream.to_owned()).or_default() += entries);
    }

    /// An earlier run may have found more threads, whose marks are gone by now.
    pub(crate) fn set_threads(&self, threads: usize) {
        self.with(|state| state.counts.threads = state.counts.threads.max(threads as u64));
    }

    /// Runs `part` and adds its time to a share.
    pub(crate) async fn timed<T>(&self, share: Share, part: impl Future<Output = T>) -> T {
        let began = Instant::now();
        let done = part.await;
        self.with(|state| *state.spent.entry(share.name()).or_default() += began.elapsed());
        done
    }

    /// Milliseconds of this run by share.
    pub(crate) fn spent_ms(&self) -> BTreeMap<&'static str, u64> {
        let ms = |spent: &Duration| u64::try_from(spent.as_millis()).unwrap_or(u64::MAX);
        self.with(|state| state.spent.iter().map(|(share, spent)| (*share, ms(spent))).collect())
    }

    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
