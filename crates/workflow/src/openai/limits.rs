//! Limits of one endpoint: concurrent calls, calls per minute and tokens per minute. They apply to
//! this process; workers apply the limits of the whole fleet.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use model::TokenCounts;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Limits of an endpoint; `None` means unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EndpointLimits {
    /// Maximum number of concurrent calls.
    pub calls_at_once: Option<u32>,
    /// Maximum number of calls that begin in a minute.
    pub calls_per_minute: Option<u32>,
    /// Maximum number of tokens read and written in a minute.
    pub tokens_per_minute: Option<u32>,
}

pub(super) struct Limiter {
    at_once: Option<Arc<Semaphore>>,
    calls: Option<Bucket>,
    tokens: Option<Bucket>,
}

impl Limiter {
    pub(super) fn new(limits: EndpointLimits) -> Self {
        let bucket = |limit: Option<u32>| limit.map(|limit| Bucket::new(limit, Instant::now()));
        Self {
            at_once: limits.calls_at_once.map(|limit| Arc::new(Semaphore::new(limit as usize))),
            calls: bucket(limits.calls_per_minute),
            tokens: bucket(limits.tokens_per_minute),
        }
    }

    /// Waits until a call of about `tokens` tokens may begin. Dropping the future takes nothing.
    pub(super) async fn admit(&self, tokens: u64) -> Admitted<'_> {
        let place = match &self.at_once {
            // The semaphore is never closed.
            Some(at_once) => at_once.clone().acquire_owned().await.ok(),
            None => None,
        };
        let mut taken = match &self.tokens {
            Some(bucket) => {
                bucket.take(tokens).await;
                Some(TakenTokens { bucket, tokens: tokens as f64 })
            }
            None => None,
        };
        if let Some(bucket) = &self.calls {
            bucket.take(1).await;
        }
        if let Some(taken) = &mut taken {
            taken.tokens = 0.0;
        }
        Admitted { _place: place, tokens: self.tokens.as_ref(), estimated: tokens }
    }
}

/// A call that may be made. Dropping it frees its slot.
pub(super) struct Admitted<'a> {
    _place: Option<OwnedSemaphorePermit>,
    tokens: Option<&'a Bucket>,
    estimated: u64,
}

impl Admitted<'_> {
    /// Replaces the estimate by the tokens that the call used. Later calls wait for the excess.
    pub(super) fn used(&self, counts: &TokenCounts) {
        if let Some(bucket) = self.tokens.filter(|_| counts.is_known()) {
            bucket.change(self.estimated as f64 - counts.total() as f64);
        }
    }

    /// Gives the estimated tokens back, because the endpoint refused the call.
    pub(super) fn refused(&self) {
        if let Some(bucket) = self.tokens {
            bucket.change(self.estimated as f64);
        }
    }
}

/// Tokens that return to their bucket when this value is dropped.
struct TakenTokens<'a> {
    bucket: &'a Bucket,
    tokens: f64,
}

impl Drop for TakenTokens<'_> {
    fn drop(&mut self) {
        self.bucket.change(self.tokens);
    }
}

/// Largest debt of a bucket in minutes: a wrong count must not block an endpoint for days.
const LARGEST_DEBT_MINUTES: f64 = 60.0;

/// A bucket that fills continuously and holds the amount of one minute.
struct Bucket {
    most: f64,
    level: Mutex<(f64, Instant)>,
    /// Makes callers take their amounts in the order in which they wait.
    queue: tokio::sync::Mutex<()>,
}

impl Bucket {
    fn new(per_minute: u32, now: Instant) -> Self {
        let most = f64::from(per_minute);
        Self { most, level: Mutex::new((most, now)), queue: tokio::sync::Mutex::default() }
    }

    async fn take(&self, amount: u64) {
        let _first = self.queue.lock().await;
        while let Some(wait) = self.take_at(amount as f64, Instant::now()) {
            tokio::time::sleep(wait).await;
        }
    }

    /// Takes the amount, or returns how long until it is available. An amount larger than a full
    /// bucket needs a full one.
    fn take_at(&self, amount: f64, now: Instant) -> Option<Duration> {
        let mut state = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        let (level, at) = *state;
        let level = (level + now.duration_since(at).as_secs_f64() * self.most / 60.0).min(self.most);
        let missing = amount.min(self.most) - level;
        if missing <= 0.0 {
            *state = (self.bounded(level - amount), now);
            return None;
        }
        *state = (level, now);
        Some(Duration::from_secs_f64(missing * 60.0 / self.most).max(Duration::from_millis(1)))
    }

    fn change(&self, by: f64) {
        let mut state = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 = self.bounded(state.0 + by);
    }

    fn bounded(&self, level: f64) -> f64 {
        level.clamp(-self.most * LARGEST_DEBT_MINUTES, self.most)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_bucket_is_filled_up_continuously() {
        let start = Instant::now();
        let bucket = Bucket::new(60, start);
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        assert!((0..60).all(|_| bucket.take_at(1.0, start).is_none()), "those of a minute at once");
        let wait = bucket.take_at(1.0, start).unwrap();
        assert!((0.99..1.01).contains(&wait.as_secs_f64()), "{wait:?}");
        assert_eq!(bucket.take_at(1.0, at(1.001)), None);
        assert!(bucket.take_at(1.0, at(1.5)).is_some());
        // An amount larger than the capacity needs a full bucket and leaves a debt.
        assert!(bucket.take_at(90.0, at(30.0)).is_some());
        assert_eq!(bucket.take_at(90.0, at(70.0)), None);
        let wait = bucket.take_at(1.0, at(70.0)).unwrap();
        assert!((30.9..31.1).contains(&wait.as_secs_f64()), "{wait:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn calls_wait_for_places_and_for_what_was_used() {
        let limits = EndpointLimits {
            calls_at_once: Some(1),
            tokens_per_minute: Some(600),
            ..EndpointLimits::default()
        };
        let limiter = Limiter::new(limits);
        let first = limiter.admit(100).await;
        let waits = tokio::time::timeout(Duration::from_secs(5), limiter.admit(100)).await;
        assert!(waits.is_err(), "one at once");
        first.used(&TokenCounts::of_usage(&json!({"prompt_tokens": 1_000, "completion_tokens": 200})));
        drop(first);
        let begun = Instant::now();
        let _second = limiter.admit(100).await;
        // 600 - 1,200 + 50 for the five seconds: the bucket lacks 650 to reach 100, at ten a
        // second.
        let waited = begun.elapsed().as_secs_f64();
        assert!((60.0..70.0).contains(&waited), "{waited}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_wrong_count_stops_an_endpoint_for_an_hour_at_most() {
        let limiter =
            Limiter::new(EndpointLimits { tokens_per_minute: Some(600), ..EndpointLimits::default() });
        let counts = TokenCounts::of_usage(&json!({"total_tokens": u32::MAX}));
        limiter.admit(100).await.used(&counts);
        let begun = Instant::now();
        limiter.admit(u64::MAX).await;
        limiter.admit(100).await;
        let waited = begun.elapsed().as_secs_f64() / 60.0;
        assert!((61.0..122.0).contains(&waited), "{waited} minutes");
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_are_not_made_take_nothing() {
        let limits = EndpointLimits {
            calls_per_minute: Some(1),
            tokens_per_minute: Some(600),
            ..EndpointLimits::default()
        };
        let limiter = Limiter::new(limits);
        limiter.admit(600).await.refused();
        let begun = Instant::now();
        // This call takes the tokens, and is dropped while it waits for its slot.
        let dropped = tokio::time::timeout(Duration::from_secs(1), limiter.admit(600)).await;
        assert!(dropped.is_err());
        limiter.admit(600).await;
        assert!(begun.elapsed() <= Duration::from_secs(61), "{:?}", begun.elapsed());
    }
}
