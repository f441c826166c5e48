//! The reorder buffer alone, in this process: time and allocations per chunk.

use std::{hint::black_box, sync::Arc, time::Instant};

use model::{Chunk, Timestamp};
use rand::{SeedableRng, rngs::StdRng};
use reorder::{Insert, MessageLimits, Piece, Reorder};

use super::backlog::CHUNK_BYTES;
use testkit::text;

const MESSAGES: usize = 1_000;
const CHUNKS: u32 = 300;
const LIMITS: MessageLimits = MessageLimits { chunks: 10_000, bytes: 4 << 20 };

/// The cost of a chunk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ordering {
    /// Nanoseconds per chunk.
    pub(super) ns: f64,
    /// Allocations per chunk. The ones that remain come from the growth of the vector of digests.
    pub(super) allocations: f64,
}

/// Runs chunks of 1,000 interleaved messages through their buffers. The chunks of each message are
/// shuffled in windows.
pub(super) fn order(window: usize, allocations: fn() -> u64) -> Ordering {
    let ids = ids(window);
    let chunks: Vec<Arc<Chunk>> = (0..CHUNKS).map(chunk).collect();
    let digests: Vec<u64> = chunks.iter().map(|chunk| chunk.digest()).collect();
    let mut buffers: Vec<_> = (0..MESSAGES).map(|_| Reorder::new(LIMITS)).collect();
    let (before, started) = (allocations(), Instant::now());
    for round in ids.chunks(MESSAGES) {
        for (buffer, id) in buffers.iter_mut().zip(round) {
            let (chunk, digest) = (&chunks[*id as usize], digests[*id as usize]);
            let piece = Piece { id: *id, is_final: chunk.is_final, digest, size: CHUNK_BYTES };
            if buffer.insert(piece, Arc::clone(chunk), Timestamp(0)) == Insert::Ready {
                while let Some(chunk) = buffer.next_ready() {
                    black_box(chunk);
                }
            }
        }
    }
    let (elapsed, allocated) = (started.elapsed(), allocations() - before);
    assert!(buffers.iter().all(Reorder::is_complete), "every message is complete");
    let total = ids.len() as f64;
    Ordering { ns: elapsed.as_nanos() as f64 / total, allocations: allocated as f64 / total }
}

/// Chunk ids for messages in turn: one for the first message, one for the second, …
fn ids(window: usize) -> Vec<u32> {
    let mut rng = StdRng::seed_from_u64(3);
    let orders: Vec<Vec<u32>> = (0..MESSAGES)
        .map(|_| {
            let mut ids: Vec<u32> = (0..CHUNKS).collect();
            text::shuffle_in_windows(&mut ids, window, &mut rng);
            ids
        })
        .collect();
    (0..CHUNKS as usize).flat_map(|at| orders.iter().map(move |ids| ids[at])).collect()
}

fn chunk(id: u32) -> Arc<Chunk> {
    Arc::new(Chunk::content(id, &text::LICENSE[..CHUNK_BYTES], id + 1 == CHUNKS))
}
