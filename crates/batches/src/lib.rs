//! Folding of chunks into messages.
