//! Exact token counts with OpenAI's vocabularies.
//!
//! A crate of its own, because the vocabularies are 47 MB in every program that links them.

use batches::{EstimatingCounter, TokenCounter, context::Tokenizer};

/// The counter for the `tokenizer` of an agent's settings.
pub fn counter(tokenizer: Tokenizer) -> Box<dyn TokenCounter> {
    match tokenizer {
        Tokenizer::Estimate => Box::new(EstimatingCounter),
        Tokenizer::O200k => Box::new(BpeCounter(bpe_openai::o200k_base())),
        Tokenizer::Cl100k => Box::new(BpeCounter(bpe_openai::cl100k_base())),
    }
}

/// Counts exactly what OpenAI's models count. The first use of a vocabulary loads it, which takes tens of milliseconds and tens of
/// megabytes; a text of 20,000 tokens takes several milliseconds.
struct BpeCounter(&'static bpe_openai::Tokenizer);

impl TokenCounter for BpeCounter {
    fn count(&self, text: &str) -> u64 {
        self.0.count(text) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_as_many_tokens_as_openai_says() {
        let (new, old) = (counter(Tokenizer::O200k), counter(Tokenizer::Cl100k));
        // From OpenAI's own examples of tiktoken.
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
}
