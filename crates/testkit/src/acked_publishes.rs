//! The chunks that the streams have acknowledged: the reference for all other evidence.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use model::{Chunk, Frame, MessageKey};

use crate::locked;

/// Acknowledged chunks of a run, shared by all its publishers.
#[derive(Debug, Default)]
pub struct AckLog {
    messages: Mutex<BTreeMap<MessageKey, AckedMessage>>,
}

/// The acknowledged chunks of one message.
#[derive(Debug, Clone, Default)]
pub struct AckedMessage {
    /// The acknowledged chunks, by attempt and chunk id.
    pub attempts: BTreeMap<u32, BTreeMap<u32, Acked>>,
}

#[derive(Debug, Clone)]
pub struct Acked {
    pub chunk: Arc<Chunk>,
    /// Stream sequences under which the chunk is stored; several if it was sent again.
    pub seqs: Vec<u64>,
}

impl AckLog {
    /// Records that the stream has stored `frame` under `seq`.
    pub fn acked(&self, frame: &Frame, seq: u64) {
        let mut messages = locked(&self.messages);
        for arrival in &frame.chunks {
            let key = MessageKey { thread: frame.thread.clone(), message: arrival.message.clone() };
            let chunks = messages.entry(key).or_default().attempts.entry(arrival.attempt).or_default();
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

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of chunks that the stream holds, including repetitions.
    pub fn stored_chunks(&self) -> usize {
        let messages = locked(&self.messages);
        let chunks = messages.values().flat_map(|sent| sent.attempts.values()).flat_map(BTreeMap::values);
        chunks.map(|acked| acked.seqs.len()).sum()
    }

    pub fn snapshot(&self) -> BTreeMap<MessageKey, AckedMessage> {
        locked(&self.messages).clone()
    }
}

#[cfg(test)]
mod tests {
    use model::{IncomingChunk, MessageId, Role, ThreadId};

    use super::*;

    fn frame(attempt: u32, ids: &[u32]) -> Frame {
        let arrival = |id: &u32| IncomingChunk {
            message: MessageId::parse("m").unwrap(),
            attempt,
            step: 0,
            role: Role::Assistant,
            chunk: Arc::new(Chunk::content(*id, &format!("{id} "), *id == 2)),
        };
        Frame {
            token: None,
            thread: ThreadId::parse("t").unwrap(),
            chunks: ids.iter().map(arrival).collect(),
        }
    }

    #[test]
    fn a_chunk_that_was_sent_again_is_noted_with_both_sequences() {
        let ack_log = AckLog::default();
        ack_log.acked(&frame(0, &[2, 0]), 1);
        ack_log.acked(&frame(1, &[1, 0]), 2);
        ack_log.acked(&frame(0, &[1]), 3);
        ack_log.acked(&frame(0, &[1]), 4);
        let key =
            MessageKey { thread: ThreadId::parse("t").unwrap(), message: MessageId::parse("m").unwrap() };
        let sent = &ack_log.snapshot()[&key];
        assert_eq!(sent.attempts[&0].keys().collect::<Vec<_>>(), [&0, &1, &2]);
        assert_eq!(sent.attempts[&0][&1].seqs, [3, 4]);
        assert_eq!(sent.attempts[&1][&0].seqs, [2]);
        assert_eq!((ack_log.len(), ack_log.stored_chunks()), (1, 6));
    }
}
