//! Limits log lines that a publisher can provoke at will: at most 50 per second, followed by the
//! number left out.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

const WINDOW: Duration = Duration::from_secs(1);
/// Maximum lines of one kind in a window: enough to name all simultaneous failures in a usual
/// fleet.
const LINES: u32 = 50;

/// One kind of line.
#[derive(Debug)]
pub(crate) struct LogThrottle(Mutex<ThrottleState>);

#[derive(Debug)]
struct ThrottleState {
    began: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl LogThrottle {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(ThrottleState { began: None, lines: 0, left_out: 0 }))
    }

    /// Counts one line. `Some` if the line may be written: the number of lines left out since the
    /// previous one.
    pub(crate) fn count(&self) -> Option<u64> {
        self.count_at(Instant::now())
    }

    /// Number of lines left out in a past window that no line has reported yet.
    pub(crate) fn take_left_out(&self) -> u64 {
        self.take_left_out_at(Instant::now())
    }

    fn take_left_out_at(&self, now: Instant) -> u64 {
        let mut state = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let has_ended = state.began.is_none_or(|began| now.duration_since(began) >= WINDOW);
        if has_ended { std::mem::take(&mut state.left_out) } else { 0 }
    }

    fn count_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if state.began.is_none_or(|began| now.duration_since(began) >= WINDOW) {
            (state.began, state.lines) = (Some(now), 0);
        }
        if state.lines == LINES {
            state.left_out += 1;
            return None;
        }
        state.lines += 1;
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_some_lines_and_counts_the_others() {
        let (limited, start) = (LogThrottle::new(), Instant::now());
        let at = |ms| limited.count_at(start + Duration::from_millis(ms));
        let first: Vec<_> = (0..80).map(at).collect();
        assert!(first[..50].iter().all(|line| *line == Some(0)) && first[50..].iter().all(Option::is_none));
        assert_eq!(at(999), None);
        assert_eq!((at(1_000), at(1_001)), (Some(31), Some(0)));
        let rest = |ms| limited.take_left_out_at(start + Duration::from_millis(ms));
        assert_eq!((1_002..1_060).filter(|ms| at(*ms).is_none()).count(), 10);
        assert_eq!((rest(1_999), rest(2_000), rest(2_001)), (0, 10, 0));
        assert_eq!(at(2_002), Some(0), "they were named already");
    }
}
