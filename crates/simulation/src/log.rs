//! The double of a partition's stream: entries with sequences from 1. It may lose its end, be
//! created again, be purged and have holes.

use model::{Mark, Seq, Timestamp};
use partition::{Compared, EntryBody, Found, StreamEntry};

/// Unix time of the simulation's start, ms.
pub(crate) const START: i64 = 1_800_000_000_000;

/// The entries of one stream.
#[derive(Debug)]
pub(crate) struct Log {
    /// The entries, each with its time in ns; `None` for a lost entry.
    entries: Vec<Option<(i64, EntryBody)>>,
    /// The first sequence that is not purged.
    first: u64,
    /// The incarnation id of the stream.
    pub(crate) incarnation: String,
    /// How often its server was restored or the stream was created again; no reader survives that.
    pub(crate) restorations: u64,
    appended: i64,
}

impl Default for Log {
    fn default() -> Self {
        Self { entries: Vec::new(), first: 1, incarnation: "0".to_owned(), restorations: 0, appended: 0 }
    }
}

impl Log {
    /// Stores an entry and returns its sequence.
    pub(crate) fn append(&mut self, time: i64, body: EntryBody) -> u64 {
        self.appended += 1;
        self.entries.push(Some(((START + time) * 1_000_000 + self.appended % 1_000_000, body)));
        self.len()
    }

    /// The last sequence.
    pub(crate) fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    /// The last sequence that was purged.
    pub(crate) fn purged(&self) -> u64 {
        self.first - 1
    }

    /// The entries from `first` to `last`, both included, without those that are gone.
    pub(crate) fn read(&self, first: u64, last: u64) -> Vec<StreamEntry> {
        (first.max(self.first)..=last.min(self.len())).filter_map(|seq| self.entry(seq)).collect()
    }

    fn entry(&self, seq: u64) -> Option<StreamEntry> {
        let (at_ns, body) = self.entries.get(seq as usize - 1)?.as_ref()?;
        let stored_at = Timestamp(at_ns / 1_000_000);
        Some(StreamEntry { seq: Seq(seq), stored_at, bytes: size(body), body: body.clone() })
    }

    /// The mark that identifies the entry with that sequence.
    pub(crate) fn mark(&self, seq: u64) -> Option<Mark> {
        let at = seq.checked_sub(1).filter(|_| seq >= self.first)?;
        let (stored_at_ns, _) = self.entries.get(at as usize)?.as_ref()?;
        Some(Mark { seq: Seq(seq), stored_at_ns: *stored_at_ns })
    }

    /// The state that the stream reports.
    pub(crate) fn found(&self) -> Found<'_> {
        let first = Seq(self.first.min(self.len() + 1));
        Found { incarnation: &self.incarnation, first, last: Seq(self.len()) }
    }

    /// The mark that was read, and the present entry of the same sequence.
    pub(crate) fn compare(&self, read: Mark) -> Compared {
        Compared { read, found: self.mark(read.seq.0).map(|mark| mark.stored_at_ns) }
    }

    /// True if it is still the stream with that incarnation, as far as it was read.
    pub(crate) fn is_as_read(&self, incarnation: &str, read: Option<Mark>) -> bool {
        self.incarnation == incarnation && read.is_none_or(|read| self.found().agrees(self.compare(read)))
    }

    /// Purges everything up to `last`, and returns it.
    pub(crate) fn purge(&mut self, last: u64) -> Vec<StreamEntry> {
        let last = last.min(self.len());
        let purged = self.read(self.first, last);
        self.first = self.first.max(last + 1);
        purged
    }

    /// Loses everything after `last`, and returns it.
    pub(crate) fn cut(&mut self, last: u64) -> Vec<StreamEntry> {
        let lost = self.read(last + 1, self.len());
        self.entries.truncate(last as usize);
        // A hole at the end cannot be noticed.
        while self.entries.last().is_some_and(Option::is_none) {
            self.entries.pop();
        }
        self.restorations += 1;
        lost
    }

    /// Deletes the stream and creates it again.
    pub(crate) fn renew(&mut self) -> Vec<StreamEntry> {
        let lost = self.cut(0);
        (self.first, self.incarnation) = (1, self.restorations.to_string());
        lost
    }

    /// Loses one entry, and returns it.
    pub(crate) fn lose(&mut self, seq: u64) -> Option<StreamEntry> {
        let lost = self.entry(seq).filter(|_| seq >= self.first);
        if let Some(entry) = self.entries.get_mut(seq as usize - 1) {
            *entry = None;
        }
        lost
    }
}

/// Approximate size of an entry in bytes.
fn size(body: &EntryBody) -> usize {
    match body {
        EntryBody::Frame(frame) => frame.chunks.iter().map(|arrival| 20 + arrival.chunk.text.len()).sum(),
        EntryBody::Command(_, raw) => raw.payload.len(),
        EntryBody::Refused { payload, .. } => payload.len(),
    }
}
