//! Deletes rows that are kept for a fixed time, so that their tables stay bounded: ids of tasks,
//! idempotency keys, response parameters, ended timers, usage and others.

use std::collections::BTreeMap;
use std::time::Duration;

use store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::refusals::{Refusals, RefusedOperation};

/// Delay of the first round; short, because some workers do not live long.
const FIRST: Duration = Duration::from_secs(4);
/// Interval between rounds. Every worker does it: it is cheap and needs no coordinator.
const EVERY: Duration = Duration::from_secs(600);
/// Retention of response parameters, as long as OpenAI keeps responses. The answers themselves stay
/// as long as their threads.
const KEEP_RESPONSES: Duration = Duration::from_secs(30 * 86_400);
/// Retention of failures: time that a client may be away and still learn of a failed message.
const KEEP_FAILURES: Duration = Duration::from_secs(30 * 86_400);
/// Retention of the ids of messages deleted by retention, in case they are sent again.
const KEEP_RETIRED: Duration = Duration::from_secs(30 * 86_400);
/// Retention of an unchanged reasoning session.
const KEEP_REASONING: Duration = Duration::from_secs(30 * 86_400);
/// Retention of timers that have fired or ended, to show why an agent wrote.
const KEEP_TIMERS: Duration = Duration::from_secs(90 * 86_400);
/// Retention of facts beyond the thousand newest of a user.
const KEEP_FACTS: Duration = Duration::from_secs(730 * 86_400);
/// Retention of single model calls: a year, and the month in which its bill is checked. Daily sums
/// remain.
const KEEP_USAGE: Duration = Duration::from_secs(400 * 86_400);
/// Retention of daily sums: as long as books must be kept in most countries.
const KEEP_USAGE_DAYS: Duration = Duration::from_secs(3_653 * 86_400);
/// Maximum number of sessions in one statement, which has 5 s: each is deleted with all its
/// messages.
const MOST_SESSIONS: u32 = 1;
/// Maximum number of rows in one statement.
const MOST: u32 = 5_000;

/// Deletes expired rows in rounds until `stop`.
pub(crate) async fn delete_expired(
    store: Store,
    refusals: Refusals,
    idempotency_key_ttl: Duration,
    stop: CancellationToken,
) {
    let mut pause = FIRST;
    let mut expiry = Expiry { refusals, stop, refused: BTreeMap::new() };
    loop {
        // Spreads workers that were started at the same time.
        let pause = std::mem::replace(&mut pause, EVERY).mul_f64(rand::random_range(0.5..=1.0));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = expiry.stop.cancelled() => return,
        }
        expiry.until_less("the ids of old tasks", || store.purge_task_ids(MOST)).await;
        expiry.until_less("old idempotency keys", || store.purge_keys(idempotency_key_ttl, MOST)).await;
        expiry.until_less("old failures", || store.purge_failed_messages(KEEP_FAILURES, MOST)).await;
        expiry
            .until_less("messages that were deleted long ago", || {
                store.purge_expired_messages(KEEP_RETIRED, MOST)
            })
            .await;
        expiry.until_less("old responses", || store.purge_responses(KEEP_RESPONSES, MOST)).await;
        expiry.until_less("old timers", || store.purge_timers(KEEP_TIMERS, MOST)).await;
        expiry.until_less("old facts", || store.purge_facts(KEEP_FACTS, MOST)).await;
        expiry.until_less("calls of long ago", || store.roll_up_usage(KEEP_USAGE, MOST)).await;
        expiry
            .until_less("sums of usage of ten years ago", || store.purge_usage_days(KEEP_USAGE_DAYS, MOST))
            .await;
        expiry
            .until_fewer(MOST_SESSIONS, "old reasoning sessions", || {
                store.purge_reasoning(KEEP_REASONING, MOST_SESSIONS)
            })
            .await;
    }
}

struct Expiry {
    refusals: Refusals,
    stop: CancellationToken,
    /// Deletions that the store refused in the last round.
    refused: BTreeMap<&'static str, Option<RefusedOperation>>,
}

impl Expiry {
    async fn until_less<F: Future<Output = Result<u64, StoreError>>>(
        &mut self,
        what: &'static str,
        forget: impl FnMut() -> F,
    ) {
        self.until_fewer(MOST, what, forget).await;
    }

    /// Repeats the deletion while it deletes the maximum number of rows.
    async fn until_fewer<F: Future<Output = Result<u64, StoreError>>>(
        &mut self,
        most: u32,
        what: &'static str,
        mut forget: impl FnMut() -> F,
    ) {
        while !self.stop.is_cancelled() {
            let forgotten = forget().await;
            self.refusals.of_round(self.refused.entry(what).or_default(), what, &forgotten);
            match forgotten {
                Ok(forgotten) if forgotten == u64::from(most) => {}
                Ok(_) => return,
                Err(error) if self.stop.is_cancelled() => {
                    return tracing::debug!(%error, "{what} were not forgotten");
                }
                // Usually the next round makes up for it.
                Err(error) => return tracing::warn!(%error, "{what} were not forgotten"),
            }
        }
    }
}
