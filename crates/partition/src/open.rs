//! An open message: its chunks, buffer and save state.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::{
    AnswerCalls, BatchType, Chunk, ChunkKind, IncomingChunk, MessageFailure, MessageKey, ModelCall,
    RetryHint, Role, Seq, Timestamp, TurnId, TurnToken,
};
use reorder::{ChunkRejection, Insert, Piece, Reorder};

use crate::action::BufferState;
use crate::chunk_times::ChunkTimes;
use crate::commit::SpilledMessage;
use crate::halves::OpenHalves;
use crate::limits::PartitionLimits;

/// Maximum number of missing ranges in a failure or a buffer's state.
const NAMED_RANGES: usize = 64;

/// Approximate bytes of a chunk in a frame or a saved row besides its text.
pub(crate) const CHUNK_OVERHEAD: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The store was asked whether the message has already ended. Until it answers, no chunk is
    /// released.
    Unknown,
    /// Chunks are ordered and released as they come.
    Live,
    /// The message has ended and is kept until its commit is applied.
    Ended,
}

/// The turn that a message answers.
#[derive(Debug, Clone)]
pub(crate) struct TurnRef {
    pub(crate) id: TurnId,
    /// Token that its chunks must carry.
    pub(crate) token: TurnToken,
    /// Type of the turn's batch.
    pub(crate) batch_type: BatchType,
    /// Nothing is sent before the commit, because the turn may be withdrawn.
    pub(crate) is_held_back: bool,
}

/// An open message: its buffer, and what is needed to release, save and end it.
#[derive(Debug)]
pub(crate) struct OpenMessage {
    pub(crate) key: MessageKey,
    pub(crate) phase: Phase,
    /// `None` for a bare message.
    pub(crate) turn: Option<TurnRef>,
    pub(crate) attempt: u32,
    /// Delivery of the turn request from which chunks are accepted, once a chunk has named it. Not
    /// saved.
    delivery: Option<Box<str>>,
    pub(crate) role: Role,
    reorder: Reorder<Arc<Chunk>>,
    halves: OpenHalves,
    is_restoring: bool,
    /// Ids of chunks restored from the store. Joining of UTF-16 halves may have changed their text,
    /// so the same chunks read again from the stream may differ.
    restored: BTreeSet<u32>,
    /// Released chunks, in order and without gaps; those from index `published` on have not been
    /// sent.
    pub(crate) released: Vec<Arc<Chunk>>,
    /// Arrival times of the chunks.
    pub(crate) times: ChunkTimes,
    published: usize,
    /// The error chunk that made the message fail.
    error: Option<Arc<Chunk>>,
    /// Number of released chunks of this attempt that are stored.
    saved: usize,
    /// Bytes of the message at the time when all of it was last saved; 0 if never.
    saved_bytes: usize,
    /// Part of the message that is being saved.
    saving: Option<PartUnderWay>,
    announce_reset: bool,
    /// Model calls of earlier attempts, as far as this owner has read them.
    earlier_calls: Vec<ModelCall>,
    /// A part of the message is stored or being saved, and must be deleted when the message ends.
    pub(crate) is_saved: bool,
    /// A previous owner saved the message, so its ages include time in which nothing was read.
    pub(crate) is_restored: bool,
    /// The failure is decided, but takes effect only after the store has confirmed that the message
    /// is new.
    pub(crate) failure: Option<MessageFailure>,
    pub(crate) first_seq: Seq,
    /// Lowest entry needed to rebuild what is not saved.
    pub(crate) hold: Option<Hold>,
    opened_at: Timestamp,
    /// Time of the last counted chunk; repetitions do not count.
    last_chunk_at: Timestamp,
}

/// An entry that the stream must keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) seq: Seq,
    /// Total bytes of the entries that this owner had read up to this entry.
    pub(crate) read_bytes: u64,
}

/// A part of a message that is being saved.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PartUnderWay {
    attempt: u32,
    /// Number of released chunks saved after this part.
    released: usize,
    /// Bytes of the message if this is the last part; `None`: another part follows.
    whole_bytes: Option<usize>,
    /// First entry that came after the save began and is not in this part.
    later: Option<Hold>,
}

/// Result of taking one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChunkOutcome {
    Accepted { held: bool },
    Duplicate,
    Conflict { kept: u64, dropped: u64 },
    Fenced,
    Late,
    Broke,
}

impl OpenMessage {
    /// See [`TurnRef::is_held_back`]. Hidden messages, which only models see, are held back as
    /// well.
    pub(crate) fn is_held_back(&self) -> bool {
        self.turn.as_ref().map_or_else(|| self.is_hidden(), |turn| turn.is_held_back)
    }

    /// True for a hidden note, which is a single chunk.
    pub(crate) fn is_hidden(&self) -> bool {
        self.turn.is_none() && self.accepted().next().is_some_and(|chunk| chunk.metadata.is_synthetic())
    }

    /// A message whose first chunk has just come. `time` is the time of the stream clock.
    pub(crate) fn new(
        key: MessageKey,
        arrival: &IncomingChunk,
        seq: Seq,
        limits: &PartitionLimits,
        time: Timestamp,
    ) -> Self {
        Self::empty(key, arrival.attempt, arrival.role, seq, limits, time)
    }

    fn empty(
        key: MessageKey,
        attempt: u32,
        role: Role,
        first_seq: Seq,
        limits: &PartitionLimits,
        time: Timestamp,
    ) -> Self {
        Self {
            key,
            phase: Phase::Unknown,
            turn: None,
            attempt,
            delivery: None,
            role,
            reorder: new_reorder(limits),
            halves: OpenHalves::default(),
            is_restoring: false,
            restored: BTreeSet::new(),
            released: Vec::new(),
            times: ChunkTimes::default(),
            published: 0,
            error: None,
            saved: 0,
            saved_bytes: 0,
            saving: None,
            announce_reset: false,
            earlier_calls: Vec::new(),
            is_saved: false,
            is_restored: false,
            failure: None,
            first_seq,
            hold: None,
            opened_at: time,
            last_chunk_at: time,
        }
    }

    /// Restores a message saved by the previous owner. All released chunks are sent again: this
    /// repairs frames lost with that owner, and gateways drop what they have.
    pub(crate) fn restore(
        saved: &SpilledMessage,
        limits: &PartitionLimits,
        time: Timestamp,
        now: Timestamp,
    ) -> Self {
        let mut open =
            Self::empty(saved.key.clone(), saved.attempt, saved.role, saved.first_seq, limits, time);
        open.is_restoring = true;
        // Only the times of the first and the last chunk were saved.
        for chunk in &saved.chunks {
            let ago_ms = if open.released.is_empty() { saved.open_ms } else { saved.idle_ms };
            open.insert(chunk, time, now.plus_ms(-ago_ms));
        }
        open.is_restoring = false;
        // Only the oldest gap has the saved age. The ages of the others start again, because an age
        // that is too high would fail a message wrongly.
        open.reorder.set_gap_opened_at(time.plus_ms(-saved.gap_ms.unwrap_or(0)));
        open.earlier_calls.clone_from(&saved.earlier_calls);
        open.phase = Phase::Live;
        (open.saved, open.saved_bytes) = (open.released.len(), open.bytes());
        open.is_saved = true;
        open.is_restored = true;
        open.opened_at = time.plus_ms(-saved.open_ms);
        open.last_chunk_at = time.plus_ms(-saved.idle_ms);
        open
    }

    /// Makes a message restored at `restored_at` younger, by time that was counted twice.
    pub(crate) fn postpone(&mut self, restored_at: Timestamp, by_ms: i64) {
        self.reorder.postpone(restored_at, by_ms);
        self.opened_at = self.opened_at.plus_ms(by_ms);
        if self.last_chunk_at <= restored_at {
            self.last_chunk_at = self.last_chunk_at.plus_ms(by_ms);
        }
    }

    /// Takes one chunk of this message. `stored_at`: time at which the stream stored it. If an
    /// attempt was delivered several times, only the delivery whose chunk comes first counts.
    pub(crate) fn take(
        &mut self,
        arrival: &IncomingChunk,
        delivery: Option<&str>,
        limits: &PartitionLimits,
        time: Timestamp,
        stored_at: Timestamp,
    ) -> ChunkOutcome {
        if arrival.attempt < self.attempt || self.is_other_delivery(arrival.attempt, delivery) {
            return ChunkOutcome::Fenced;
        }
        // A complete message counts as ended even before the store has answered. How a message ends
        // must depend only on the order of the stream, not on when the answer came.
        if self.phase == Phase::Ended || self.failure.is_some() || self.is_complete() {
            let known = arrival.attempt == self.attempt && self.reorder.seen(arrival.chunk.id).is_some();
            return if known { ChunkOutcome::Duplicate } else { ChunkOutcome::Late };
        }
        if arrival.attempt > self.attempt {
            self.reset(arrival, limits);
        }
        if self.delivery.is_none() {
            self.delivery = delivery.map(Into::into);
        }
        let outcome = self.insert(&arrival.chunk, time, stored_at);
        // A repeated chunk does not show that the message makes progress.
        if matches!(outcome, Insert::Ready | Insert::Held) {
            self.last_chunk_at = time;
        }
        match outcome {
            Insert::Ready => ChunkOutcome::Accepted { held: false },
            Insert::Held => ChunkOutcome::Accepted { held: true },
            Insert::Duplicate => ChunkOutcome::Duplicate,
            Insert::Conflict { .. } if self.restored.contains(&arrival.chunk.id) => ChunkOutcome::Duplicate,
            Insert::Conflict { kept } => ChunkOutcome::Conflict { kept, dropped: arrival.chunk.digest() },
            Insert::Rejected(rejection) => {
                self.failure = Some(failure_of(rejection, limits));
                ChunkOutcome::Broke
            }
        }
    }

    /// Delivery of the turn request from which chunks are accepted.
    pub(crate) fn delivery(&self) -> Option<&str> {
        self.delivery.as_deref()
    }

    fn is_other_delivery(&self, attempt: u32, delivery: Option<&str>) -> bool {
        let is_other = |known: &str| delivery.is_some_and(|delivery| delivery != known);
        attempt == self.attempt && self.delivery.as_deref().is_some_and(is_other)
    }

    fn insert(&mut self, chunk: &Arc<Chunk>, time: Timestamp, stored_at: Timestamp) -> Insert {
        let (id, size) = (chunk.id, chunk.size());
        let piece = Piece { id, is_final: chunk.is_final, digest: chunk.digest(), size };
        let outcome = self.reorder.insert(piece, Arc::clone(chunk), time);
        while outcome == Insert::Ready && self.failure.is_none() {
            let Some(chunk) = self.reorder.next_ready() else { break };
            // Chunks that were saved as released were joined before saving and come in order.
            // Chunks that were saved while they waited were not joined.
            let chunk = if self.is_restoring && chunk.id == id {
                self.halves.restore(&chunk);
                self.restored.insert(id);
                chunk
            } else {
                self.halves.join(chunk)
            };
            match chunk.kind {
                ChunkKind::Error => {
                    self.failure = Some(MessageFailure::ProducerError {
                        text: chunk.text.to_string(),
                        code: MessageFailure::own_code(&chunk.metadata),
                        hint: RetryHint::of(&chunk.metadata),
                    });
                    self.error = Some(chunk);
                }
                _ => {
                    self.times.note(self.released.len(), &chunk, stored_at);
                    self.released.push(chunk);
                }
            }
        }
        outcome
    }

    fn reset(&mut self, arrival: &IncomingChunk, limits: &PartitionLimits) {
        self.earlier_calls = self.model_calls();
        self.attempt = arrival.attempt;
        self.delivery = None;
        self.role = arrival.role;
        self.reorder = new_reorder(limits);
        self.halves = OpenHalves::default();
        self.restored.clear();
        (self.error, self.saved, self.saved_bytes) = (None, 0, 0);
        self.announce_reset |= self.published > 0;
        self.released.clear();
        self.times = ChunkTimes::default();
        self.published = 0;
    }

    /// Type of the batch; a bare message answers no request.
    pub(crate) fn batch_type(&self) -> BatchType {
        self.turn.as_ref().map_or(BatchType::SystemTrigger, |turn| turn.batch_type)
    }

    /// Returns the chunks that have not been sent, and marks them as sent; `None` when there is
    /// nothing to send.
    pub(crate) fn unpublished(&mut self) -> Option<Vec<Arc<Chunk>>> {
        if self.phase == Phase::Unknown || (self.published == self.released.len() && !self.announce_reset) {
            return None;
        }
        self.announce_reset = false;
        let chunks = self.released[self.published..].to_vec();
        self.published = self.released.len();
        Some(chunks)
    }

    /// True while a part of it is being saved.
    pub(crate) fn is_being_saved(&self) -> bool {
        self.saving.is_some()
    }

    /// True if the message has at least doubled in size since all of it was last saved.
    pub(crate) fn has_doubled(&self) -> bool {
        self.bytes() >= 2 * self.saved_bytes
    }

    /// Next unsaved part: released chunks of about this many bytes and, in the last part, the
    /// chunks behind a gap. Call [`Self::end_save`] when it is stored.
    pub(crate) fn save_part(&mut self, most_bytes: usize, time: Timestamp) -> SpilledMessage {
        let unsaved = &self.released[self.saved..];
        let mut chunks = unsaved[..chunks_within(unsaved, most_bytes)].to_vec();
        let released = self.saved + chunks.len();
        let is_last = released == self.released.len();
        if is_last {
            // The error chunk comes last: anything restored after it would count as late.
            chunks.extend(self.reorder.waiting().chain(&self.error).cloned());
        }
        let whole_bytes = is_last.then(|| self.bytes());
        self.saving = Some(PartUnderWay { attempt: self.attempt, released, whole_bytes, later: None });
        self.is_saved = true;
        SpilledMessage {
            key: self.key.clone(),
            attempt: self.attempt,
            first_chunk: self.saved as u32,
            role: self.role,
            first_seq: self.first_seq,
            open_ms: time.since_ms(self.opened_at),
            gap_ms: self.gap_ms(time),
            idle_ms: time.since_ms(self.last_chunk_at),
            chunks,
            earlier_calls: self.earlier_calls.clone(),
        }
    }

    /// Makes the stream keep this entry. True if no lower entry was held.
    pub(crate) fn hold(&mut self, hold: Hold) -> bool {
        if let Some(part) = &mut self.saving {
            part.later.get_or_insert(hold);
        }
        let is_first = self.hold.is_none();
        self.hold.get_or_insert(hold);
        is_first
    }

    /// Ends a save that was stored. Returns the hold that is no longer needed; [`Self::hold`] has
    /// the next hold.
    pub(crate) fn end_save(&mut self) -> Option<Hold> {
        let part = self.saving.take()?;
        // If a higher attempt has begun meanwhile, nothing of the saved attempt is needed again.
        if part.attempt == self.attempt {
            self.saved = part.released;
            self.saved_bytes = part.whole_bytes.unwrap_or(self.saved_bytes);
        }
        part.whole_bytes?;
        std::mem::replace(&mut self.hold, part.later)
    }

    /// Handles the store's refusal of the part being saved. If the message ended meanwhile, its end
    /// stays as it is.
    pub(crate) fn fail_save(&mut self, failure: MessageFailure) {
        self.saving = None;
        if self.phase == Phase::Live && !self.is_complete() {
            self.failure.get_or_insert(failure);
        }
    }

    /// Known model calls in the order in which chunks report them; those of earlier attempts first.
    pub(crate) fn model_calls(&self) -> Vec<ModelCall> {
        let mut calls = self.earlier_calls.clone();
        calls.extend(self.attempt_calls());
        ModelCall::of_answer(calls)
    }

    fn attempt_calls(&self) -> Vec<ModelCall> {
        let mut chunks: Vec<&Arc<Chunk>> = self.accepted().collect();
        chunks.sort_by_key(|chunk| chunk.id);
        let mut calls = AnswerCalls::default();
        chunks.into_iter().for_each(|chunk| calls.take(chunk));
        calls.finish()
    }

    /// All counted chunks, released ones first and in order.
    fn accepted(&self) -> impl Iterator<Item = &Arc<Chunk>> {
        self.released.iter().chain(&self.error).chain(self.reorder.waiting())
    }

    /// True if the final chunk has been released.
    pub(crate) fn is_complete(&self) -> bool {
        self.reorder.is_complete()
    }

    /// Age of the oldest gap, ms.
    pub(crate) fn gap_ms(&mut self, time: Timestamp) -> Option<i64> {
        self.reorder.gap_opened_at().map(|opened_at| time.since_ms(opened_at))
    }

    /// Time since the last counted chunk, ms.
    pub(crate) fn idle_ms(&self, time: Timestamp) -> i64 {
        time.since_ms(self.last_chunk_at)
    }

    /// State of the buffer, for the log.
    pub(crate) fn buffer_state(&self, time: Timestamp) -> BufferState {
        BufferState {
            expected: self.next(),
            received: self.received() as u32,
            released: self.released.len() as u32,
            missing: self.reorder.missing(NAMED_RANGES),
            idle_ms: self.idle_ms(time),
        }
    }

    /// Correlation id for tracing across services, from the highest chunk that has one.
    pub(crate) fn correlation_id(&self) -> Option<Box<str>> {
        let with_id = self.accepted().filter(|chunk| chunk.correlation_id.is_some());
        with_id.max_by_key(|chunk| chunk.id)?.correlation_id.clone()
    }

    /// Time since it was opened, ms.
    pub(crate) fn age_ms(&self, time: Timestamp) -> i64 {
        time.since_ms(self.opened_at)
    }

    /// Failure of a message whose gap was open for too long.
    pub(crate) fn gap_failure(&self) -> MessageFailure {
        MessageFailure::GapTimeout { missing: self.reorder.missing(NAMED_RANGES) }
    }

    /// All accepted chunks by id, for a dead letter.
    pub(crate) fn chunks_by_id(&self) -> Vec<Arc<Chunk>> {
        let mut chunks: Vec<Arc<Chunk>> = self.accepted().cloned().collect();
        chunks.sort_by_key(|chunk| chunk.id);
        chunks
    }

    /// Number of chunks accepted.
    pub(crate) fn received(&self) -> usize {
        self.released.len() + usize::from(self.error.is_some()) + self.reorder.held()
    }

    /// Id of the chunk released next.
    pub(crate) fn next(&self) -> u32 {
        self.reorder.next()
    }

    /// Bytes of accepted chunks.
    pub(crate) fn bytes(&self) -> usize {
        self.reorder.bytes()
    }
}

/// Number of leading chunks with about this many bytes in total: at least one, if there is one.
pub(crate) fn chunks_within(chunks: &[Arc<Chunk>], most_bytes: usize) -> usize {
    let mut bytes = 0;
    let fits = chunks.iter().take_while(|chunk| {
        let first = bytes == 0;
        bytes += chunk.size() + CHUNK_OVERHEAD;
        first || bytes <= most_bytes
    });
    fits.count()
}

fn new_reorder(limits: &PartitionLimits) -> Reorder<Arc<Chunk>> {
    Reorder::new(reorder::MessageLimits { chunks: limits.chunks_per_message, bytes: limits.message_bytes })
}

fn failure_of(rejection: ChunkRejection, limits: &PartitionLimits) -> MessageFailure {
    match rejection {
        ChunkRejection::FinalConflict { final_id, other_id } => {
            MessageFailure::FinalConflict { final_id, other_id }
        }
        ChunkRejection::TooManyChunks => MessageFailure::TooManyChunks { limit: limits.chunks_per_message },
        ChunkRejection::TooLarge => MessageFailure::MessageTooLarge { limit: limits.message_bytes },
    }
}
