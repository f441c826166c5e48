//! Lines of the log of which a publisher could make as many as it likes: one a second, with how many there were.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

const PAUSE: Duration = Duration::from_secs(1);

/// One kind of line.
#[derive(Debug)]
pub(crate) struct Limited(Mutex<LimitState>);

#[derive(Debug)]
struct LimitState {
    last_at: Option<Instant>,
    count: u64,
}

impl Limited {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(LimitState { last_at: None, count: 0 }))
    }

    /// Counts one more. When it is time for a line: how many it stands for, this one included.
    pub(crate) fn count(&self) -> Option<u64> {
        self.count_at(Instant::now())
    }

    fn count_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        state.count += 1;
        if state.last_at.is_some_and(|last| now.duration_since(last) < PAUSE) {
            return None;
        }
        state.last_at = Some(now);
        Some(std::mem::take(&mut state.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_one_line_that_counts_the_others() {
        let (limited, start) = (Limited::new(), Instant::now());
        let at = |ms| limited.count_at(start + Duration::from_millis(ms));
        assert_eq!(at(0), Some(1));
        assert_eq!((1..1_000).filter_map(at).count(), 0);
        assert_eq!(at(1_000), Some(1_000));
        assert_eq!((at(1_500), at(2_000)), (None, Some(2)));
    }
}
