//! Reorders the chunks of one message: they come in any order, and each is released once and in
//! order, with bounded memory.
//!
//! Entry type: [`Reorder`]. Invariants: released chunks have the ids 0, 1, 2, … without a gap; a
//! duplicate changes nothing; memory depends on what arrived, never on a claimed id. A duplicate, a
//! gap or a conflict is an outcome, not an error. Nothing here knows text, frames or streams: items
//! are opaque.

mod reorder;

pub use reorder::{ChunkRejection, Insert, MessageLimits, Piece, Reorder};
