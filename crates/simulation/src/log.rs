//! The double of a partition's stream: entries with sequences from 1, each visible from its time on.

use model::{Seq, Timestamp};
use partition::{Body, Entry};

/// Unix time of the simulation's start, ms.
pub(crate) const START: i64 = 1_800_000_000_000;

/// What publishers put into one stream. Everything is known beforehand; readers see what is past.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// By time, ms of the simulation.
    pub(crate) entries: Vec<(i64, Body)>,
}

impl Log {
    /// The last sequence that is visible.
    pub(crate) fn tail(&self, time: i64) -> u64 {
        self.entries.partition_point(|(at, _)| *at <= time) as u64
    }

    pub(crate) fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    /// When the entry becomes visible; `None` beyond the end.
    pub(crate) fn at(&self, seq: u64) -> Option<i64> {
        self.entries.get(seq.checked_sub(1)? as usize).map(|(at, _)| *at)
    }

    /// The entries from `first` to `last`, both included.
    pub(crate) fn read(&self, first: u64, last: u64) -> Vec<Entry> {
        (first..=last.min(self.len())).map(|seq| self.entry(seq)).collect()
    }

    fn entry(&self, seq: u64) -> Entry {
        let (at, body) = &self.entries[seq as usize - 1];
        Entry { seq: Seq(seq), stored_at: Timestamp(START + at), body: body.clone() }
    }
}
