//! Messages to publish, with their expected outcome.

use std::sync::Arc;

use anyhow::Result;
use model::{Chunk, Frame, IncomingChunk, MessageId, MessageKey, Role, ThreadId};
use rand::{Rng, RngExt};

use crate::{
    publisher::{Encoding, Publication},
    text,
};

/// One message, as a workflow service would publish it.
#[derive(Debug, Clone)]
pub struct PlannedMessage {
    pub key: MessageKey,
    pub attempt: u32,
    /// Ordered by id.
    pub chunks: Vec<Arc<Chunk>>,
}

/// How payloads are reordered and packed.
#[derive(Debug, Clone, Copy)]
pub struct Disorder {
    /// Chunks are shuffled within windows of this number of chunks.
    pub window: usize,
    pub duplicates: f64,
    /// The most chunks per payload.
    pub frame: usize,
    /// Rate of protobuf payloads; the others are JSON.
    pub protobuf: f64,
}

impl Disorder {
    /// In order, one chunk per payload, JSON.
    pub const NONE: Self = Self { window: 1, duplicates: 0.0, frame: 1, protobuf: 0.0 };
}

impl PlannedMessage {
    /// A message with this text, `words` words per chunk.
    pub fn of_text(thread: &str, message: &str, text: &str, words: usize) -> Result<Self> {
        Self::of_pieces(thread, message, &text::cut(text, words))
    }

    /// A message with one chunk per piece.
    pub fn of_pieces(thread: &str, message: &str, pieces: &[String]) -> Result<Self> {
        let key = MessageKey { thread: ThreadId::parse(thread)?, message: MessageId::parse(message)? };
        let last = pieces.len().saturating_sub(1);
        let chunk = |(id, piece): (usize, &String)| {
            Ok(Arc::new(Chunk::content(u32::try_from(id)?, piece, id == last)))
        };
        let chunks = pieces.iter().enumerate().map(chunk).collect::<Result<_>>()?;
        Ok(Self { key, attempt: 0, chunks })
    }

    /// The same message in another attempt.
    #[must_use]
    pub fn with_attempt(mut self, attempt: u32) -> Self {
        self.attempt = attempt;
        self
    }

    pub fn text(&self) -> String {
        self.chunks.iter().map(|chunk| &*chunk.text).collect()
    }

    /// One payload with one chunk.
    pub fn publication(&self, id: usize) -> Publication {
        self.pack(&[id], Encoding::Json)
    }

    /// All its payloads in disorder; the chunk `lost` is never sent.
    pub fn publications(
        &self,
        disorder: Disorder,
        lost: Option<usize>,
        rng: &mut impl Rng,
    ) -> Vec<Publication> {
        let mut ids: Vec<usize> = (0..self.chunks.len()).filter(|id| Some(*id) != lost).collect();
        text::duplicate(&mut ids, disorder.duplicates, disorder.window, rng);
        text::shuffle_in_windows(&mut ids, disorder.window, rng);
        let mut publications = Vec::with_capacity(ids.len());
        let mut rest = ids.as_slice();
        while !rest.is_empty() {
            let size = rng.random_range(1..=disorder.frame.max(1)).min(rest.len());
            let (now, later) = rest.split_at(size);
            let encoding =
                if rng.random_bool(disorder.protobuf) { Encoding::Protobuf } else { Encoding::Json };
            publications.push(self.pack(now, encoding));
            rest = later;
        }
        publications
    }

    fn pack(&self, ids: &[usize], encoding: Encoding) -> Publication {
        let arrival = |id: &usize| IncomingChunk {
            message: self.key.message.clone(),
            attempt: self.attempt,
            step: 0,
            role: Role::Assistant,
            chunk: Arc::clone(&self.chunks[*id]),
        };
        let frame =
            Frame { token: None, thread: self.key.thread.clone(), chunks: ids.iter().map(arrival).collect() };
        Publication { frame, encoding }
    }
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    #[test]
    fn disorder_loses_nothing_but_what_is_to_be_lost() {
        let message = PlannedMessage::of_text("t", "m", text::LICENSE, 3).unwrap();
        let disorder = Disorder { window: 16, duplicates: 0.05, frame: 4, protobuf: 0.5 };
        let publications = message.publications(disorder, Some(5), &mut StdRng::seed_from_u64(3));
        let arrivals: Vec<_> =
            publications.iter().flat_map(|publication| &publication.frame.chunks).collect();
        let mut ids: Vec<u32> = arrivals.iter().map(|arrival| arrival.chunk.id).collect();
        assert!(ids.len() > message.chunks.len());
        ids.sort_unstable();
        ids.dedup();
        let expected: Vec<u32> = (0..message.chunks.len() as u32).filter(|id| *id != 5).collect();
        assert_eq!(ids, expected);
        assert_eq!(message.text(), text::LICENSE);
    }
}
