//! Retries an operation until it succeeds.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Display;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};

use crate::Backoff;

/// The number of operations being retried, by purpose. It is kept so that an unavailable server is
/// logged once, not once per operation.
static WAITING: Mutex<BTreeMap<&str, usize>> = Mutex::new(BTreeMap::new());

/// Calls `operation` until it succeeds, with a delay after each error. `what` is logged once when
/// the first operation of this kind begins to wait, and once when the last one has ended.
///
/// Errors that a retry cannot remove belong in `T`.
pub async fn retry<T, E: Display, F: Future<Output = Result<T, E>>>(
    backoff: Backoff,
    what: &'static str,
    operation: impl FnMut() -> F,
) -> T {
    match retry_until(std::future::pending::<Infallible>(), backoff, what, operation).await {
        Ok(value) => value,
        Err(never) => match never {},
    }
}

/// Does [`retry`], but ends with the output of `stop` when that completes. `stop` is checked only
/// between two tries, so an operation is never cancelled.
///
/// # Errors
/// The output of `stop`.
pub async fn retry_until<T, E: Display, S, F: Future<Output = Result<T, E>>>(
    stop: impl Future<Output = S>,
    mut backoff: Backoff,
    what: &'static str,
    mut operation: impl FnMut() -> F,
) -> Result<T, S> {
    let mut stop = pin!(stop);
    let mut waiting = None;
    loop {
        match operation().await {
            Ok(value) => return Ok(value),
            Err(error) => {
                tracing::debug!(%error, what, "failed; retrying");
                waiting.get_or_insert_with(|| Waiting::begin(what, &error));
            }
        }
        tokio::select! {
            biased;
            stopped = &mut stop => return Err(stopped),
            () = backoff.wait() => {}
        }
    }
}

/// An operation that has failed at least once; dropped when it ends.
struct Waiting(&'static str);

impl Waiting {
    fn begin(what: &'static str, error: &impl Display) -> Self {
        let mut all = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.entry(what).or_default();
        *count += 1;
        if *count == 1 {
            tracing::warn!(%error, what, "failed; retrying until it works");
        }
        Self(what)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut all = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(count) = all.get_mut(self.0) else { return };
        *count -= 1;
        if *count == 0 {
            all.remove(self.0);
            tracing::info!(what = self.0, "no longer waiting");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::*;

    fn waiting(what: &str) -> Option<usize> {
        WAITING.lock().unwrap_or_else(PoisonError::into_inner).get(what).copied()
    }

    fn short() -> Backoff {
        Backoff::new(Duration::from_millis(1), Duration::from_millis(1))
    }

    #[tokio::test]
    async fn operation_is_tried_until_it_succeeds() {
        let mut tries = 0;
        let value = retry(short(), "succeeds", || {
            tries += 1;
            std::future::ready(if tries < 4 { Err("not yet") } else { Ok(tries) })
        })
        .await;
        assert_eq!((value, waiting("succeeds")), (4, None));
    }

    #[tokio::test]
    async fn stop_ends_the_wait_but_not_a_try() {
        let tries = AtomicU32::new(0);
        let operation = || async {
            tokio::task::yield_now().await;
            tries.fetch_add(1, Ordering::Relaxed);
            Err("never")
        };
        let stop = std::future::ready("stopped");
        let stopped: Result<(), _> = retry_until(stop, short(), "stops", operation).await;
        assert_eq!((stopped, tries.into_inner(), waiting("stops")), (Err("stopped"), 1, None));
    }

    #[tokio::test]
    async fn waiting_operations_of_a_kind_are_counted_together() {
        let first = Waiting::begin("counted", &"away");
        let second = Waiting::begin("counted", &"away");
        drop(first);
        assert_eq!(waiting("counted"), Some(1));
        drop(second);
        assert_eq!(waiting("counted"), None);
    }
}
