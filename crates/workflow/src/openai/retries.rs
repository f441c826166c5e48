//! Decides when a call that has not produced output is retried.

use std::time::Duration;

use model::ErrorClass;
use tokio::time::Instant;

use crate::engine_event::Failure;

const FIRST_DELAY: Duration = Duration::from_millis(500);
const LONGEST_DELAY: Duration = Duration::from_secs(8);

/// The tries of one call.
pub(super) struct Retries {
    give_up_at: Instant,
    made: u32,
}

impl Retries {
    /// `budget`: how long after the first try another one may begin.
    pub(super) fn new(budget: Duration) -> Self {
        Self { give_up_at: Instant::now() + budget, made: 0 }
    }

    /// The delay before the next try; `None`: no retry. `random`: from 0 to 1.
    ///
    /// `failure` is an error of the status or the connection, before the model produced output. A
    /// timeout is not retried, because the call has taken too long already. Invalid output of the
    /// model is left to the next run of the turn.
    pub(super) fn next(&mut self, failure: &Failure, random: f64) -> Option<Duration> {
        let is_left = matches!(failure.code.as_str(), "upstream_timeout" | "model_error");
        if failure.class != ErrorClass::Transient || is_left {
            return None;
        }
        let backoff = (FIRST_DELAY * 2_u32.saturating_pow(self.made)).min(LONGEST_DELAY);
        let delay = match failure.retry_after {
            // The retry never comes sooner than the endpoint asks, and retries are spread over
            // time.
            Some(after) => after + backoff.mul_f64(random / 2.0),
            None => backoff.mul_f64(0.5 + random / 2.0),
        };
        self.made += 1;
        (Instant::now() + delay <= self.give_up_at).then_some(delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_delay_grows_and_is_never_less_than_asked_for() {
        let busy = Failure::transient("rate_limited", "");
        let mut retries = Retries::new(Duration::from_secs(20));
        let delays: Vec<_> = (0..6).map_while(|_| retries.next(&busy, 1.0)).collect();
        assert_eq!(delays, [500, 1_000, 2_000, 4_000, 8_000, 8_000].map(Duration::from_millis));
        let asked = Failure { retry_after: Some(Duration::from_secs(7)), ..busy.clone() };
        let delay = Retries::new(Duration::from_secs(20)).next(&asked, 0.5).unwrap();
        assert_eq!(delay, Duration::from_millis(7_125));
        assert_eq!(Retries::new(Duration::from_secs(5)).next(&asked, 0.0), None, "too late");
        assert_eq!(Retries::new(Duration::ZERO).next(&busy, 0.0), None, "never");
    }

    #[tokio::test]
    async fn what_would_fail_again_is_not_retried() {
        let next = |failure: Failure| Retries::new(Duration::from_secs(9)).next(&failure, 0.0);
        assert_eq!(next(Failure::permanent("upstream_refused", "")), None);
        for code in ["upstream_timeout", "model_error"] {
            assert_eq!(next(Failure::transient(code, "")), None, "{code}");
        }
        for code in ["rate_limited", "upstream_error", "upstream_away", "upstream_cut"] {
            assert!(next(Failure::transient(code, "")).is_some(), "{code}");
        }
    }
}
