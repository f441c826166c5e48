//! Where a partition is in its stream, and which entries it may need again.

use std::collections::BTreeSet;

use model::{Seq, Timestamp};

use crate::messages::Slot;
use crate::stream_clock::StreamClock;

/// Slot in [`StreamReading::holds`] of an entry without a message: a command, or an entry that
/// becomes a dead letter.
pub(crate) const NO_SLOT: Slot = Slot::MAX;

/// An entry, and the index of a chunk in its frame; 0 in an entry without chunks.
pub(crate) type EntryPlace = (Seq, usize);

#[derive(Debug)]
pub(crate) struct StreamReading {
    pub(crate) clock: StreamClock,
    /// Entries that the checkpoint must not pass, with the message that needs them.
    pub(crate) holds: BTreeSet<(Seq, Slot)>,
    /// Bytes of entries read, each counted once.
    pub(crate) read_bytes: u64,
    /// Highest entry ever read.
    pub(crate) highest_seq: Seq,
    /// Last entry read, and when it was stored.
    pub(crate) last_seq: Seq,
    pub(crate) last_stored_at: Timestamp,
    /// True once the reader has seen everything under this epoch.
    pub(crate) has_caught_up: bool,
    /// Last entry read when the reader caught up. Commands up to it are decided before turns start.
    pub(crate) begins_after: Seq,
    /// First item that has to wait in the stream.
    pub(crate) deferring: Option<EntryPlace>,
    /// Chunks before this place in its frame have been taken. The entry is read again for a chunk
    /// that had to wait, and messages that ended meanwhile must not use up its room each time.
    pub(crate) resumes_at: EntryPlace,
}

impl StreamReading {
    pub(crate) fn new(checkpoint: Seq, stream_step_ms: i64, now: Timestamp) -> Self {
        Self {
            clock: StreamClock::new(stream_step_ms),
            holds: BTreeSet::new(),
            read_bytes: 0,
            highest_seq: checkpoint,
            last_seq: checkpoint,
            last_stored_at: now,
            has_caught_up: false,
            begins_after: Seq(0),
            deferring: None,
            resumes_at: (Seq(0), 0),
        }
    }

    /// Makes the stream keep an entry without a message.
    pub(crate) fn hold_entry(&mut self, seq: Seq) {
        self.holds.insert((seq, NO_SLOT));
    }

    /// Ends the hold of an entry without a message.
    pub(crate) fn release_entry(&mut self, seq: Seq) {
        self.holds.remove(&(seq, NO_SLOT));
    }

    /// Highest sequence up to which nothing is needed again.
    pub(crate) fn low(&self) -> Seq {
        let held = self.holds.first().map_or(self.last_seq, |(seq, _)| seq.before());
        let deferred = self.deferring.map_or(self.last_seq, |(seq, _)| seq.before());
        held.min(deferred).min(self.last_seq)
    }

    /// Sets the position back to the first item that had to wait in the stream, and returns its
    /// entry.
    pub(crate) fn go_back(&mut self, now: Timestamp) -> Option<Seq> {
        let place = self.deferring.take()?;
        let (from, _) = place;
        self.resumes_at = place;
        self.last_seq = from.before();
        self.clock.set_caught_up(false, now);
        Some(from)
    }
}
