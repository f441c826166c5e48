//! Deletes operational records that are older or larger than their limits. Every worker does this:
//! the work is small and needs no coordinator.

use std::time::Duration;

use metrics::{counter, gauge};
use store::{CleanupKind, CleanupLimit, Store, StoreError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::refusals::{Refusals, RefusedOperation};

/// Pause before the first round: short, because some workers do not live long.
const FIRST_PAUSE: Duration = Duration::from_secs(4);
/// Number of rounds of sizes for each round of ages: age alone is not urgent.
const ROUNDS_BETWEEN_AGES: u32 = 10;
/// Maximum interval between rounds of ages, whatever the interval of sizes.
const MAX_AGE_INTERVAL: Duration = Duration::from_secs(600);

/// The limits of one kind of record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CleanupRule {
    /// What is deleted.
    pub kind: CleanupKind,
    /// Older records are deleted.
    pub max_age: Duration,
    /// If the records take more than this number of bytes on disk, the oldest are deleted; `None`:
    /// no limit.
    pub max_bytes: Option<u64>,
}

impl CleanupRule {
    /// A rule with ages in days and sizes in bytes.
    pub const fn new(kind: CleanupKind, days: u32, max_bytes: Option<u64>) -> Self {
        Self { kind, max_age: Duration::from_secs(days as u64 * 86_400), max_bytes }
    }
}

/// The limits of all kinds, and how often they are enforced.
#[derive(Debug, Clone)]
pub struct CleanupConfig {
    /// Interval of rounds.
    pub every: Duration,
    /// One rule for each kind.
    pub rules: Vec<CleanupRule>,
}

impl Default for CleanupConfig {
    fn default() -> Self {
        use CleanupKind as Kind;
        const fn sized(kind: CleanupKind, days: u32, mebibytes: u64) -> CleanupRule {
            CleanupRule::new(kind, days, Some(mebibytes << 20))
        }
        const fn aged(kind: CleanupKind, days: u32) -> CleanupRule {
            CleanupRule::new(kind, days, None)
        }
        let rules = vec![
            sized(Kind::CompletedTasks, 30, 1_024),
            sized(Kind::FailedTasks, 90, 256),
            sized(Kind::FailedTurns, 90, 256),
            sized(Kind::DeadLetters, 30, 1_024),
            sized(Kind::Audit, 365, 1_024),
            sized(Kind::ErasedThreads, 90, 64),
            sized(Kind::ErasedTenants, 90, 64),
            sized(Kind::Erasures, 90, 64),
            aged(Kind::TaskIds, 7),
            aged(Kind::IdempotencyKeys, 1),
            // A client that was away for up to this time still learns that a message failed
            // meanwhile.
            aged(Kind::FailedMessages, 30),
            aged(Kind::ExpiredMessages, 30),
            // OpenAI keeps responses for the same time.
            aged(Kind::Responses, 30),
            aged(Kind::Timers, 90),
            aged(Kind::Facts, 730),
            // A year, and the month in which its bill is checked.
            aged(Kind::ModelCalls, 400),
            // Most countries require business records to be kept for about ten years.
            aged(Kind::UsageDays, 3_653),
            aged(Kind::ReasoningSessions, 30),
            // As long as idempotency keys: a request that is sent again finds its answer.
            aged(Kind::TemporaryThreads, 1),
        ];
        Self { every: Duration::from_secs(60), rules }
    }
}

impl CleanupConfig {
    /// Interval at which ages are checked.
    pub fn age_interval(&self) -> Duration {
        self.every.saturating_mul(ROUNDS_BETWEEN_AGES).min(MAX_AGE_INTERVAL)
    }

    /// Replaces the limits of a kind. A limit in bytes is only for
    /// [sized](CleanupKind::is_sized) kinds.
    pub fn set(&mut self, rule: CleanupRule) {
        debug_assert!(rule.max_bytes.is_none() || rule.kind.is_sized(), "{rule:?}");
        self.rules.retain(|other| other.kind != rule.kind);
        self.rules.push(rule);
    }
}

/// Enforces the limits until `stop`.
pub(crate) async fn enforce_limits(
    store: Store,
    refusals: Refusals,
    config: CleanupConfig,
    stop: CancellationToken,
) {
    let mut refused: Vec<Option<RefusedOperation>> = config.rules.iter().map(|_| None).collect();
    let mut pause = FIRST_PAUSE;
    let mut age_is_due_at = Instant::now();
    loop {
        // Workers that were started together should not clean up at the same time.
        tokio::select! {
            () = tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..=1.0))) => {}
            () = stop.cancelled() => return,
        }
        let is_age_due = Instant::now() >= age_is_due_at;
        if is_age_due {
            age_is_due_at = Instant::now() + config.age_interval();
        }
        pause = config.every.min(MAX_AGE_INTERVAL);
        let is_due = |rule: &CleanupRule| rule.max_bytes.is_some() || is_age_due;
        for (rule, refused) in config.rules.iter().zip(&mut refused).filter(|(rule, _)| is_due(rule)) {
            let enforced = enforce(&store, rule, &stop).await;
            refusals.of_round(refused, rule.kind.name(), &enforced);
            match enforced {
                Ok(()) => {}
                // The next round makes up for it.
                Err(error) if !error.is_answer() => {
                    tracing::debug!(%error, "Postgres does not answer: a round of cleanup was not finished");
                    break;
                }
                // A rule that fails does not prevent the others from being enforced.
                Err(error) => {
                    tracing::warn!(kind = rule.kind.name(), %error, "old records were not deleted")
                }
            }
        }
        show_sizes(&store).await;
    }
}

async fn enforce(store: &Store, rule: &CleanupRule, stop: &CancellationToken) -> Result<(), StoreError> {
    let by_age = until_none_is_left(store, rule.kind, ("age", CleanupLimit::Age(rule.max_age)), stop).await;
    // Both limits are enforced, and the first error is returned.
    let by_bytes = match rule.max_bytes {
        Some(bytes) => {
            until_none_is_left(store, rule.kind, ("bytes", CleanupLimit::Bytes(bytes)), stop).await
        }
        None => Ok(()),
    };
    by_age.and(by_bytes)
}

async fn until_none_is_left(
    store: &Store,
    kind: CleanupKind,
    (bound, limit): (&'static str, CleanupLimit),
    stop: &CancellationToken,
) -> Result<(), StoreError> {
    let most = kind.batch();
    while !stop.is_cancelled() {
        let deleted = store.clean_up(kind, limit, most).await?;
        counter!(crate::metrics::DELETED_ROWS, "kept" => kind.name(), "bound" => bound).increment(deleted);
        if deleted > 0 {
            tracing::info!(kind = kind.name(), bound, rows = deleted, "old records were deleted");
        }
        if deleted < u64::from(most) {
            break;
        }
    }
    Ok(())
}

async fn show_sizes(store: &Store) {
    match store.cleanup_bytes().await {
        Ok(found) => {
            for (kind, bytes) in found {
                gauge!(crate::metrics::RETAINED_BYTES, "kept" => kind.name()).set(bytes as f64);
            }
        }
        Err(error) => tracing::debug!(%error, "the sizes of operational tables were not read"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_one_rule() {
        let config = CleanupConfig::default();
        let kinds: Vec<CleanupKind> = config.rules.iter().map(|rule| rule.kind).collect();
        assert_eq!(kinds, CleanupKind::ALL);
        for rule in &config.rules {
            assert_eq!(rule.max_bytes.is_some(), rule.kind.is_sized(), "{}", rule.kind.name());
        }
    }

    #[test]
    fn a_rule_replaces_that_of_its_kind() {
        let mut config = CleanupConfig::default();
        config.set(CleanupRule::new(CleanupKind::Audit, 7, Some(9)));
        let of_audit: Vec<_> = config.rules.iter().filter(|rule| rule.kind == CleanupKind::Audit).collect();
        assert_eq!(of_audit, [&CleanupRule::new(CleanupKind::Audit, 7, Some(9))]);
        assert_eq!(config.rules.len(), CleanupKind::ALL.len());
    }
}
