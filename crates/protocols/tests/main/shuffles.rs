//! Chunks in any order through the real reorder buffer: the bytes are the same.

use model::{Chunk, Timestamp};
use protocols::AnswerEvent;
use reorder::{Insert, MessageLimits, Piece, Reorder};

use crate::encoders::{self, ALL};
use crate::scenarios::{self, Scenario, dice, encode_all, happening};

const SHUFFLES: u64 = 1_000;

#[test]
fn any_order_of_arrival_gives_the_same_bytes() {
    for scenario in scenarios::all() {
        let golden: Vec<Vec<u8>> =
            ALL.iter().map(|name| encode_all(&mut *encoders::of(name), &scenario.events())).collect();
        for seed in 0..SHUFFLES {
            let arrived = shuffled(&scenario.chunks, seed);
            let ordered = in_order(&arrived);
            let happenings = happenings(&scenario, &ordered);
            for (name, golden) in ALL.iter().zip(&golden) {
                let again = encode_all(&mut *encoders::of(name), &happenings);
                assert!(again == *golden, "{name} {} seed {seed}", scenario.name);
            }
        }
    }
}

fn happenings<'a>(scenario: &'a Scenario, ordered: &'a [Chunk]) -> Vec<AnswerEvent<'a>> {
    let mut all = vec![AnswerEvent::Opened];
    all.extend(ordered.iter().map(|chunk| happening(scenario.attempt, chunk)));
    all.push(scenario.end());
    all
}

/// A Fisher-Yates shuffle; each seed is one order. One chunk occurs twice.
fn shuffled(chunks: &[Chunk], seed: u64) -> Vec<Chunk> {
    let mut next = dice(seed);
    let mut chunks = chunks.to_vec();
    for at in (1..chunks.len()).rev() {
        chunks.swap(at, next(at + 1));
    }
    chunks.extend(chunks.first().cloned());
    chunks
}

fn in_order(arrived: &[Chunk]) -> Vec<Chunk> {
    let mut reorder = Reorder::new(MessageLimits { chunks: 10_000, bytes: 4 << 20 });
    let mut ordered = Vec::new();
    for chunk in arrived {
        let (digest, size) = (chunk.digest(), chunk.size());
        let piece = Piece { id: chunk.id, is_final: chunk.is_final, digest, size };
        if reorder.insert(piece, chunk.clone(), Timestamp(0)) == Insert::Ready {
            ordered.extend(std::iter::from_fn(|| reorder.next_ready()));
        }
    }
    ordered
}
