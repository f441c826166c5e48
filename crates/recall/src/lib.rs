//! Ranking of short texts by the words that they share with a question, in every script.
//!
//! Entry: [`rank`]. Words of scripts with spaces are compared by their stems and by their parts ([`matcher`]); scripts without spaces are cut into
//! overlapping groups of letters ([`terms`]). The language of a text is guessed from its script and its function words ([`language`]), so that texts of
//! several languages are ranked together.
//!
//! Invariants: the same input gives the same order; a text that shares nothing with the question is never ranked.

mod fuse;
mod language;
mod matcher;
mod rank;
mod terms;

pub use fuse::{Fused, fuse};
pub use language::Language;
pub use rank::{Candidate, rank};
