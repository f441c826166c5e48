//! The clocks of a process: one that ignores adjustments of the system clock, and the system clock
//! itself.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds since the Unix epoch that never go back: the wall time at the start of the clock
/// plus the monotonic time since then.
///
/// The clock does not follow adjustments of the system clock, so timeouts neither fire at once nor
/// hang. Over weeks it may differ from the system clock by these adjustments. Use it for durations
/// and labels, but not to compare with another machine's clock; for that there is
/// [`system_time_ms`]. Copies share the same time.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    started_at_ms: i64,
    started: Instant,
}

impl Clock {
    /// Reads the system clock once.
    pub fn start() -> Self {
        Self { started_at_ms: system_time_ms(), started: Instant::now() }
    }

    /// The current time in milliseconds since the Unix epoch.
    pub fn now_ms(&self) -> i64 {
        self.started_at_ms.saturating_add(whole_ms(self.started.elapsed().as_millis()))
    }
}

/// Milliseconds since the Unix epoch by the current system clock: for times set by other machines,
/// such as the end of a credential. It may jump in either direction.
#[allow(clippy::disallowed_methods, reason = "the one reading of the system clock in a process")]
pub fn system_time_ms() -> i64 {
    whole_ms(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis())
}

fn whole_ms(ms: u128) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_time_does_not_depend_on_the_start() {
        let clock = Clock { started_at_ms: 0, started: Instant::now() };
        assert!(clock.now_ms() < 1_000_000, "as if the system clock had been set forward after the start");
        assert!(system_time_ms() > 1_700_000_000_000);
    }

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
