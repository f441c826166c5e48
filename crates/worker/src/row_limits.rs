//! Deletes rows kept for people beyond the configured age or size.

use std::time::Duration;

use metrics::{counter, gauge};
use store::{Kept, KeptBound, Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::refusals::{Refusals, RefusedOperation};

/// Maximum number of rows in one statement.
const MAX_ROWS: u32 = 20_000;

/// Maximum age and size of one kind of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepLimits {
    /// Rows older than this are deleted.
    pub max_age: Duration,
    /// The newest rows up to this many bytes are kept; older ones are deleted.
    pub max_bytes: u64,
}

/// Limits of all kinds of kept rows, and the interval of checks.
#[derive(Debug, Clone)]
pub struct KeepConfig {
    /// Interval between two rounds.
    pub every: Duration,
    /// Limits in the order of [`Kept::ALL`].
    pub limits: [KeepLimits; 7],
}

impl Default for KeepConfig {
    fn default() -> Self {
        let limits = |days: u64, mebibytes: u64| KeepLimits {
            max_age: Duration::from_secs(days * 86_400),
            max_bytes: mebibytes << 20,
        };
        let limits = [
            limits(30, 1_024),
            limits(90, 256),
            limits(90, 256),
            limits(30, 1_024),
            limits(365, 1_024),
            limits(90, 64),
            limits(90, 64),
        ];
        Self { every: Duration::from_secs(60), limits }
    }
}

/// Enforces the limits until `stop`. Every worker does it: it is cheap and needs no coordinator.
pub(crate) async fn enforce_row_limits(
    store: Store,
    refusals: Refusals,
    config: KeepConfig,
    stop: CancellationToken,
) {
    let mut refused = [const { None }; Kept::ALL.len()];
    loop {
        // Spreads workers that were started at the same time.
        let pause = config.every.mul_f64(rand::random_range(0.5..=1.0));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stop.cancelled() => return,
        }
        round(&store, &refusals, &mut refused, &config, &stop).await;
    }
}

/// The next round makes up for failures, and a failure does not stop the other limits.
async fn round(
    store: &Store,
    refusals: &Refusals,
    refused: &mut [Option<RefusedOperation>; Kept::ALL.len()],
    config: &KeepConfig,
    stop: &CancellationToken,
) {
    for ((kept, limits), refused) in Kept::ALL.into_iter().zip(config.limits).zip(refused) {
        let bounds = [("age", KeptBound::Age(limits.max_age)), ("bytes", KeptBound::Bytes(limits.max_bytes))];
        for (name, bound) in bounds {
            let enforced = enforce(store, kept, (name, bound), stop).await;
            // The bound of bytes comes second: its success must not hide a failure of the first.
            if enforced.is_err() || name == "age" {
                refusals.of_round(refused, kept.name(), &enforced);
            }
            match enforced {
                Ok(()) => {}
                Err(error) if !error.is_answer() => {
                    tracing::debug!(%error, "Postgres is away: a round over what is kept was not finished");
                    return;
                }
                Err(error) => {
                    tracing::warn!(kept = kept.name(), bound = name, %error, "a bound of what is kept was not enforced")
                }
            }
        }
    }
    match store.kept_bytes().await {
        Ok(found) => {
            for (kept, bytes) in found {
                gauge!(crate::metrics::RETAINED_BYTES, "kept" => kept.name()).set(bytes as f64);
            }
        }
        Err(error) => tracing::debug!(%error, "how much is kept was not read"),
    }
}

async fn enforce(
    store: &Store,
    kept: Kept,
    (name, bound): (&'static str, KeptBound),
    stop: &CancellationToken,
) -> Result<(), StoreError> {
    while !stop.is_cancelled() {
        let gone = store.delete_beyond(kept, bound, MAX_ROWS).await?;
        counter!(crate::metrics::DELETED_ROWS, "kept" => kept.name(), "bound" => name).increment(gone);
        if gone > 0 {
            tracing::info!(
                kept = kept.name(),
                bound = name,
                rows = gone,
                "what was kept for long enough was deleted"
            );
        }
        if gone < u64::from(MAX_ROWS) {
            break;
        }
    }
    Ok(())
}
