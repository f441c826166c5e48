//! Records the received chunks: their latencies, and for each thread the next expected number.

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use hdrhistogram::Histogram;

use super::load::PathTiming;
use crate::usage::Used;
use testkit::locked;

/// The first byte of a stamp. It also occurs in lengths and numbers of protobuf, but such digits do
/// not follow it there.
const MARK: u8 = b'@';
/// Length of a stamp: the mark, 16 digits of nanoseconds, 8 digits of the number, in hexadecimal.
const STAMP_BYTES: usize = 1 + 16 + 8;

/// Longest latency that is recorded exactly, in microseconds.
const LONGEST_US: u64 = 120_000_000;

/// State shared by the publisher, which writes stamps, and the receivers.
#[derive(Debug)]
pub(super) struct Board {
    origin: Instant,
    streams: usize,
    warm_up: Duration,
    state: Mutex<RecorderState>,
}

#[derive(Debug)]
struct RecorderState {
    latencies: Histogram<u64>,
    next: Vec<u32>,
    attached: usize,
    received: u64,
    lost: u64,
    repeated: u64,
    publishing_since: Option<u64>,
}

/// The totals of a publisher.
#[derive(Debug, Clone, Copy)]
pub(super) struct PublishTotals {
    pub(super) chunks: u64,
    pub(super) seconds: f64,
}

impl Board {
    pub(super) fn new(streams: usize, warm_up: Duration) -> Self {
        #[allow(clippy::expect_used, reason = "the bounds are constants that the library accepts")]
        let latencies = Histogram::new_with_bounds(1, LONGEST_US, 3).expect("valid bounds");
        let state = RecorderState {
            latencies,
            next: vec![0; streams],
            attached: 0,
            received: 0,
            lost: 0,
            repeated: 0,
            publishing_since: None,
        };
        Self { origin: Instant::now(), streams, warm_up, state: Mutex::new(state) }
    }

    /// The start of a text: its send time, and its number in its thread.
    pub(super) fn stamp(&self, number: u32) -> String {
        let now = self.now();
        locked(&self.state).publishing_since.get_or_insert(now);
        format!("@{now:016x}{number:08x}")
    }

    /// Takes every complete stamp from the bytes that this thread's receiver has. Returns the
    /// number of bytes consumed.
    pub(super) fn take(&self, stream: usize, bytes: &[u8]) -> usize {
        let mut at = 0;
        while let Some(found) = bytes[at..].iter().position(|byte| *byte == MARK) {
            at += found;
            let Some(stamp) = bytes.get(at..at + STAMP_BYTES) else { return at };
            match parse(stamp) {
                Some((sent, number)) => {
                    at += STAMP_BYTES;
                    self.received(stream, sent, number);
                }
                None => at += 1,
            }
        }
        bytes.len()
    }

    fn received(&self, stream: usize, sent: u64, number: u32) {
        let now = self.now();
        let mut state = locked(&self.state);
        let next = state.next[stream];
        if number < next {
            state.repeated += 1;
            return;
        }
        state.lost += u64::from(number - next);
        state.next[stream] = number + 1;
        state.received += 1;
        let warm = state.publishing_since.unwrap_or(0) + self.warm_up.as_nanos() as u64;
        if sent >= warm {
            state.latencies.saturating_record(now.saturating_sub(sent) / 1_000);
        }
    }

    /// Records that the receiver of one thread is ready.
    pub(super) fn attach(&self) {
        locked(&self.state).attached += 1;
    }

    /// Records that the single receiver of all threads is ready.
    pub(super) fn attach_all(&self) {
        locked(&self.state).attached = self.streams;
    }

    /// Waits until every thread has its receiver.
    pub(super) async fn wait_attached(&self, limit: Duration) -> Result<()> {
        let begun = Instant::now();
        while locked(&self.state).attached < self.streams {
            if begun.elapsed() > limit {
                let attached = locked(&self.state).attached;
                bail!("only {attached} of {} receivers are attached after {limit:?}", self.streams);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Waits until `chunks` chunks have arrived, or for `limit`. Chunks that are missing after that
    /// are lost.
    pub(super) async fn wait_received(&self, chunks: u64, limit: Duration) {
        let begun = Instant::now();
        while locked(&self.state).received < chunks && begun.elapsed() < limit {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(super) fn timed(&self, sent: PublishTotals, used: Used) -> PathTiming {
        let state = locked(&self.state);
        let ms = |quantile: f64| state.latencies.value_at_quantile(quantile) as f64 / 1_000.0;
        PathTiming {
            p50: ms(0.5),
            p99: ms(0.99),
            p999: ms(0.999),
            max: state.latencies.max() as f64 / 1_000.0,
            sent: sent.chunks,
            lost: sent.chunks - state.received.min(sent.chunks),
            repeated: state.repeated,
            rate: sent.chunks as f64 / sent.seconds,
            used,
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

fn parse(stamp: &[u8]) -> Option<(u64, u32)> {
    let digits = std::str::from_utf8(&stamp[1..]).ok()?;
    let (sent, number) = digits.split_at_checked(16)?;
    Some((u64::from_str_radix(sent, 16).ok()?, u32::from_str_radix(number, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_found_also_when_they_come_in_two_pieces() {
        let board = Board::new(2, Duration::ZERO);
        let text = format!("data: @@{} x {}", board.stamp(0), board.stamp(1));
        let (first, second) = text.as_bytes().split_at(text.len() - 5);
        let done = board.take(1, first);
        assert_eq!(board.take(1, &[&first[done..], second].concat()), first.len() - done + 5);
        assert_eq!(locked(&board.state).next, [0, 2]);
        board.take(1, board.stamp(1).as_bytes());
        board.take(1, board.stamp(3).as_bytes());
        let state = locked(&board.state);
        assert_eq!((state.received, state.repeated, state.lost), (3, 1, 1));
    }
}
