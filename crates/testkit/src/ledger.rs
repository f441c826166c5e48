//! What the stream has acknowledged: the promise that everything else is compared with.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use model::{Chunk, ChunkKind, Frame, MessageKey};

use crate::locked;

/// Shared by all publishers of a run.
#[derive(Debug, Default)]
pub struct Ledger {
    messages: Mutex<BTreeMap<MessageKey, Sent>>,
}

/// What was acknowledged of one message.
#[derive(Debug, Clone)]
pub struct Sent {
    /// Chunks by attempt and id.
    pub attempts: BTreeMap<u32, BTreeMap<u32, Acked>>,
    /// When its first chunk was sent.
    pub first_at: Instant,
    /// The last acknowledgement.
    pub last_at: Instant,
}

/// One acknowledged chunk.
#[derive(Debug, Clone)]
pub struct Acked {
    /// The chunk.
    pub chunk: Arc<Chunk>,
    /// Stream sequences under which it is stored; more than one when it was sent again.
    pub seqs: Vec<u64>,
}

impl Ledger {
    /// Notes that `frame`, first sent at `sent_at`, is stored by the stream under `seq`.
    pub fn acked(&self, frame: &Frame, sent_at: Instant, seq: u64) {
        let now = Instant::now();
        let mut messages = locked(&self.messages);
        for arrival in &frame.chunks {
            let key = MessageKey { thread: frame.thread.clone(), message: arrival.message.clone() };
            let begun = Sent { attempts: BTreeMap::new(), first_at: sent_at, last_at: now };
            let sent = messages.entry(key).or_insert(begun);
            sent.first_at = sent.first_at.min(sent_at);
            sent.last_at = now;
            let chunks = sent.attempts.entry(arrival.attempt).or_default();
            let acked = chunks
                .entry(arrival.chunk.id)
                .or_insert_with(|| Acked { chunk: Arc::clone(&arrival.chunk), seqs: Vec::new() });
            acked.seqs.push(seq);
        }
    }

    /// Number of messages with an acknowledged chunk.
    pub fn len(&self) -> usize {
        locked(&self.messages).len()
    }

    /// Whether nothing has been acknowledged.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of chunks that the stream holds, repetitions included.
    pub fn stored_chunks(&self) -> usize {
        let messages = locked(&self.messages);
        let chunks = messages.values().flat_map(|sent| sent.attempts.values()).flat_map(BTreeMap::values);
        chunks.map(|acked| acked.seqs.len()).sum()
    }

    /// A copy of everything.
    pub fn snapshot(&self) -> BTreeMap<MessageKey, Sent> {
        locked(&self.messages).clone()
    }
}

impl Sent {
    /// From the first send to the last acknowledgement: no gap can have been open for longer.
    pub fn spread(&self) -> Duration {
        self.last_at - self.first_at
    }

    /// The text of an attempt of which everything up to its final chunk was acknowledged.
    pub fn whole_text(&self, attempt: u32) -> Option<String> {
        let chunks = self.attempts.get(&attempt)?;
        let last = chunks.iter().find(|(_, acked)| acked.chunk.is_final).map(|(id, _)| *id)?;
        let whole = (0..=last).map(|id| chunks.get(&id)).collect::<Option<Vec<_>>>()?;
        Some(whole.iter().map(|acked| content(&acked.chunk)).collect())
    }

    /// The highest attempt with an acknowledged chunk.
    pub fn highest_attempt(&self) -> u32 {
        self.attempts.keys().next_back().copied().unwrap_or_default()
    }
}

/// What a chunk adds to the text of its message.
fn content(chunk: &Chunk) -> &str {
    match chunk.kind {
        ChunkKind::Content => &chunk.text,
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use model::{Arrival, MessageId, Role, ThreadId};

    use super::*;

    fn frame(attempt: u32, ids: &[u32]) -> Frame {
        let arrival = |id: &u32| Arrival {
            message: MessageId::parse("m").unwrap(),
            attempt,
            step: 0,
            role: Role::Assistant,
            chunk: Arc::new(Chunk::content(*id, &format!("{id} "), *id == 2)),
        };
        Frame { thread: ThreadId::parse("t").unwrap(), chunks: ids.iter().map(arrival).collect() }
    }

    #[test]
    fn a_text_is_whole_when_nothing_up_to_its_final_is_missing() {
        let ledger = Ledger::default();
        ledger.acked(&frame(0, &[2, 0]), Instant::now(), 1);
        ledger.acked(&frame(1, &[1, 0]), Instant::now(), 2);
        let key =
            MessageKey { thread: ThreadId::parse("t").unwrap(), message: MessageId::parse("m").unwrap() };
        assert_eq!(ledger.snapshot()[&key].whole_text(0), None);
        ledger.acked(&frame(0, &[1]), Instant::now(), 3);
        ledger.acked(&frame(0, &[1]), Instant::now(), 4);
        let sent = &ledger.snapshot()[&key];
        assert_eq!(sent.whole_text(0).as_deref(), Some("0 1 2 "));
        assert_eq!((sent.whole_text(1), sent.highest_attempt()), (None, 1));
        assert_eq!(sent.attempts[&0][&1].seqs, [3, 4]);
        assert_eq!(ledger.stored_chunks(), 6);
    }
}
