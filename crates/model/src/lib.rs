//! The nouns of Antiphon: ids, position, chunk, message, metadata; only invariants.
