//! Times of calls.

use std::time::{Duration, Instant};

use anyhow::Result;

/// The times of calls of one kind.
#[derive(Debug, Default)]
pub(super) struct Timings(Vec<Duration>);

impl Timings {
    /// Adds the time since `begun`.
    pub(super) fn since(&mut self, begun: Instant) {
        self.0.push(begun.elapsed());
    }

    /// Adds the times of another value.
    pub(super) fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    /// Waits for `call`, and adds its duration.
    pub(super) async fn time<T>(&mut self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let begun = Instant::now();
        let done = call.await?;
        self.since(begun);
        Ok(done)
    }

    pub(super) fn p50_ms(&self) -> f64 {
        self.percentile_ms(0.5)
    }

    pub(super) fn p99_ms(&self) -> f64 {
        self.percentile_ms(0.99)
    }

    /// The smallest time that this fraction of the times does not exceed; 0 without times.
    fn percentile_ms(&self, part: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() as f64 * part).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).map_or(0.0, |time| time.as_secs_f64() * 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let timings = Timings((1..=200).rev().map(Duration::from_millis).collect());
        assert_eq!((timings.p50_ms(), timings.p99_ms()), (100.0, 198.0));
        assert_eq!(Timings(vec![Duration::from_millis(7)]).p99_ms(), 7.0);
        assert_eq!(Timings::default().p50_ms(), 0.0);
    }
}
