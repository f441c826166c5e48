//! The wall clock of a process, deaf to jumps.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds since the Unix epoch that never go back: the wall time at which the clock was started plus the
/// monotonic time since then.
///
/// When the system clock is set later, this clock does not follow: timeouts neither fire at once nor stand still.
/// Over weeks it may therefore differ from the system clock by what that one was corrected by; use it for
/// durations and labels, never to compare with another machine's clock. Copies tick alike.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    started_at_ms: i64,
    started: Instant,
}

impl Clock {
    /// Reads the system clock once.
    #[allow(clippy::disallowed_methods, reason = "the one reading of the system clock in a process")]
    pub fn start() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started_at_ms: whole_ms(since_epoch.as_millis()), started: Instant::now() }
    }

    /// Milliseconds since the Unix epoch.
    pub fn now_ms(&self) -> i64 {
        self.started_at_ms.saturating_add(whole_ms(self.started.elapsed().as_millis()))
    }
}

fn whole_ms(ms: u128) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_moves_on_and_copies_agree() {
        let clock = Clock::start();
        let copy = clock;
        let before = clock.now_ms();
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert!(copy.now_ms() >= before + 5);
        assert!(before > 1_700_000_000_000, "{before} is a time of this century in ms");
    }
}
