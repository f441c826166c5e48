//! Delays between tries of requests to NATS.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const CAP: Duration = Duration::from_secs(2);

/// From 100 ms doubling to 2 s, each delay drawn from the upper half, so that the readers of a fleet that lost the
/// same server do not come back at the same instant.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    tries: u32,
}

impl Backoff {
    pub(crate) fn next_delay(&mut self) -> Duration {
        let nominal = nominal(self.tries);
        self.tries = self.tries.saturating_add(1);
        nominal.mul_f64(rand::random_range(0.5..=1.0))
    }

    pub(crate) fn reset(&mut self) {
        self.tries = 0;
    }
}

/// How long the client library waits before its `attempt`-th try to connect, from 1.
pub(crate) fn reconnect_delay(attempt: usize) -> Duration {
    match attempt {
        0 | 1 => Duration::ZERO,
        more => nominal(u32::try_from(more - 2).unwrap_or(u32::MAX)).mul_f64(rand::random_range(0.5..=1.0)),
    }
}

fn nominal(tries: u32) -> Duration {
    FIRST.saturating_mul(1 << tries.min(10)).min(CAP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_cap_and_start_again() {
        let mut backoff = Backoff::default();
        for nominal_ms in [100, 200, 400, 800, 1600, 2000, 2000] {
            let delay = backoff.next_delay().as_millis();
            assert!(delay * 2 >= nominal_ms && delay <= nominal_ms, "{delay} for {nominal_ms}");
        }
        backoff.reset();
        assert!(backoff.next_delay() <= FIRST);
        assert_eq!(reconnect_delay(1), Duration::ZERO);
        assert!(reconnect_delay(usize::MAX) <= CAP);
    }
}
