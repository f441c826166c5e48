//! Chunks of one message in any order in, each once and in order out, with bounded memory.
//!
//! Entry type: [`Reorder`]. Invariants: what comes out has the ids 0, 1, 2, … without a gap; nothing is flushed past a
//! gap; a duplicate changes nothing; memory follows what arrived, never what an id claims. A duplicate, a gap or a
//! conflict is an outcome, not an error. Nothing here knows text, frames or streams: items are opaque.

mod reorder;

pub use reorder::{ChunkRejection, Insert, MessageLimits, Piece, Reorder};
