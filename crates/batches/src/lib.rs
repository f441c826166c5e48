//! Folding chunks into messages, and what makes batches of messages whole, fit for a model, small enough, and portable.
//!
//! Entry points: [`fold`] for a bare stream, [`fold_turn`] for the answer of a turn; [`group`] and [`Batch::state`] for what is
//! whole; [`context::Builder`] for what a model sees, and [`render`] for how a provider takes it; [`compaction::plan`] and
//! [`retention::RetentionEvaluator`] for what leaves; [`export_import`] and [`foreign`] for exports and other systems' messages.
//!
//! Invariants: a batch is in a context whole or not at all; what is stored is never repaired, only what is shown; nothing here
//! knows where messages are kept.

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
