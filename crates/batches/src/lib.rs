//! Folding chunks into messages, and what makes batches of messages whole, fit for a model, small enough, and portable.
//!
//! Entry points: [`fold`] for a bare stream, [`fold_turn`] for the answer of a turn, [`group`] and [`Batch::state`] for whole
//! batches, [`complete_turns`] for a plain context. Nothing here knows where messages are kept.

mod batch;
pub mod compaction;
mod complete;
pub mod context;
mod fold;
mod item;
mod pairing;
pub mod render;
pub mod retention;
#[cfg(test)]
mod testing;
pub mod tokens;
mod turn;

pub use batch::{Batch, Exchange, Header, State, Why, group};
pub use compaction::{Compaction, CompactionRules};
pub use complete::{ContextRow, complete_turns};
pub use context::Context;
pub use fold::{Folded, fold};
pub use item::{Call, Item};
pub use pairing::{Answer, Pairing};
pub use retention::RetentionRules;
pub use tokens::{Counter, Estimate, Exact};
pub use turn::{Ending, TurnMessage, fold_turn};
