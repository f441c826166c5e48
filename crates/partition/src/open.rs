//! One open message.

use std::sync::Arc;

use model::{
    AnswerCalls, BatchType, Chunk, ChunkKind, IncomingChunk, MessageFailure, MessageKey, ModelCall,
    RetryHint, Role, Seq, Timestamp, TurnId, TurnToken,
};
use reorder::{ChunkRejection, Insert, Piece, Reorder};

use crate::action::BufferState;
use crate::commit::SpilledMessage;
use crate::limits::PartitionLimits;

/// Most missing ranges that a failure or a buffer's state names.
const NAMED_RANGES: usize = 64;

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
    /// Every chunk that counts, in the order of arrival; those from `saved` on are not in the store.
    accepted: Vec<Arc<Chunk>>,
    saved: usize,
    /// In order, without gaps; those from `published` on have not been sent.
    pub(crate) released: Vec<Arc<Chunk>>,
    published: usize,
    announce_reset: bool,
    /// Of attempts before this one, as far as this owner has read them.
    earlier_calls: Vec<ModelCall>,
    /// A part of it is in the store and must go when it ends.
    pub(crate) is_saved: bool,
    /// It was saved by an earlier owner, and its ages went on while nothing was read.
    pub(crate) is_restored: bool,
    /// Decided, but not acted upon before the store has said that the message is new.
    pub(crate) failure: Option<MessageFailure>,
    pub(crate) first_seq: Seq,
    /// The lowest entry that is needed to rebuild what is not saved, and since when.
    pub(crate) hold: Option<(Seq, Timestamp)>,
    opened_at: Timestamp,
    /// The last chunk that counted; repetitions do not.
    last_chunk_at: Timestamp,
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
    /// See [`TurnRef::is_held_back`].
    pub(crate) fn is_held_back(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.is_held_back)
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
            accepted: Vec::new(),
            saved: 0,
            released: Vec::new(),
            published: 0,
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
    pub(crate) fn restore(saved: &SpilledMessage, limits: &PartitionLimits, time: Timestamp) -> Self {
        let mut open =
            Self::empty(saved.key.clone(), saved.attempt, saved.role, saved.first_seq, limits, time);
        for chunk in &saved.chunks {
            open.insert(chunk, time);
        }
        // Only the oldest gap has this age; the others begin anew, because too old would fail a message that is not.
        open.reorder.set_gap_opened_at(time.plus_ms(-saved.gap_ms.unwrap_or(0)));
        open.earlier_calls.clone_from(&saved.earlier_calls);
        open.phase = Phase::Live;
        open.saved = open.accepted.len();
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

    /// Takes one chunk; the caller has placed it by its key. Of several deliveries of one attempt only the first that comes counts.
    pub(crate) fn take(
        &mut self,
        arrival: &IncomingChunk,
        delivery: Option<&str>,
        limits: &PartitionLimits,
        time: Timestamp,
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
        let outcome = self.insert(&arrival.chunk, time);
        // A chunk that is repeated is no sign that the message goes on.
        if matches!(outcome, Insert::Ready | Insert::Held) {
            self.last_chunk_at = time;
        }
        match outcome {
            Insert::Ready => ChunkOutcome::Accepted { held: false },
            Insert::Held => ChunkOutcome::Accepted { held: true },
            Insert::Duplicate => ChunkOutcome::Duplicate,
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

    fn insert(&mut self, chunk: &Arc<Chunk>, time: Timestamp) -> Insert {
        let size = chunk.size();
        let piece = Piece { id: chunk.id, is_final: chunk.is_final, digest: chunk.digest(), size };
        let outcome = self.reorder.insert(piece, Arc::clone(chunk), time);
        if matches!(outcome, Insert::Ready | Insert::Held) {
            self.accepted.push(Arc::clone(chunk));
        }
        while outcome == Insert::Ready && self.failure.is_none() {
            let Some(chunk) = self.reorder.next_ready() else { break };
            match chunk.kind {
                ChunkKind::Error => {
                    self.failure = Some(MessageFailure::ProducerError {
                        text: chunk.text.to_string(),
                        hint: RetryHint::of(&chunk.metadata),
                    })
                }
                _ => self.released.push(chunk),
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
        self.accepted.clear();
        self.saved = 0;
        self.announce_reset |= self.published > 0;
        self.released.clear();
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

    /// What would be saved now: everything that the store does not have.
    pub(crate) fn save(&mut self, time: Timestamp) -> SpilledMessage {
        let chunks = self.accepted[self.saved..].to_vec();
        self.saved = self.accepted.len();
        self.is_saved = true;
        SpilledMessage {
            key: self.key.clone(),
            attempt: self.attempt,
            role: self.role,
            first_seq: self.first_seq,
            open_ms: time.since_ms(self.opened_at),
            gap_ms: self.gap_ms(time),
            idle_ms: time.since_ms(self.last_chunk_at),
            chunks,
            earlier_calls: self.earlier_calls.clone(),
        }
    }

    /// The calls of models that are known, in the order in which chunks report them; those of attempts that were given up first.
    pub(crate) fn model_calls(&self) -> Vec<ModelCall> {
        let mut calls = self.earlier_calls.clone();
        calls.extend(self.attempt_calls());
        ModelCall::of_answer(calls)
    }

    fn attempt_calls(&self) -> Vec<ModelCall> {
        let mut chunks: Vec<&Arc<Chunk>> = self.accepted.iter().collect();
        chunks.sort_by_key(|chunk| chunk.id);
        let mut calls = AnswerCalls::default();
        chunks.into_iter().for_each(|chunk| calls.take(chunk));
        calls.finish()
    }

    /// Bytes that a save would write.
    pub(crate) fn unsaved_bytes(&self) -> usize {
        self.accepted[self.saved..].iter().map(|chunk| chunk.size() + 64).sum()
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

    /// For tracing across services, as the last chunk with one says it.
    pub(crate) fn correlation_id(&self) -> Option<Box<str>> {
        self.accepted.iter().rev().find_map(|chunk| chunk.correlation_id.clone())
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
        let mut chunks = self.accepted.clone();
        chunks.sort_by_key(|chunk| chunk.id);
        chunks
    }

    /// Number of chunks accepted.
    pub(crate) fn received(&self) -> usize {
        self.accepted.len()
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
