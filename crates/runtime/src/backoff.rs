//! Delays before an I/O operation is repeated.

use std::time::Duration;

/// Delays that double from `first` to `cap`. Each is drawn uniformly from the upper half of its
/// range. So if many processes lose the same server, they do not reconnect at the same moment.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    cap: Duration,
    tries: u32,
}

impl Default for Backoff {
    /// Delays from 100 ms to 2 s.
    fn default() -> Self {
        Self::new(Duration::from_millis(100), Duration::from_secs(2))
    }
}

impl Backoff {
    /// Delays from `first` to `cap`; a `cap` below `first` counts as `first`.
    pub fn new(first: Duration, cap: Duration) -> Self {
        Self { first, cap: cap.max(first), tries: 0 }
    }

    /// The delay after this number of tries, counted from 0: between half of the nominal delay and
    /// all of it.
    pub fn delay_after(&self, tries: u32) -> Duration {
        let nominal = self.first.saturating_mul(1 << tries.min(31)).min(self.cap);
        nominal.mul_f64(rand::random_range(0.5..=1.0))
    }

    /// The delay before the next try.
    pub fn next_delay(&mut self) -> Duration {
        let delay = self.delay_after(self.tries);
        self.tries = self.tries.saturating_add(1);
        delay
    }

    /// Waits for [`Self::next_delay`].
    pub async fn wait(&mut self) {
        tokio::time::sleep(self.next_delay()).await;
    }

    /// Restarts at the first delay, after the operation has succeeded.
    pub fn reset(&mut self) {
        self.tries = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_with_jitter_up_to_the_cap() {
        let mut backoff = Backoff::default();
        for nominal_ms in [100, 200, 400, 800, 1600, 2000, 2000, 2000] {
            let nominal = Duration::from_millis(nominal_ms);
            let delay = backoff.next_delay();
            assert!(delay >= nominal / 2 && delay <= nominal, "{delay:?} for {nominal:?}");
        }
        backoff.reset();
        assert!(backoff.next_delay() <= Duration::from_millis(100));
        assert!(backoff.delay_after(u32::MAX) <= Duration::from_secs(2));
    }

    #[test]
    fn delays_do_not_overflow() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::MAX / 4);
        for _ in 0..200 {
            backoff.next_delay();
        }
    }
}
