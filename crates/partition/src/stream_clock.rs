//! The time by which gaps and stalls are judged.

use model::Timestamp;

/// Time at the read position of the stream.
///
/// While the reader has seen everything, real time passes: a missing chunk has not been published.
/// While the reader is behind, the missing chunk may be unread in the stream, so only the time of
/// the entries read passes. A backlog of an hour thus ages a gap by the time between its entries,
/// not by the hour. While NATS is unavailable, the clock is stopped.
#[derive(Debug)]
pub(crate) struct StreamClock {
    elapsed_ms: i64,
    caught_up_since: Option<Timestamp>,
    /// Reading is paused, so the passing of real time does not show that nothing was published.
    is_paused: bool,
    /// The stream's time at the read position; an estimate while real time counts.
    latest_stored_at: Option<Timestamp>,
    step_ms: i64,
}

impl StreamClock {
    /// The time at which every clock starts.
    pub(crate) const START: Timestamp = Timestamp(0);

    pub(crate) fn new(step_ms: i64) -> Self {
        Self { elapsed_ms: 0, caught_up_since: None, is_paused: false, latest_stored_at: None, step_ms }
    }

    /// Advances with real time if the reader has seen everything, and returns the time.
    pub(crate) fn now(&mut self, now: Timestamp) -> Timestamp {
        if let Some(since) = &mut self.caught_up_since {
            // A process that was suspended for a minute has read nothing for a minute.
            let passed_ms = if self.is_paused { 0 } else { now.since_ms(*since).min(self.step_ms) };
            self.elapsed_ms += passed_ms;
            // Time that has passed as real time must not be counted again as the stream's time when
            // the reader falls behind.
            self.latest_stored_at = self.latest_stored_at.map(|at| at.plus_ms(passed_ms));
            *since = (*since).max(now);
        }
        Timestamp(self.elapsed_ms)
    }

    /// True while real time counts.
    pub(crate) fn is_caught_up(&self) -> bool {
        self.caught_up_since.is_some()
    }

    pub(crate) fn set_caught_up(&mut self, caught_up: bool, now: Timestamp) {
        self.now(now);
        match (caught_up, self.caught_up_since) {
            (true, None) => self.caught_up_since = Some(now),
            (true, Some(_)) => {}
            (false, _) => self.caught_up_since = None,
        }
    }

    /// While reading is paused, real time does not count: the chunk that would close a gap may be
    /// unread in the stream.
    pub(crate) fn set_paused(&mut self, is_paused: bool, now: Timestamp) {
        if self.is_paused != is_paused {
            self.now(now);
            self.is_paused = is_paused;
        }
    }

    /// Advances with the stream's time if the reader is behind. Entries that are read again do not
    /// advance the clock.
    pub(crate) fn observe(&mut self, stored_at: Timestamp) {
        let latest = self.latest_stored_at.unwrap_or(stored_at);
        if self.caught_up_since.is_none() {
            self.elapsed_ms += stored_at.since_ms(latest).min(self.step_ms);
        }
        self.latest_stored_at = Some(latest.max(stored_at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_time_counts_only_while_everything_has_been_seen() {
        let mut clock = StreamClock::new(2_000);
        assert_eq!(clock.now(Timestamp(50_000)), Timestamp(0));
        clock.set_caught_up(true, Timestamp(60_000));
        assert_eq!(clock.now(Timestamp(61_000)), Timestamp(1_000));
        clock.set_caught_up(false, Timestamp(62_000));
        assert_eq!(clock.now(Timestamp(99_000)), Timestamp(2_000));
    }

    #[test]
    fn a_backlog_ages_by_the_streams_time_and_an_outage_by_one_step() {
        let mut clock = StreamClock::new(2_000);
        for stored_at in [1_000, 1_500, 2_000, 900_000, 1_500] {
            clock.observe(Timestamp(stored_at));
        }
        assert_eq!(clock.now(Timestamp(0)), Timestamp(3_000));
    }

    #[test]
    fn stream_clock_behind_counts_no_time_twice() {
        let mut clock = StreamClock::new(2_000);
        clock.observe(Timestamp(70_000));
        clock.set_caught_up(true, Timestamp(10_000));
        clock.set_caught_up(false, Timestamp(11_500));
        clock.observe(Timestamp(71_500));
        assert_eq!(clock.now(Timestamp(11_500)), Timestamp(1_500));
        clock.set_caught_up(true, Timestamp(11_500));
        assert_eq!(clock.now(Timestamp(71_500)), Timestamp(3_500));
    }

    #[test]
    fn while_everything_has_been_seen_only_real_time_counts() {
        let mut clock = StreamClock::new(2_000);
        clock.set_caught_up(true, Timestamp(10_000));
        for stored_at in [70_000, 71_000, 72_000] {
            clock.observe(Timestamp(stored_at));
        }
        assert_eq!(clock.now(Timestamp(10_000)), Timestamp(0));
        // Entries stored since then count as well.
        clock.set_caught_up(false, Timestamp(10_000));
        clock.observe(Timestamp(72_500));
        assert_eq!(clock.now(Timestamp(10_000)), Timestamp(500));
    }

    #[test]
    fn while_the_reader_pauses_no_real_time_counts() {
        let mut clock = StreamClock::new(2_000);
        clock.set_caught_up(true, Timestamp(10_000));
        clock.set_paused(true, Timestamp(11_000));
        assert_eq!(clock.now(Timestamp(12_000)), Timestamp(1_000));
        clock.set_paused(false, Timestamp(60_000));
        assert_eq!(clock.now(Timestamp(60_500)), Timestamp(1_500));
    }

    #[test]
    fn a_clock_that_jumps_back_adds_nothing() {
        let mut clock = StreamClock::new(2_000);
        clock.set_caught_up(true, Timestamp(10_000));
        assert_eq!(clock.now(Timestamp(5_000)), Timestamp(0));
        assert_eq!(clock.now(Timestamp(11_000)), Timestamp(1_000));
    }
}
