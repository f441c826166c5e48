//! Folds chunks into messages, and turns messages into batches, contexts, compactions and exports.
//!
//! Entry points: [`fold`] for a bare stream, [`fold_turn`] for the answer of a turn; [`group`] and
//! [`Batch::state`] for batches and their completeness; [`context::Builder`] for the context of a model
//! and [`render`] for a provider's format; [`compaction::plan`] and
//! [`retention::RetentionEvaluator`] for what is removed; [`export_import`] and [`foreign`] for
//! exports and other systems' messages.
//!
//! Invariants: a context includes a batch whole or not at all. Repairs change only what is shown,
//! never what is stored. This crate does not know where messages are stored.

mod batch;
mod calls;
pub mod check;
pub mod compaction;
pub mod context;
pub mod export_import;
mod fold;
pub mod foreign;
mod item;
pub mod memory;
mod pairing;
pub mod render;
pub mod retention;
mod shared_item;
#[cfg(test)]
mod testing;
pub mod tokens;
mod turn;

pub use batch::{Batch, BatchHeader, BatchState, Exchange, IncompleteReason, group};
pub use calls::ambiguous_calls;
pub use compaction::{Compaction, CompactionRules};
pub use context::Context;
pub use fold::{Folded, fold};
pub use item::{Item, ItemCall};
pub use pairing::{AnswerLocation, Pairing};
pub use retention::RetentionRules;
pub use shared_item::SharedItem;
pub use tokens::{EstimatingCounter, TokenCounter};
pub use turn::{ChunkRange, Ending, TurnMessage, fold_turn};
