//! The double of a partition's stream: entries with sequences from 1, which may lose its end, be made anew, be purged and have holes.

use model::{Mark, Seq, Timestamp};
use partition::{Compared, EntryBody, Found, StreamEntry};

/// Unix time of the simulation's start, ms.
pub(crate) const START: i64 = 1_800_000_000_000;

/// What has been stored in one stream.
#[derive(Debug)]
pub(crate) struct Log {
    /// By time, ns; `None` where an entry was lost.
    entries: Vec<Option<(i64, EntryBody)>>,
    /// Everything below is purged.
    first: u64,
    /// Its name.
    pub(crate) incarnation: String,
    /// How often its server was restored or made anew: no reader outlives that.
    pub(crate) restorations: u64,
    appended: i64,
}

impl Default for Log {
    fn default() -> Self {
        Self { entries: Vec::new(), first: 1, incarnation: "0".to_owned(), restorations: 0, appended: 0 }
    }
}

impl Log {
    /// Stores an entry; its sequence.
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

    /// The entries from `first` to `last`, both included, but for those that are gone.
    pub(crate) fn read(&self, first: u64, last: u64) -> Vec<StreamEntry> {
        (first.max(self.first)..=last.min(self.len())).filter_map(|seq| self.entry(seq)).collect()
    }

    fn entry(&self, seq: u64) -> Option<StreamEntry> {
        let (at_ns, body) = self.entries.get(seq as usize - 1)?.as_ref()?;
        let stored_at = Timestamp(at_ns / 1_000_000);
        Some(StreamEntry { seq: Seq(seq), stored_at, bytes: size(body), body: body.clone() })
    }

    /// What the entry of that sequence is recognised by.
    pub(crate) fn mark(&self, seq: u64) -> Option<Mark> {
        let at = seq.checked_sub(1).filter(|_| seq >= self.first)?;
        let (stored_at_ns, _) = self.entries.get(at as usize)?.as_ref()?;
        Some(Mark { seq: Seq(seq), stored_at_ns: *stored_at_ns })
    }

    /// What it says of itself.
    pub(crate) fn found(&self) -> Found<'_> {
        let first = Seq(self.first.min(self.len() + 1));
        Found { incarnation: &self.incarnation, first, last: Seq(self.len()) }
    }

    /// What was read, beside what is there now.
    pub(crate) fn compare(&self, read: Mark) -> Compared {
        Compared { read, found: self.mark(read.seq.0).map(|mark| mark.stored_at_ns) }
    }

    /// Whether it is the stream of that name still, as far as it was read.
    pub(crate) fn is_as_read(&self, incarnation: &str, read: Option<Mark>) -> bool {
        self.incarnation == incarnation && read.is_none_or(|read| self.found().agrees(self.compare(read)))
    }

    /// Removes everything up to `last`.
    pub(crate) fn purge(&mut self, last: u64) -> Vec<StreamEntry> {
        let last = last.min(self.len());
        let purged = self.read(self.first, last);
        self.first = self.first.max(last + 1);
        purged
    }

    /// Loses everything after `last`.
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

    /// Is deleted and made anew.
    pub(crate) fn renew(&mut self) -> Vec<StreamEntry> {
        let lost = self.cut(0);
        (self.first, self.incarnation) = (1, self.restorations.to_string());
        lost
    }

    /// Loses one entry.
    pub(crate) fn lose(&mut self, seq: u64) -> Option<StreamEntry> {
        let lost = self.entry(seq).filter(|_| seq >= self.first);
        if let Some(entry) = self.entries.get_mut(seq as usize - 1) {
            *entry = None;
        }
        lost
    }
}

/// Bytes of an entry, about.
fn size(body: &EntryBody) -> usize {
    match body {
        EntryBody::Frame(frame) => frame.chunks.iter().map(|arrival| 20 + arrival.chunk.text.len()).sum(),
        EntryBody::Command(_, raw) => raw.payload.len(),
        EntryBody::Refused { payload, .. } => payload.len(),
    }
}
