//! The records of a group of subscribers: latencies, number of reads, and the next expected number
//! of each subscriber.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU32, Ordering},
};

use hdrhistogram::Histogram;

use super::timestamped_payload::{Stamp, Watch};
use testkit::locked;

/// Longest latency that is recorded exactly, in microseconds.
const LONGEST_US: u64 = 120_000_000;

/// Totals of all subscribers since the beginning.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct EventCounts {
    pub(super) events: u64,
    /// Number of stamps that the subscriber had already.
    pub(super) repeated: u64,
    /// Number of stamps that were skipped.
    pub(super) skipped: u64,
    /// Reads of a socket that returned bytes.
    pub(super) reads: u64,
    /// Bytes of those reads.
    pub(super) bytes: u64,
    /// Connections that the server ended or broke.
    pub(super) ends: u64,
}

impl EventCounts {
    /// The difference from the earlier counts.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            events: self.events - before.events,
            repeated: self.repeated - before.repeated,
            skipped: self.skipped - before.skipped,
            reads: self.reads - before.reads,
            bytes: self.bytes - before.bytes,
            ends: self.ends - before.ends,
        }
    }
}

/// Counters shared by the subscribers of a group.
#[derive(Debug)]
pub(super) struct Tally {
    watch: Watch,
    state: Mutex<CounterState>,
}

#[derive(Debug)]
struct CounterState {
    counts: EventCounts,
    latencies: Histogram<u64>,
    /// Only stamps sent from this time on are timed.
    timed_from_ns: u64,
    attached: usize,
}

/// Percentiles in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Latency {
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
}

impl Tally {
    /// Creates empty counters. Stamps are not timed before [`Tally::time_from_now`].
    pub(super) fn new(watch: Watch) -> Arc<Self> {
        #[allow(clippy::expect_used, reason = "the bounds are constants that the library accepts")]
        let latencies = Histogram::new_with_bounds(1, LONGEST_US, 3).expect("valid bounds");
        let state =
            CounterState { counts: EventCounts::default(), latencies, timed_from_ns: u64::MAX, attached: 0 };
        Arc::new(Self { watch, state: Mutex::new(state) })
    }

    /// Records one read of one subscriber. `next` is that subscriber's next number.
    pub(super) fn take(&self, next: &AtomicU32, bytes: usize, stamps: &[Stamp]) {
        let now = self.watch.ns();
        let mut expected = next.load(Ordering::Relaxed);
        let mut state = locked(&self.state);
        state.counts.reads += 1;
        state.counts.bytes += bytes as u64;
        for stamp in stamps {
            if stamp.number < expected {
                state.counts.repeated += 1;
                continue;
            }
            state.counts.skipped += u64::from(stamp.number - expected);
            state.counts.events += 1;
            expected = stamp.number + 1;
            if stamp.sent_ns >= state.timed_from_ns {
                state.latencies.saturating_record(now.saturating_sub(stamp.sent_ns) / 1_000);
            }
        }
        next.store(expected, Ordering::Relaxed);
    }

    /// Starts timing the stamps that are sent from now on.
    pub(super) fn time_from_now(&self) {
        locked(&self.state).timed_from_ns = self.watch.ns();
    }

    /// Records that a subscriber is attached, or no longer is.
    pub(super) fn attached(&self, is_attached: bool) {
        let mut state = locked(&self.state);
        state.attached = if is_attached { state.attached + 1 } else { state.attached.saturating_sub(1) };
    }

    /// Number of subscribers that are attached now.
    pub(super) fn attached_now(&self) -> usize {
        locked(&self.state).attached
    }

    /// Records that a server has ended a connection.
    pub(super) fn ended(&self) {
        locked(&self.state).counts.ends += 1;
    }

    pub(super) fn counts(&self) -> EventCounts {
        locked(&self.state).counts
    }

    pub(super) fn latency(&self) -> Latency {
        let state = locked(&self.state);
        let ms = |quantile: f64| state.latencies.value_at_quantile(quantile) as f64 / 1_000.0;
        Latency { p50: ms(0.5), p99: ms(0.99), p999: ms(0.999) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_and_holes_are_counted_for_each_viewer() {
        let tally = Tally::new(Watch::start());
        let (one, other) = (AtomicU32::new(0), AtomicU32::new(0));
        let stamps = |numbers: &[u32]| -> Vec<Stamp> {
            numbers.iter().map(|number| Stamp { sent_ns: 0, number: *number }).collect()
        };
        tally.take(&one, 10, &stamps(&[0, 1, 2]));
        let before = tally.counts();
        tally.take(&one, 10, &stamps(&[2, 3, 6]));
        tally.take(&other, 10, &stamps(&[0]));
        tally.ended();
        let counts = tally.counts();
        assert_eq!((counts.events, counts.repeated, counts.skipped, counts.bytes), (6, 1, 2, 30));
        assert_eq!((one.load(Ordering::Relaxed), other.load(Ordering::Relaxed)), (7, 1));
        assert_eq!(
            counts.since(before),
            EventCounts { events: 3, repeated: 1, skipped: 2, reads: 2, bytes: 20, ends: 1 }
        );
    }

    #[test]
    fn only_what_was_sent_while_it_counts_is_timed() {
        let watch = Watch::start();
        let tally = Tally::new(watch);
        let next = AtomicU32::new(0);
        tally.take(&next, 1, &[Stamp { sent_ns: watch.ns(), number: 0 }]);
        assert_eq!(tally.latency().p99, 0.0);
        tally.time_from_now();
        let long_ago = Stamp { sent_ns: 0, number: 1 };
        let now = Stamp { sent_ns: watch.ns(), number: 2 };
        std::thread::sleep(std::time::Duration::from_millis(2));
        tally.take(&next, 1, &[long_ago, now]);
        assert!(tally.latency().p50 >= 2.0);
        assert_eq!(locked(&tally.state).latencies.len(), 1);
    }
}
