//! Folds chunks into messages. Turns messages into batches, contexts, compactions and exports.
//!
//! Entry points: [`fold()`] folds a message without a turn, [`fold_turn`] the answer of a turn.
//! [`group`] forms batches, and [`Batch::state`] decides whether they are complete.
//! [`context::Builder`] builds a model's context, and [`render`] formats it for a provider.
//! [`compaction::plan`] and [`retention::RetentionEvaluator`] select what is removed.
//! [`export_import`] reads and writes exports, and [`foreign`] the messages of other systems.
//!
//! Invariants: a context includes a batch whole or not at all. Repairs change only what a model
//! receives, never what is stored. This crate does not know where messages are stored.

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
pub mod prompts;
pub mod render;
mod results_of_kind;
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
