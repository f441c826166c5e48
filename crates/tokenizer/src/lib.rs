//! Exact token counts with OpenAI's vocabularies.
//!
//! This is a separate crate because the vocabularies add 47 MB to every program that links them.
//! Without the feature `embedded` they are files next to the program.

mod error;
#[cfg(any(test, not(feature = "embedded")))]
mod files;

use batches::{EstimatingCounter, TokenCounter, context::Tokenizer};

pub use error::VocabularyError;

/// Counter for the `tokenizer` of an agent's settings. If a vocabulary can no longer be read
/// although [`check`] found it, the counter estimates, and this is logged.
pub fn counter(tokenizer: Tokenizer) -> Box<dyn TokenCounter> {
    match tokenizer {
        Tokenizer::Estimate => Box::new(EstimatingCounter),
        Tokenizer::O200k => exact_or_estimating("o200k_base", o200k_base()),
        Tokenizer::Cl100k => exact_or_estimating("cl100k_base", cl100k_base()),
    }
}

fn exact_or_estimating(
    name: &'static str,
    vocabulary: Result<&'static bpe_openai::Tokenizer, &'static VocabularyError>,
) -> Box<dyn TokenCounter> {
    match vocabulary {
        Ok(vocabulary) => Box::new(BpeCounter { name, vocabulary }),
        Err(error) => {
            tracing::error!(%error, "tokens are estimated");
            Box::new(EstimatingCounter)
        }
    }
}

/// Checks that the vocabularies exist. Call it when a program starts.
///
/// # Errors
/// A file is missing or cannot be opened.
pub fn check() -> Result<(), VocabularyError> {
    #[cfg(not(feature = "embedded"))]
    files::check()?;
    Ok(())
}

#[cfg(not(feature = "embedded"))]
use files::{cl100k_base, o200k_base};

#[cfg(feature = "embedded")]
fn cl100k_base() -> Result<&'static bpe_openai::Tokenizer, &'static VocabularyError> {
    Ok(bpe_openai::cl100k_base())
}

#[cfg(feature = "embedded")]
fn o200k_base() -> Result<&'static bpe_openai::Tokenizer, &'static VocabularyError> {
    Ok(bpe_openai::o200k_base())
}

/// Counts exactly like OpenAI's models. The first use of a vocabulary loads it, which takes tens of
/// milliseconds and tens of megabytes. A text of 20,000 tokens takes several milliseconds.
struct BpeCounter {
    name: &'static str,
    vocabulary: &'static bpe_openai::Tokenizer,
}

impl TokenCounter for BpeCounter {
    fn name(&self) -> &'static str {
        self.name
    }

    fn count(&self, text: &str) -> u64 {
        self.vocabulary.count(text) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_as_many_tokens_as_openai_says() {
        let (new, old) = (counter(Tokenizer::O200k), counter(Tokenizer::Cl100k));
        // These are OpenAI's own examples for tiktoken.
        assert_eq!((old.count("tiktoken is great!"), new.count("tiktoken is great!")), (6, 6));
        assert_eq!(
            (old.count("antidisestablishmentarianism"), new.count("antidisestablishmentarianism")),
            (6, 6)
        );
        assert_eq!(old.count("2 + 2 = 4"), 7);
        assert_eq!((old.count("お誕生日おめでとう"), new.count("お誕生日おめでとう")), (9, 8));
        assert_eq!(new.count(""), 0);
    }

    #[test]
    fn an_estimate_is_near_and_on_the_safe_side() {
        let text = "The owner of a partition reads its stream without acks, keeps what is unfinished in memory, and \
                    commits finished steps together with the checkpoint, under the epoch of its lease. ";
        let count = |tokenizer| counter(tokenizer).count(text);
        let (exact, estimate) = (count(Tokenizer::O200k), count(Tokenizer::Estimate));
        assert!(estimate >= exact && estimate <= exact * 2, "{estimate} for {exact}");
    }

    #[test]
    fn without_its_vocabulary_tokens_are_estimated() {
        let error = VocabularyError::new("o200k_base.dict".as_ref(), "gone");
        let text = "A text in words, each of which is a token or several.";
        let counted = exact_or_estimating("o200k_base", Err(Box::leak(Box::new(error)))).count(text);
        assert_eq!(counted, EstimatingCounter.count(text));
        assert_ne!(counted, counter(Tokenizer::O200k).count(text));
    }
}
