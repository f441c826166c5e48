//! Folding ordered chunks into messages.
//!
//! Entry point: [`fold`]. Nothing here knows how chunks arrive or where messages are kept.

mod fold;

pub use fold::{Folded, fold};
