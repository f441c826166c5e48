//! Statements that Postgres permanently refuses.
//!
//! Everything read or written for many items at once goes through [`partition::isolate::parts`]. It
//! halves a refused statement until the refused item is alone. That item fails, and the caller
//! decides what its failure means. Refusals without such an item, such as a missing table, are
//! retried and reported meanwhile: by a gauge, an alert, and a worker that is not ready
//! ([`Refusals`]).

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metrics::{counter, gauge};
use partition::isolate::parts;
use runtime::Health;
use store::{Disposition, StoreError};

use crate::metrics::{REFUSED_ITEMS, REFUSED_OPERATIONS};

/// Number of retries of a statement that finds damaged data in the store, before it counts as
/// refused.
pub(crate) const TRIES_OF_DAMAGE: u32 = 4;
/// Name of the readiness condition.
const CONDITION: &str = "refused by Postgres";

/// Kind of a refused item, as named in the metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RefusedItem {
    /// A turn to start: it fails.
    Turn,
    /// Facts for a turn: it starts without them.
    Memory,
    /// A message to look up: it fails.
    Message,
    /// A command to look up: it becomes a dead letter.
    Command,
    /// A queue to read: it is read again later, alone.
    Queue,
    /// A due timer: it ends.
    Timer,
    /// The vector of a fact: the fact has none.
    Vector,
    /// A thread or agent in a round of retention: it is skipped.
    Retention,
    /// A tenant whose budgets are counted: it is skipped.
    Budgets,
    /// A change of turns under limits: it is dropped.
    Limit,
    /// An open message or input to save: it fails.
    Save,
    /// A task in a commit, which becomes a dead letter; or a model call, which is then missing in
    /// the ledger.
    Write,
}

impl RefusedItem {
    /// Name in metrics.
    fn name(self) -> &'static str {
        match self {
            Self::Turn => "turn",
            Self::Memory => "memory",
            Self::Message => "message",
            Self::Command => "command",
            Self::Queue => "queue",
            Self::Timer => "timer",
            Self::Vector => "vector",
            Self::Retention => "retention",
            Self::Budgets => "budgets",
            Self::Limit => "limit",
            Self::Save => "save",
            Self::Write => "write",
        }
    }
}

/// Records that the store refused this item alone, and that the item has failed.
pub(crate) fn note_item(item: RefusedItem, which: &dyn Display, error: &dyn Display) {
    counter!(REFUSED_ITEMS, "item" => item.name()).increment(1);
    let item = item.name();
    tracing::error!(item, which = ?which.to_string(), error = ?error.to_string(), "Postgres refuses one item for good: it fails alone");
}

/// Like [`parts`], for statements that return something for each item. An error that no item causes
/// ends the call.
///
/// # Errors
/// An error that is not caused by an item.
pub(crate) async fn parts_unless_away<'q, Q, A, F>(
    items: &'q [Q],
    ask: impl Fn(&'q [Q]) -> F,
) -> Result<Vec<(&'q [Q], Result<A, StoreError>)>, StoreError>
where
    F: Future<Output = Result<A, StoreError>>,
{
    let ask = |part| {
        let asked = ask(part);
        async {
            match asked.await {
                Err(error) if error.refuses_data() => Ok(Err(error)),
                Err(error) => Err(error),
                Ok(answer) => Ok(Ok(answer)),
            }
        }
    };
    parts(items, ask).await
}

/// Operations that are permanently refused and still retried. Clones share the state.
#[derive(Debug, Clone)]
pub(crate) struct Refusals(Arc<RefusedState>);

#[derive(Debug)]
struct RefusedState {
    health: Health,
    /// Per operation: number of retrying callers, and the last error.
    operations: Mutex<BTreeMap<&'static str, (usize, String)>>,
}

impl Refusals {
    pub(crate) fn new(health: Health) -> Self {
        Self(Arc::new(RefusedState { health, operations: Mutex::default() }))
    }

    /// Reports the operation as retried until the returned value is dropped.
    pub(crate) fn retrying(&self, what: &'static str, error: &dyn Display) -> RefusedOperation {
        let error = error.to_string();
        tracing::error!(error = ?error, what, "refused, and tried again");
        let mut operations = self.operations();
        let (count, last) = operations.entry(what).or_default();
        (*count, *last) = (*count + 1, error);
        self.show(&operations);
        drop(operations);
        RefusedOperation { refusals: self.clone(), what }
    }

    /// Reports the result of a round: an operation is reported as refused until a later round
    /// succeeds. `kept` holds the value of the last refusal.
    pub(crate) fn of_round<T>(
        &self,
        kept: &mut Option<RefusedOperation>,
        what: &'static str,
        came: &Result<T, StoreError>,
    ) {
        match came {
            Ok(_) => *kept = None,
            Err(error) if is_refusal(error) && kept.is_none() => *kept = Some(self.retrying(what, error)),
            Err(_) => {}
        }
    }

    fn operations(&self) -> MutexGuard<'_, BTreeMap<&'static str, (usize, String)>> {
        self.0.operations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show(&self, operations: &BTreeMap<&'static str, (usize, String)>) {
        let count: usize = operations.values().map(|(count, _)| count).sum();
        gauge!(REFUSED_OPERATIONS).set(count as f64);
        let fault = operations.iter().next().map(|(what, (_, error))| {
            // The response of the readiness probe shows the error in one line.
            let error: String =
                error.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect();
            format!("{count} operations are tried again and again, first of them {what}: {error}")
        });
        self.0.health.set_fault(CONDITION, fault);
    }
}

/// A refused operation, reported until it is dropped.
#[derive(Debug)]
pub(crate) struct RefusedOperation {
    refusals: Refusals,
    what: &'static str,
}

impl Drop for RefusedOperation {
    fn drop(&mut self) {
        let mut operations = self.refusals.operations();
        if let Some((count, _)) = operations.get_mut(self.what) {
            *count -= 1;
            if *count == 0 {
                operations.remove(self.what);
            }
        }
        self.refusals.show(&operations);
    }
}

/// True if neither waiting nor another connection cures the error.
pub(crate) fn is_refusal(error: &StoreError) -> bool {
    let is_permanent =
        matches!(error.disposition(), Disposition::Data | Disposition::Damaged | Disposition::Fatal);
    is_permanent && !matches!(error, StoreError::Stopping)
}

/// Counts the tries of a statement that finds damaged data.
#[derive(Debug, Default)]
pub(crate) struct DamagedTries(AtomicU32);

impl DamagedTries {
    /// True if the error is final because an item of the statement causes it.
    pub(crate) fn is_final(&self, error: &StoreError) -> bool {
        match error.disposition() {
            Disposition::Data => true,
            Disposition::Damaged => self.0.fetch_add(1, Ordering::Relaxed) >= TRIES_OF_DAMAGE,
            Disposition::Retry | Disposition::TooSlow | Disposition::Unknown | Disposition::Fatal => false,
        }
    }
}

#[cfg(test)]
mod tests;
