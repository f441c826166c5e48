//! One open message.

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

/// Most missing ranges that a failure or a buffer's state names.
const NAMED_RANGES: usize = 64;

/// Bytes that a chunk takes in a frame or a saved row besides its text, about.
pub(crate) const CHUNK_OVERHEAD: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The store has been asked whether it has ended already; nothing is released.
    Unknown,
    /// Ordered and released as it comes.
    Live,
    /// It has ended; kept until its commit is applied.
    Ended,
}

/// The turn whose answer a message is.
#[derive(Debug, Clone)]
pub(crate) struct TurnRef {
    pub(crate) id: TurnId,
    /// What its chunks must carry.
    pub(crate) token: TurnToken,
    /// What its batch began with.
    pub(crate) batch_type: BatchType,
    /// Nothing of it is sent before it is committed: it may be taken back.
    pub(crate) is_held_back: bool,
}

/// An open message: its buffer, and what is needed to release, save, answer and end it.
#[derive(Debug)]
pub(crate) struct OpenMessage {
    pub(crate) key: MessageKey,
    pub(crate) phase: Phase,
    /// `None` for a bare message.
    pub(crate) turn: Option<TurnRef>,
    pub(crate) attempt: u32,
    /// The delivery of the turn request whose chunks count, once one has named itself. Not saved.
    delivery: Option<Box<str>>,
    pub(crate) role: Role,
    reorder: Reorder<Arc<Chunk>>,
    halves: OpenHalves,
    is_restoring: bool,
    /// Chunks that the store gave as they were released: with characters joined they need not be what is read again of them.
    restored: BTreeSet<u32>,
    /// In order, without gaps; those from `published` on have not been sent.
    pub(crate) released: Vec<Arc<Chunk>>,
    /// When they came.
    pub(crate) times: ChunkTimes,
    published: usize,
    /// The chunk that has made the message fail.
    error: Option<Arc<Chunk>>,
    /// How many of the released chunks of this attempt are in the store.
    saved: usize,
    /// Its bytes when all of it was last saved; 0 if it never was.
    saved_bytes: usize,
    /// The part of it that is on its way to the store.
    saving: Option<PartUnderWay>,
    announce_reset: bool,
    /// Of attempts before this one, as far as this owner has read them.
    earlier_calls: Vec<ModelCall>,
    /// A part of it is in the store, or on its way there, and must go when it ends.
    pub(crate) is_saved: bool,
    /// It was saved by an earlier owner, and its ages went on while nothing was read.
    pub(crate) is_restored: bool,
    /// Decided, but not acted upon before the store has said that the message is new.
    pub(crate) failure: Option<MessageFailure>,
    pub(crate) first_seq: Seq,
    /// The lowest entry that is needed to rebuild what is not saved.
    pub(crate) hold: Option<Hold>,
    opened_at: Timestamp,
    /// The last chunk that counted; repetitions do not.
    last_chunk_at: Timestamp,
}

/// An entry that the stream must keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) seq: Seq,
    /// Bytes of entries that this owner had read by then.
    pub(crate) read_bytes: u64,
}

/// A part of a message that is on its way to the store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PartUnderWay {
    attempt: u32,
    /// Released chunks that are saved with it.
    released: usize,
    /// The message's bytes, when nothing of it was left to save; `None`: another part follows.
    whole_bytes: Option<usize>,
    /// The first entry that came since, and is not in it.
    later: Option<Hold>,
}

/// What became of one chunk.
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
    /// See [`TurnRef::is_held_back`]. What only models may see is held back as well.
    pub(crate) fn is_held_back(&self) -> bool {
        self.turn.as_ref().map_or_else(|| self.is_hidden(), |turn| turn.is_held_back)
    }

    /// A hidden note, which is one chunk.
    pub(crate) fn is_hidden(&self) -> bool {
        self.turn.is_none() && self.accepted().next().is_some_and(|chunk| chunk.metadata.is_synthetic())
    }

    /// A message whose first chunk has just come. `time` is the stream clock's.
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

    /// A message as its last owner saved it. Everything that was released is sent again: frames that were lost with
    /// the last owner are thus repaired, and gateways drop what they have.
    pub(crate) fn restore(
        saved: &SpilledMessage,
        limits: &PartitionLimits,
        time: Timestamp,
        now: Timestamp,
    ) -> Self {
        let mut open =
            Self::empty(saved.key.clone(), saved.attempt, saved.role, saved.first_seq, limits, time);
        open.is_restoring = true;
        // When each of them came was not saved: only when the first and the last did.
        for chunk in &saved.chunks {
            let ago_ms = if open.released.is_empty() { saved.open_ms } else { saved.idle_ms };
            open.insert(chunk, time, now.plus_ms(-ago_ms));
        }
        open.is_restoring = false;
        // Only the oldest gap has this age; the others begin anew, because too old would fail a message that is not.
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

    /// Makes what was restored at `restored_at` younger, by time that was counted twice.
    pub(crate) fn postpone(&mut self, restored_at: Timestamp, by_ms: i64) {
        self.reorder.postpone(restored_at, by_ms);
        self.opened_at = self.opened_at.plus_ms(by_ms);
        if self.last_chunk_at <= restored_at {
            self.last_chunk_at = self.last_chunk_at.plus_ms(by_ms);
        }
    }

    /// Takes one chunk, which the stream's server stored at `stored_at`; the caller has placed it by its key. Of several deliveries of one attempt
    /// only the first that comes counts.
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
        // Complete counts as ended even while the store has not answered: how a message ends may depend on the order
        // of the stream only, not on when the answer came.
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
        // A chunk that is repeated is no sign that the message goes on.
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

    /// The delivery of the turn request whose chunks count.
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
            // What had been released when it was saved was joined then, and comes in order. What waited was saved as it had come.
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

    /// What its batch began with: a bare stream of chunks answers no request.
    pub(crate) fn batch_type(&self) -> BatchType {
        self.turn.as_ref().map_or(BatchType::SystemTrigger, |turn| turn.batch_type)
    }

    /// Chunks that have not been sent, once; `None` when there is nothing to say.
    pub(crate) fn unpublished(&mut self) -> Option<Vec<Arc<Chunk>>> {
        if self.phase == Phase::Unknown || (self.published == self.released.len() && !self.announce_reset) {
            return None;
        }
        self.announce_reset = false;
        let chunks = self.released[self.published..].to_vec();
        self.published = self.released.len();
        Some(chunks)
    }

    /// True while a part of it is on its way to the store.
    pub(crate) fn is_being_saved(&self) -> bool {
        self.saving.is_some()
    }

    /// It has at least doubled since all of it was last saved.
    pub(crate) fn has_doubled(&self) -> bool {
        self.bytes() >= 2 * self.saved_bytes
    }

    /// The next part that the store does not have: released chunks of about this many bytes and, in the last part, what waits behind a
    /// gap. The owner calls [`Self::end_save`] when it is stored.
    pub(crate) fn save_part(&mut self, most_bytes: usize, time: Timestamp) -> SpilledMessage {
        let unsaved = &self.released[self.saved..];
        let mut chunks = unsaved[..chunks_within(unsaved, most_bytes)].to_vec();
        let released = self.saved + chunks.len();
        let is_last = released == self.released.len();
        if is_last {
            // The chunk of the failure comes last: what is restored behind it would count as late.
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

    /// The stream must keep this entry. True when no lower one was held.
    pub(crate) fn hold(&mut self, hold: Hold) -> bool {
        if let Some(part) = &mut self.saving {
            part.later.get_or_insert(hold);
        }
        let is_first = self.hold.is_none();
        self.hold.get_or_insert(hold);
        is_first
    }

    /// The part that was on its way is stored. Returns the hold that is not needed any more; [`Self::hold`] is the next one.
    pub(crate) fn end_save(&mut self) -> Option<Hold> {
        let part = self.saving.take()?;
        // Of an attempt that was given up meanwhile nothing is needed again.
        if part.attempt == self.attempt {
            self.saved = part.released;
            self.saved_bytes = part.whole_bytes.unwrap_or(self.saved_bytes);
        }
        part.whole_bytes?;
        std::mem::replace(&mut self.hold, part.later)
    }

    /// The store refuses the part that was on its way. An end that came meanwhile stays.
    pub(crate) fn fail_save(&mut self, failure: MessageFailure) {
        self.saving = None;
        if self.phase == Phase::Live && !self.is_complete() {
            self.failure.get_or_insert(failure);
        }
    }

    /// The calls of models that are known, in the order in which chunks report them; those of attempts that were given up first.
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

    /// Every chunk that counts: those that are released first, in order.
    fn accepted(&self) -> impl Iterator<Item = &Arc<Chunk>> {
        self.released.iter().chain(&self.error).chain(self.reorder.waiting())
    }

    /// True when the final chunk has been released.
    pub(crate) fn is_complete(&self) -> bool {
        self.reorder.is_complete()
    }

    /// How long the oldest gap has been open.
    pub(crate) fn gap_ms(&mut self, time: Timestamp) -> Option<i64> {
        self.reorder.gap_opened_at().map(|opened_at| time.since_ms(opened_at))
    }

    /// How long no chunk has come that counted.
    pub(crate) fn idle_ms(&self, time: Timestamp) -> i64 {
        time.since_ms(self.last_chunk_at)
    }

    /// How it stands, for the log.
    pub(crate) fn buffer_state(&self, time: Timestamp) -> BufferState {
        BufferState {
            expected: self.next(),
            received: self.received() as u32,
            released: self.released.len() as u32,
            missing: self.reorder.missing(NAMED_RANGES),
            idle_ms: self.idle_ms(time),
        }
    }

    /// For tracing across services: that of the highest chunk that has one.
    pub(crate) fn correlation_id(&self) -> Option<Box<str>> {
        let with_id = self.accepted().filter(|chunk| chunk.correlation_id.is_some());
        with_id.max_by_key(|chunk| chunk.id)?.correlation_id.clone()
    }

    /// How long it has been open.
    pub(crate) fn age_ms(&self, time: Timestamp) -> i64 {
        time.since_ms(self.opened_at)
    }

    /// The failure of a gap that was open for too long.
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

    /// The id that is released next.
    pub(crate) fn next(&self) -> u32 {
        self.reorder.next()
    }

    /// Bytes accepted.
    pub(crate) fn bytes(&self) -> usize {
        self.reorder.bytes()
    }
}

/// How many of these chunks have about this many bytes together: at least one, if there is one.
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
