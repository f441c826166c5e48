//! Folding chunks into messages, and which messages make a whole: steps, turns, contexts.
//!
//! Entry points: [`fold`] for a bare stream, [`fold_turn`] for the answer of a turn, [`complete_turns`] for a context.
//! Nothing here knows where messages are kept.

mod context;
mod fold;
mod turn;

pub use context::{ContextRow, complete_turns};
pub use fold::{Folded, fold};
pub use turn::{Ending, TurnMessage, fold_turn};
