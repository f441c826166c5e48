//! Moves the entries of the old streams after their checkpoints.

use std::collections::BTreeMap;

use bus::{Bus, ExpectedStream, MovedEntry, PartitionReader, RawEntry, ReaderEvent};
use model::{PartitionId, Seq};
use store::PartitionChange;
use wire::subject;

use super::placement::{MovedStream, Place, Placement, Progress};
use crate::exit::ExitError;

/// Entries that are read together.
const BATCH: usize = 512;

/// The part of a stream that is moved.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) partition: PartitionId,
    /// Epoch of this run; consumers of other runs have lower ones.
    pub(super) epoch: u64,
    pub(super) incarnation: Option<String>,
    /// Moves entries after this sequence.
    pub(super) after: Seq,
    /// Last sequence to move.
    pub(super) end: Seq,
}

/// Moves entries, and skips those that an earlier run has moved.
pub(super) struct Mover<'a> {
    bus: &'a Bus,
    placement: Placement,
    /// Number of entries that this run has stored.
    moved: u64,
}

impl<'a> Mover<'a> {
    /// # Errors
    /// The servers do not answer.
    pub(super) async fn new(bus: &'a Bus, change: &PartitionChange, ends: &[Seq]) -> Result<Self, ExitError> {
        let mut targets = Vec::with_capacity(ends.len());
        for (number, end) in (0..).zip(ends) {
            let last = bus.stream_state(PartitionId(number)).await?.last_seq;
            targets.push(MovedStream { end: *end, stored: last.0.saturating_sub(end.0) });
        }
        Ok(Self { bus, placement: Placement::new(change.to, targets), moved: 0 })
    }

    /// Moves all of a source.
    ///
    /// # Errors
    /// The servers do not answer, or another process writes into the streams.
    pub(super) async fn move_source(&mut self, of: &Source) -> Result<(), ExitError> {
        if of.after >= of.end {
            return Ok(());
        }
        let same = ExpectedStream { incarnation: of.incarnation.clone(), read: None };
        let from = of.after.next();
        let mut reader = PartitionReader::open(self.bus, of.partition, of.epoch, from, same).await?;
        let mut read = of.after;
        while read < of.end {
            match reader.next_batch(BATCH).await {
                ReaderEvent::Entries(entries) => {
                    for entry in &entries {
                        self.check_hole(of.partition, read.next(), entry.seq).await?;
                        read = entry.seq;
                    }
                    let entries = entries.into_iter().filter(|entry| entry.seq <= of.end);
                    self.append(entries.collect()).await?;
                }
                // The last entries are missing in the stream.
                ReaderEvent::CaughtUp(true) => {
                    let end = self.bus.stream_state(of.partition).await?.last_seq.next();
                    self.check_hole(of.partition, read.next(), end).await?;
                    break;
                }
                ReaderEvent::CaughtUp(false) | ReaderEvent::Trouble(None) => {}
                ReaderEvent::Trouble(Some(why)) => {
                    tracing::warn!(partition = %of.partition, why, "the stream cannot be read; waiting");
                }
                ReaderEvent::StreamChanged => {
                    let name = subject::stream_name(of.partition);
                    return Err(ExitError::Failed(format!("the stream {name} is another one than before")));
                }
            }
        }
        reader.close().await;
        Ok(())
    }

    /// Entries that were not read must be missing in the stream too; otherwise the run fails, since
    /// an entry that is not moved is lost.
    async fn check_hole(&self, partition: PartitionId, expected: Seq, found: Seq) -> Result<(), ExitError> {
        if found <= expected {
            return Ok(());
        }
        let name = subject::stream_name(partition);
        match self.bus.next_entry(&name, ">", expected).await? {
            Some(entry) if entry.seq < found => Err(ExitError::Failed(format!(
                "entry {} of the stream {name} was not read: run this again",
                entry.seq
            ))),
            Some(_) | None => {
                tracing::warn!(stream = name, first = %expected, behind = %found, "the stream lacks entries");
                Ok(())
            }
        }
    }

    /// Returns the number of entries that this run has moved.
    ///
    /// # Errors
    /// A stream has more entries than were moved into it.
    pub(super) fn finish(self) -> Result<u64, ExitError> {
        match self.placement.with_too_much() {
            Some(partition) => Err(foreign(partition)),
            None => Ok(self.moved),
        }
    }

    async fn append(&mut self, entries: Vec<RawEntry>) -> Result<(), ExitError> {
        let mut missing: BTreeMap<PartitionId, (Seq, Vec<MovedEntry>)> = BTreeMap::new();
        for entry in entries {
            let Some(place) = self.placement.place(&entry.subject) else {
                return Err(ExitError::Failed(format!("{} is no subject of a partition", entry.subject)));
            };
            let Place { partition, seq, progress, .. } = place;
            let moved = MovedEntry::new(entry, place.subject);
            match progress {
                Progress::Stored => {}
                Progress::StoredLast => self.check_stored(partition, seq, &moved).await?,
                Progress::Missing => {
                    missing.entry(partition).or_insert((seq.before(), Vec::new())).1.push(moved);
                }
            }
        }
        for (partition, (after, entries)) in missing {
            self.bus.append_moved(partition, &entries, after).await?;
            self.moved += entries.len() as u64;
        }
        Ok(())
    }

    /// The last entry that an earlier run moved must be the entry that is stored at that sequence.
    async fn check_stored(
        &self,
        partition: PartitionId,
        seq: Seq,
        moved: &MovedEntry,
    ) -> Result<(), ExitError> {
        let name = subject::stream_name(partition);
        let stored = self.bus.next_entry(&name, moved.subject(), seq).await?;
        match stored.is_some_and(|stored| stored.seq == seq && stored.payload == *moved.payload()) {
            true => Ok(()),
            false => Err(foreign(partition)),
        }
    }
}

fn foreign(partition: PartitionId) -> ExitError {
    let name = subject::stream_name(partition);
    ExitError::Failed(format!(
        "the stream {name} has entries that were not moved there: something else has written into it"
    ))
}
