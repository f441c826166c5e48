//! The outcome of a message, derived from the order of the log alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{Chunk, ChunkKind, MessageKey};

use crate::checker::evidence::{Publish, Published, Rules};

/// Failure code of a message that the store refuses permanently.
pub(super) const REJECTED: &str = "rejected_by_database";

/// The outcome of a message according to the log.
#[derive(Debug, Clone)]
pub struct ExpectedOutcome {
    /// The attempt that counts.
    pub attempt: u32,
    pub end: ExpectedEnd,
    /// The chunks that count, by attempt and id: the first one of each id.
    pub attempts: BTreeMap<u32, BTreeMap<u32, Arc<Chunk>>>,
    /// The longest time that a gap was open before the end, ms.
    pub longest_gap_ms: i64,
    /// The longest time without a chunk that counts before the end, ms.
    pub longest_silence_ms: i64,
    /// The sequence of the first chunk that still waits behind a gap.
    pub gap_since_seq: Option<u64>,
    /// The sequence of the last chunk that counts.
    pub last_seq: u64,
    final_id: Option<u32>,
    next: u32,
    /// Held chunks in order of arrival: id, sequence, ms.
    held: Vec<(u32, u64, i64)>,
    last_at_ms: i64,
}

/// How the log ends a message. A timeout may end it earlier if it was slow.
#[derive(Debug, Clone, PartialEq)]
pub enum ExpectedEnd {
    /// All chunks up to the final one are present.
    Complete,
    /// The message breaks a rule; the value is [`model::MessageFailure::code`].
    Failed(&'static str),
    /// Chunks are missing: only a timeout ends it.
    Open,
}

/// The outcome of every message in the ledger.
pub fn expected_outcomes(ledger: &[Publish], rules: &Rules) -> BTreeMap<MessageKey, ExpectedOutcome> {
    let mut expected_outcomes: BTreeMap<MessageKey, ExpectedOutcome> = BTreeMap::new();
    for publish in ledger {
        let Published::Chunk { key, attempt, chunk } = &publish.body else { continue };
        let at = (publish.seq, publish.at_ms);
        match expected_outcomes.get_mut(key) {
            Some(fate) => fate.take(*attempt, chunk, at, rules),
            None => {
                let mut fate = ExpectedOutcome::new(*attempt, publish.at_ms);
                fate.take(*attempt, chunk, at, rules);
                expected_outcomes.insert(key.clone(), fate);
            }
        }
    }
    // Chunks of a missing thread may be shown until the store has answered.
    for (_, fate) in
        expected_outcomes.iter_mut().filter(|(key, _)| rules.missing_threads.contains(&key.thread))
    {
        fate.end = ExpectedEnd::Failed("unknown_thread");
    }
    for (_, fate) in expected_outcomes.iter_mut().filter(|(key, _)| rules.refused_messages.contains(key)) {
        fate.end = ExpectedEnd::Failed(REJECTED);
    }
    expected_outcomes
}

impl ExpectedOutcome {
    fn new(attempt: u32, at_ms: i64) -> Self {
        Self {
            attempt,
            end: ExpectedEnd::Open,
            attempts: BTreeMap::new(),
            longest_gap_ms: 0,
            longest_silence_ms: 0,
            gap_since_seq: None,
            last_seq: 0,
            final_id: None,
            next: 0,
            held: Vec::new(),
            last_at_ms: at_ms,
        }
    }

    fn take(&mut self, attempt: u32, chunk: &Arc<Chunk>, (seq, at_ms): (u64, i64), rules: &Rules) {
        if self.end != ExpectedEnd::Open || attempt < self.attempt {
            return;
        }
        self.measure(at_ms);
        if attempt > self.attempt {
            (self.attempt, self.final_id, self.next) = (attempt, None, 0);
            self.held.clear();
        }
        let chunks = self.attempts.entry(attempt).or_default();
        let highest = chunks.last_key_value().map(|(id, _)| *id);
        let contradicts = match self.final_id {
            Some(last) => chunk.id > last || (chunk.is_final && chunk.id < last),
            None => chunk.is_final && highest >= Some(chunk.id),
        };
        if contradicts {
            self.end = ExpectedEnd::Failed("final_conflict");
            return;
        }
        if chunks.contains_key(&chunk.id) {
            return;
        }
        if chunk.id >= rules.chunks_per_message {
            self.end = ExpectedEnd::Failed("too_many_chunks");
            return;
        }
        chunks.insert(chunk.id, Arc::clone(chunk));
        if chunk.is_final {
            self.final_id = Some(chunk.id);
        }
        self.held.push((chunk.id, seq, at_ms));
        (self.last_at_ms, self.last_seq) = (self.last_at_ms.max(at_ms), seq);
        self.advance();
    }

    fn measure(&mut self, at_ms: i64) {
        self.longest_silence_ms = self.longest_silence_ms.max(at_ms - self.last_at_ms);
        if let Some((_, _, since_ms)) = self.held.first() {
            self.longest_gap_ms = self.longest_gap_ms.max(at_ms - since_ms);
        }
    }

    fn advance(&mut self) {
        let Some(chunks) = self.attempts.get(&self.attempt) else { return };
        while let Some(chunk) = chunks.get(&self.next) {
            self.next += 1;
            if chunk.kind == ChunkKind::Error {
                self.end = ExpectedEnd::Failed("producer_error");
                break;
            }
        }
        let next = self.next;
        self.held.retain(|(id, _, _)| *id >= next);
        self.gap_since_seq = self.held.first().map(|(_, seq, _)| *seq);
        if self.end == ExpectedEnd::Open && self.final_id.is_some_and(|last| last < next) {
            self.end = ExpectedEnd::Complete;
        }
    }

    /// The text of an attempt up to its first gap.
    pub fn text(&self, attempt: u32) -> String {
        let chunks = self.attempts.get(&attempt).into_iter().flatten();
        let in_order = chunks.enumerate().take_while(|(index, (id, _))| *index as u32 == **id);
        let content = in_order.filter(|(_, (_, chunk))| chunk.kind == ChunkKind::Content);
        content.map(|(_, (_, chunk))| &*chunk.text).collect()
    }

    /// The final chunk of the attempt that counts.
    pub fn final_chunk(&self) -> Option<&Arc<Chunk>> {
        self.attempts.get(&self.attempt)?.get(&self.final_id?)
    }

    /// True if it was slow enough that a timeout may have ended it.
    pub fn is_slow(&self, rules: &Rules) -> bool {
        self.end == ExpectedEnd::Open
            || self.longest_gap_ms > rules.gap_safe_ms
            || self.longest_silence_ms > rules.stall_safe_ms
    }
}
