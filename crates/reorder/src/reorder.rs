//! The reorder buffer of one message.

use std::collections::{BTreeMap, VecDeque};

use model::{IdRange, Timestamp};

/// Chunks less than this far ahead of the next one are held in a ring, others in a tree. Whatever
/// id a chunk claims, it allocates at most this number of slots of the ring, or one entry of the
/// tree.
const RING: usize = 64;

/// Limits of one message.
#[derive(Debug, Clone, Copy)]
pub struct MessageLimits {
    /// Maximum number of chunks; ids from this number on are rejected.
    pub chunks: u32,
    /// Maximum bytes of a message.
    pub bytes: usize,
}

/// Properties of a chunk that the buffer needs.
#[derive(Debug, Clone, Copy)]
pub struct Piece {
    /// Number in the message, from 0.
    pub id: u32,
    /// True for the last chunk.
    pub is_final: bool,
    /// Distinguishes chunks of the same id.
    pub digest: u64,
    /// Size in bytes.
    pub size: usize,
}

/// Result of inserting a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Insert {
    /// The chunk was the next one: [`Reorder::next_ready`] returns it and the chunks that it
    /// releases.
    Ready,
    /// The chunk waits behind a gap.
    Held,
    /// The same chunk is already present; dropped.
    Duplicate,
    /// Another chunk with this id is already present and stays; dropped.
    Conflict {
        /// Digest of the chunk that stays.
        kept: u64,
    },
    /// The chunk contradicts the message or exceeds a limit; it is dropped without any other
    /// change.
    Rejected(ChunkRejection),
}

/// Why a chunk is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ChunkRejection {
    /// Two finals, a chunk beyond the final, a final below an accepted id, or an accepted chunk
    /// repeated as final.
    #[error("chunk {final_id} is final, but chunk {other_id} contradicts it")]
    FinalConflict {
        /// Id of the final chunk.
        final_id: u32,
        /// Id that contradicts it.
        other_id: u32,
    },
    /// The id is at or above [`MessageLimits::chunks`].
    #[error("too many chunks")]
    TooManyChunks,
    /// The message would exceed [`MessageLimits::bytes`].
    #[error("too many bytes")]
    TooLarge,
}

#[derive(Debug)]
struct Held<T> {
    digest: u64,
    item: T,
}

/// The reorder buffer of one message. RFC 9000 section 2.2 has the same rules for stream frames.
/// The final size cannot change once it is known, as in that RFC.
#[derive(Debug)]
pub struct Reorder<T> {
    limits: MessageLimits,
    /// Digests of the chunks below `next`, by id.
    released: Vec<u64>,
    /// A chunk that came in order and has not been taken; already counted in `released`.
    ready: Option<T>,
    /// Slots for the ids `next`, `next + 1`, …; the first one is empty while a gap is open.
    ring: VecDeque<Option<Held<T>>>,
    far: BTreeMap<u32, Held<T>>,
    /// Held chunks in the order of arrival; those below `next` are stale and skipped.
    arrivals: VecDeque<(u32, Timestamp)>,
    held: usize,
    bytes: usize,
    highest: Option<u32>,
    final_id: Option<u32>,
}

impl<T> Reorder<T> {
    /// An empty buffer; allocates nothing.
    pub fn new(limits: MessageLimits) -> Self {
        Self {
            limits,
            released: Vec::new(),
            ready: None,
            ring: VecDeque::new(),
            far: BTreeMap::new(),
            arrivals: VecDeque::new(),
            held: 0,
            bytes: 0,
            highest: None,
            final_id: None,
        }
    }

    /// Inserts a chunk. After [`Insert::Ready`] drain [`Self::next_ready`].
    pub fn insert(&mut self, piece: Piece, item: T, now: Timestamp) -> Insert {
        debug_assert!(self.ready.is_none(), "drain next_ready after Insert::Ready");
        let kept = self.seen(piece.id);
        if kept == Some(piece.digest) {
            return Insert::Duplicate;
        }
        // Known chunks are checked too: a chunk that is repeated as final contradicts its first
        // version.
        if let Err(rejection) = self.check_final(&piece) {
            return Insert::Rejected(rejection);
        }
        if let Some(kept) = kept {
            return Insert::Conflict { kept };
        }
        if let Err(rejection) = self.check_size(&piece) {
            return Insert::Rejected(rejection);
        }
        self.bytes += piece.size;
        self.highest = self.highest.max(Some(piece.id));
        if piece.is_final {
            self.final_id = Some(piece.id);
        }
        if piece.id == self.next() {
            self.released.push(piece.digest);
            self.ready = Some(item);
            // The chunk's slot at the front of the ring was empty: that was the gap.
            self.ring.pop_front();
            return Insert::Ready;
        }
        self.hold(piece, item, now);
        Insert::Held
    }

    /// Next chunk in order; each is returned once.
    pub fn next_ready(&mut self) -> Option<T> {
        if let Some(item) = self.ready.take() {
            return Some(item);
        }
        let held = match self.ring.front() {
            Some(Some(_)) => self.ring.pop_front().flatten(),
            Some(None) => self.take_far(),
            None => self.take_far(),
        }?;
        self.held -= 1;
        self.released.push(held.digest);
        Some(held.item)
    }

    /// Digest of the chunk with this id, if present.
    pub fn seen(&self, id: u32) -> Option<u64> {
        let next = self.next();
        if id < next {
            return self.released.get(id as usize).copied();
        }
        let ring = self.ring.get((id - next) as usize).and_then(Option::as_ref);
        ring.or_else(|| self.far.get(&id)).map(|held| held.digest)
    }

    /// Id of the next chunk to release.
    pub fn next(&self) -> u32 {
        self.released.len() as u32
    }

    /// True if every chunk up to the final one has been released.
    pub fn is_complete(&self) -> bool {
        self.final_id.is_some_and(|last| self.next() > last) && self.ready.is_none()
    }

    /// Time at which the oldest open gap opened: the arrival of the first chunk that still waits.
    /// Later chunks do not change it, and closing one gap does not change the age of the others.
    pub fn gap_opened_at(&mut self) -> Option<Timestamp> {
        let next = self.next();
        while self.arrivals.front().is_some_and(|(id, _)| *id < next) {
            self.arrivals.pop_front();
        }
        self.arrivals.front().map(|(_, at)| *at)
    }

    /// Sets the opening of the oldest open gap, for a buffer rebuilt from a save.
    pub fn set_gap_opened_at(&mut self, at: Timestamp) {
        self.gap_opened_at();
        if let Some((_, opened_at)) = self.arrivals.front_mut() {
            *opened_at = at;
        }
    }

    /// Makes gaps that opened at `until` or before younger by `by_ms`, which is time that does not
    /// count.
    pub fn postpone(&mut self, until: Timestamp, by_ms: i64) {
        for (_, at) in self.arrivals.iter_mut().filter(|(_, at)| *at <= until) {
            *at = at.plus_ms(by_ms);
        }
    }

    /// Missing ids below the highest known one, at most `most` ranges.
    pub fn missing(&self, most: usize) -> Vec<IdRange> {
        let mut ranges = Vec::new();
        let mut next = self.next();
        let ring = self.ring.iter().enumerate().filter(|(_, slot)| slot.is_some());
        let ring = ring.map(|(offset, _)| self.next() + offset as u32);
        let mut held: Vec<u32> = ring.chain(self.far.keys().copied()).collect();
        held.sort_unstable();
        for id in held {
            if id > next && ranges.len() < most {
                ranges.push(IdRange { first: next, last: id - 1 });
            }
            next = id + 1;
        }
        ranges
    }

    /// Chunks that [`Self::next_ready`] has not returned yet, in no particular order.
    pub fn waiting(&self) -> impl Iterator<Item = &T> {
        let held = self.ring.iter().flatten().chain(self.far.values());
        self.ready.iter().chain(held.map(|held| &held.item))
    }

    /// Number of chunks that wait behind a gap.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Bytes accepted so far.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn check_final(&self, piece: &Piece) -> Result<(), ChunkRejection> {
        let contradiction = |final_id, other_id| Err(ChunkRejection::FinalConflict { final_id, other_id });
        match (self.final_id, self.highest) {
            (Some(last), _) if piece.id > last || (piece.is_final && piece.id < last) => {
                contradiction(last, piece.id)
            }
            (None, Some(highest)) if piece.is_final && piece.id <= highest => {
                contradiction(piece.id, highest)
            }
            _ => Ok(()),
        }
    }

    fn check_size(&self, piece: &Piece) -> Result<(), ChunkRejection> {
        if piece.id >= self.limits.chunks {
            return Err(ChunkRejection::TooManyChunks);
        }
        if self.bytes + piece.size > self.limits.bytes {
            return Err(ChunkRejection::TooLarge);
        }
        Ok(())
    }

    fn hold(&mut self, piece: Piece, item: T, now: Timestamp) {
        let held = Held { digest: piece.digest, item };
        let offset = (piece.id - self.next()) as usize;
        if offset < RING {
            if self.ring.len() <= offset {
                self.ring.resize_with(offset + 1, || None);
            }
            self.ring[offset] = Some(held);
        } else {
            self.far.insert(piece.id, held);
        }
        self.held += 1;
        self.arrivals.push_back((piece.id, now));
    }

    /// Takes a far chunk that has become the next one; its slot in the ring, if any, is empty.
    fn take_far(&mut self) -> Option<Held<T>> {
        let entry = self.far.first_entry()?;
        if *entry.key() != self.released.len() as u32 {
            return None;
        }
        self.ring.pop_front();
        Some(entry.remove())
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
