//! Does the erasures that clients have requested, one at a time in each worker.
//!
//! Each erasure has a lease. This loop renews the lease, and stores with each renewal what was
//! removed so far. Another worker takes the erasure over when this one dies. A worker whose lease
//! expired during a pause marks no more threads, and deletes only rows of threads that bear its own
//! mark.

use std::time::Duration;

use erasing::{EraseError, Erasure, ErasureProgress, Receipt};
use metrics::counter;
use serde_json::{Value, json};
use store::{AttemptEnd, ClaimedErasure, ErasureHold, Store, StoreError};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::metrics::ERASURES;

/// Interval at which workers look for an erasure: a new one waits little longer than this.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Time that owners have in each attempt to read the streams to their ends.
const WAIT: Duration = Duration::from_secs(60);
/// Maximum number of attempts.
const MAX_ATTEMPTS: u32 = 20;
/// Maximum pause between two attempts.
const MAX_PAUSE: Duration = Duration::from_secs(300);

/// What has become of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    /// Some data is left: the erasure is tried again.
    Again,
    Failed,
    /// Another worker holds the erasure, or its request was erased.
    Lost,
}

impl Outcome {
    /// Name in metrics.
    const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Again => "again",
            Self::Failed => "failed",
            Self::Lost => "lost",
        }
    }
}

/// Does erasures until `stop`.
pub(crate) async fn work(context: Context, stop: CancellationToken) {
    let (mut refused, mut pause) = (None, LOOK_INTERVAL);
    loop {
        // Spreads workers that were started at the same time.
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = sleep(pause.mul_f64(rand::random_range(0.5..=1.0))) => {}
        }
        let worked = round(&context, &stop).await;
        context.refusals.of_round(&mut refused, "erasing", &worked);
        pause = match worked {
            Ok(Some((outcome, is_preview))) => {
                // A dry run erases nothing.
                if !is_preview {
                    counter!(ERASURES, "outcome" => outcome.name()).increment(1);
                }
                Duration::ZERO
            }
            Ok(None) => LOOK_INTERVAL,
            Err(error) => {
                tracing::debug!(%error, "no erasure could be looked for");
                LOOK_INTERVAL
            }
        };
    }
}

/// Does the erasure that is due, if there is one, and returns whether it was a dry run.
async fn round(context: &Context, stop: &CancellationToken) -> Result<Option<(Outcome, bool)>, StoreError> {
    let config = &context.config;
    let claimed = context.store.claim_erasure(&config.worker_id, config.lease).await?;
    let Some(held) = claimed else { return Ok(None) };
    Ok(Some((one(context, &held, stop).await?, held.is_preview)))
}

async fn one(
    context: &Context,
    held: &ClaimedErasure,
    stop: &CancellationToken,
) -> Result<Outcome, StoreError> {
    let (store, config) = (&context.store, &context.config);
    tracing::info!(erasure = %held.id, attempt = held.attempt, is_preview = held.is_preview, "an erasure begins");
    // A dry run counts everything in each attempt; an erasure adds to the counts of its earlier
    // attempts.
    let progress = match held.is_preview {
        true => ErasureProgress::default(),
        false => ErasureProgress::from(held.counts.clone()),
    };
    if held.attempt > MAX_ATTEMPTS {
        let error =
            format!("no worker has come to its end in {MAX_ATTEMPTS} attempts: see the logs of workers");
        return end(store, held, &progress, AttemptEnd::Failed { error, receipt: None }).await;
    }
    let attempt_end = tokio::select! {
        result = attempt(context, held, &progress) => after_attempt(held, result),
        () = until_lost(store, held, config.lease, &progress) => return Ok(Outcome::Lost),
        () = stop.cancelled() => {
            let error = "the worker was stopped; another one continues".to_owned();
            AttemptEnd::Again { error, after: Duration::ZERO }
        }
    };
    end(store, held, &progress, attempt_end).await
}

async fn attempt(
    context: &Context,
    held: &ClaimedErasure,
    progress: &ErasureProgress,
) -> Result<Receipt, EraseError> {
    let store = context.store.patient()?;
    let hold = Some(ErasureHold { id: held.id.clone(), attempt: held.attempt });
    let erasure = Erasure { data: held.data.clone(), actor: held.actor.clone(), wait: WAIT, hold };
    let done = match held.is_preview {
        true => erasing::preview(&store, Some(&context.bus), &erasure, progress).await,
        false => erasing::erase(&store, Some(&context.bus), &erasure, progress).await,
    };
    store.close().await;
    done
}

/// Keeps the lease and stores what was removed so far. Returns when the lease is lost.
async fn until_lost(store: &Store, held: &ClaimedErasure, lease: Duration, progress: &ErasureProgress) {
    let mut renewed_at = Instant::now();
    loop {
        sleep(lease / 3).await;
        let sent = Instant::now();
        match store.renew_erasure(held, lease, &progress.counts()).await {
            Ok(true) => renewed_at = sent,
            Ok(false) => return,
            Err(error) => tracing::debug!(erasure = %held.id, %error, "the lease was not renewed"),
        }
        if renewed_at.elapsed() >= lease {
            return;
        }
    }
}

fn after_attempt(held: &ClaimedErasure, result: Result<Receipt, EraseError>) -> AttemptEnd {
    let (error, receipt) = match result {
        Ok(receipt) => match receipt.left() {
            None => return AttemptEnd::Done { receipt: written(held, &receipt) },
            Some(left) => (left, Some(written(held, &receipt))),
        },
        Err(error) => (error.to_string(), None),
    };
    match held.attempt < MAX_ATTEMPTS {
        true => AttemptEnd::Again { error, after: pause_after(held.attempt) },
        false => AttemptEnd::Failed { error, receipt },
    }
}

/// The receipt, with the time that the erasure has waited for this attempt. The actor is only in
/// the row, where the erasure of a user finds and removes it.
fn written(held: &ClaimedErasure, receipt: &Receipt) -> Value {
    let mut receipt = receipt.to_json();
    receipt.remove("actor");
    if let Some(Value::Object(spent)) = receipt.get_mut("spent_ms") {
        spent.insert("queue".to_owned(), json!(held.waited_ms));
    }
    Value::Object(receipt)
}

/// Doubles with each attempt.
fn pause_after(attempt: u32) -> Duration {
    Duration::from_secs(1 << attempt.min(16)).min(MAX_PAUSE)
}

async fn end(
    store: &Store,
    held: &ClaimedErasure,
    progress: &ErasureProgress,
    end: AttemptEnd,
) -> Result<Outcome, StoreError> {
    let outcome = match &end {
        AttemptEnd::Done { .. } => Outcome::Done,
        AttemptEnd::Again { error, .. } => {
            tracing::warn!(erasure = %held.id, attempt = held.attempt, error, "something is left to erase; it is tried again");
            Outcome::Again
        }
        AttemptEnd::Failed { error, .. } => {
            tracing::error!(erasure = %held.id, error, "something is left to erase, and it is not tried again");
            Outcome::Failed
        }
    };
    let is_ours = store.end_attempt(held, &progress.counts(), &end).await?;
    tracing::info!(erasure = %held.id, outcome = outcome.name(), is_ours, "an attempt to erase has ended");
    Ok(if is_ours { outcome } else { Outcome::Lost })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit() {
        let seconds = [1, 2, 5, 8, 9, MAX_ATTEMPTS].map(|attempt| pause_after(attempt).as_secs());
        assert_eq!(seconds, [2, 4, 32, 256, 300, 300]);
    }
}
