//! OpenAI's own vocabularies.

use std::fmt;

use super::Counter;

/// Counts exactly what OpenAI's models count. The first use of a vocabulary loads it, which takes tens of milliseconds and tens of
/// megabytes; a text of 20,000 tokens takes several milliseconds. So it is for reports and for plans, and not for every turn.
#[derive(Clone, Copy)]
pub struct Exact {
    tokenizer: &'static bpe_openai::Tokenizer,
    name: &'static str,
}

impl Exact {
    /// `o200k_base`: gpt-4o and all since.
    pub fn o200k() -> Self {
        Self { tokenizer: bpe_openai::o200k_base(), name: "o200k_base" }
    }

    /// `cl100k_base`: gpt-4 and gpt-3.5.
    pub fn cl100k() -> Self {
        Self { tokenizer: bpe_openai::cl100k_base(), name: "cl100k_base" }
    }

    /// The vocabulary of a model of OpenAI's; `None` for others, which have their own.
    pub fn of_model(model: &str) -> Option<Self> {
        let model = model.rsplit('/').next().unwrap_or(model);
        let is_of = |families: &[&str]| families.iter().any(|family| model.starts_with(family));
        // The newer ones first: gpt-4o begins like gpt-4.
        match is_of(&["gpt-4o", "gpt-4.1", "gpt-4.5", "gpt-5", "chatgpt-4o", "o1", "o3", "o4-"]) {
            true => Some(Self::o200k()),
            false => is_of(&["gpt-4", "gpt-3.5"]).then(Self::cl100k),
        }
    }

    /// The vocabulary's name.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

impl Counter for Exact {
    fn count(&self, text: &str) -> u64 {
        self.tokenizer.count(text) as u64
    }
}

impl fmt::Debug for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Exact").field(&self.name).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Estimate;

    #[test]
    fn texts_have_as_many_tokens_as_openai_says() {
        let (new, old) = (Exact::o200k(), Exact::cl100k());
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
        let (exact, estimate) = (Exact::o200k().count(text), Estimate.count(text));
        assert!(estimate >= exact && estimate <= exact * 2, "{estimate} for {exact}");
    }

    #[test]
    fn models_have_vocabularies() {
        let name = |model: &str| Exact::of_model(model).map(|exact| exact.name());
        assert_eq!(name("gpt-4o-mini"), Some("o200k_base"));
        assert_eq!(name("openai/gpt-5"), Some("o200k_base"));
        assert_eq!(name("gpt-4-turbo"), Some("cl100k_base"));
        assert_eq!(name("claude-sonnet-4-6"), None);
    }
}
