//! Ranks short texts by the words that they share with a question, in every script.
//!
//! Entry point: [`rank()`]. Words of scripts with spaces are compared by their stems and parts
//! ([`matcher`]). Text in scripts without spaces is split into overlapping groups of letters
//! ([`terms`]). The language of a text is guessed from its script and function words
//! ([`language`]), so that texts in several languages are ranked together.
//!
//! Invariants: the same input gives the same order; a text that shares no term with the question is
//! never ranked.

mod fuse;
mod language;
mod matcher;
mod rank;
mod terms;

pub use fuse::{Fused, fuse};
pub use language::Language;
pub use rank::{Candidate, rank};
