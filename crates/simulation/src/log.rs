//! The double of a partition's stream: entries with sequences from 1.

use model::{Seq, Timestamp};
use partition::{Body, Entry};

/// Unix time of the simulation's start, ms.
pub(crate) const START: i64 = 1_800_000_000_000;

/// What has been stored in one stream.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// By time, ms of the simulation.
    entries: Vec<(i64, Body)>,
}

impl Log {
    /// Stores an entry; its sequence.
    pub(crate) fn append(&mut self, time: i64, body: Body) -> u64 {
        self.entries.push((time, body));
        self.len()
    }

    /// The last sequence.
    pub(crate) fn len(&self) -> u64 {
        self.entries.len() as u64
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
