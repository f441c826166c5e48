//! Statements that Postgres refuses for good.
//!
//! Whatever is read or written for many at once goes through [`partition::bisect::parts`]: a refused statement is halved until the one item is alone that the
//! store refuses, and that item fails. The caller decides what its failure is. What has no such item, as with a table that is missing, is tried
//! again and shown meanwhile: a gauge, an alert, and a worker that is not ready ([`Refusals`]).

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metrics::{counter, gauge};
use partition::bisect::parts;
use runtime::Health;
use store::{Disposition, StoreError};

use crate::metrics::{REFUSED_ITEMS, REFUSED_OPERATIONS};

/// How often a statement is tried again that meets something damaged in the store, before that counts as refused.
pub(crate) const TRIES_OF_DAMAGE: u32 = 4;
/// The condition of readiness.
const CONDITION: &str = "refused by Postgres";

/// What happens for many items at once, as the metric names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RefusedItem {
    /// A turn that would begin: it fails.
    Turn,
    /// The facts that a turn would begin with: it begins without them.
    Memory,
    /// A message that is looked up: it fails.
    Message,
    /// A command that is looked up: it becomes a dead letter.
    Command,
    /// A queue that is read: it is read again later, alone.
    Queue,
    /// A timer that is due: it ends.
    Timer,
    /// A vector of a fact: the fact has none.
    Vector,
    /// A thread or an agent in a round of retention: the round goes on without it.
    Retention,
    /// A tenant whose budgets are counted: the others are counted without it.
    Budgets,
    /// A change of what runs under a limit: it is dropped.
    Limit,
    /// An open message or input that is saved: it fails.
    Save,
    /// A task that is committed: it becomes a dead letter. Or a call of a model: the ledger lacks it.
    Write,
}

impl RefusedItem {
    /// The name in metrics.
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

/// Notes an item that the store has refused alone, and that has failed for it.
pub(crate) fn note_item(item: RefusedItem, which: &dyn Display, error: &dyn Display) {
    counter!(REFUSED_ITEMS, "item" => item.name()).increment(1);
    let item = item.name();
    tracing::error!(item, which = ?which.to_string(), error = ?error.to_string(), "Postgres refuses one item for good: it fails alone");
}

/// As [`parts`], of statements that answer with something for each item, and of which other errors end it.
///
/// # Errors
/// An error that no item is the cause of.
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

/// What is refused for good and is tried again all the same. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Refusals(Arc<RefusedState>);

#[derive(Debug)]
struct RefusedState {
    health: Health,
    /// By what is tried: how many, and the last error.
    operations: Mutex<BTreeMap<&'static str, (usize, String)>>,
}

impl Refusals {
    pub(crate) fn new(health: Health) -> Self {
        Self(Arc::new(RefusedState { health, operations: Mutex::default() }))
    }

    /// An operation is tried again until the value is dropped.
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

    /// What came of a round: an operation that is refused counts until a later round of it is not. `kept` is what this has returned last.
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
            // One line of the answer to a probe.
            let error: String =
                error.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect();
            format!("{count} operations are tried again and again, first of them {what}: {error}")
        });
        self.0.health.set_fault(CONDITION, fault);
    }
}

/// An operation that the store refuses, until it is dropped.
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

/// Neither waiting nor another connection cures it.
pub(crate) fn is_refusal(error: &StoreError) -> bool {
    let is_permanent =
        matches!(error.disposition(), Disposition::Data | Disposition::Damaged | Disposition::Fatal);
    is_permanent && !matches!(error, StoreError::Stopping)
}

/// Counts the tries of a statement that meets something damaged.
#[derive(Debug, Default)]
pub(crate) struct DamagedTries(AtomicU32);

impl DamagedTries {
    /// Whether the error is the answer, and no reason to try again: an item of the statement is its cause.
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
