//! The error about a vocabulary that cannot be used.

/// A vocabulary cannot be used: its file is missing or invalid.
#[derive(Debug, thiserror::Error)]
#[error("the vocabulary of a tokenizer, {path}: {detail}")]
pub struct VocabularyError {
    path: String,
    detail: String,
}

impl VocabularyError {
    #[cfg(any(test, not(feature = "embedded")))]
    pub(crate) fn new(path: &std::path::Path, error: impl ToString) -> Self {
        Self { path: path.display().to_string(), detail: error.to_string() }
    }
}
