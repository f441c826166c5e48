//! Facts that a turn received. They are not remembered again from that turn, unless the user
//! repeats them in it.
//!
//! Entry type: [`RecalledFacts`]. It has digests of the facts instead of texts, to stay small in
//! memory and in the metadata of a task.

use model::{Message, Metadata, is_memory_tool};
use serde_json::Value;
use unicode_normalization::UnicodeNormalization as _;

use crate::compaction::INDENT;
use crate::results_of_kind::ResultsOfKind;

/// Key in the metadata of a memory task: the facts that its turn received.
pub const RECALLED: &str = "recalled";
/// Maximum number of facts of one turn: the facts at its start and those that its searches have
/// found.
const MOST_RECALLED: usize = 256;
/// Prefix of an item of the user in a transcript.
const USER: &str = "user: ";

/// The facts that a turn received.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecalledFacts(Vec<u64>);

impl RecalledFacts {
    /// The facts with these texts.
    pub fn of_texts<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut facts = Self::default();
        texts.into_iter().for_each(|text| facts.add(text));
        facts
    }

    fn add(&mut self, text: &str) {
        let digest = digest(&normalised(text));
        if self.0.len() < MOST_RECALLED && !self.0.contains(&digest) {
            self.0.push(digest);
        }
    }

    /// Adds the facts that memory tools returned in the messages of the turn.
    #[must_use]
    pub fn with_results(mut self, messages: &[Message]) -> Self {
        let shown = ResultsOfKind::new(messages, is_memory_tool);
        for message in messages.iter().filter(|message| shown.has(message)) {
            for line in message.content.lines() {
                let quoted = line.split_once('"').and_then(|(_, rest)| rest.rsplit_once('"'));
                if let Some((text, _)) = quoted {
                    self.add(text);
                }
            }
        }
        self
    }

    /// The form in the metadata of a task; `None`: there are no facts.
    pub fn to_value(&self) -> Option<Value> {
        let shown = self.0.iter().map(|digest| Value::String(format!("{digest:016x}")));
        (!self.0.is_empty()).then(|| shown.collect())
    }

    /// Reads the form of [`Self::to_value`] from the metadata of a task.
    pub fn of_task(metadata: &Metadata) -> Self {
        let listed = metadata.get(RECALLED).and_then(Value::as_array);
        let digests = listed.into_iter().flatten().filter_map(Value::as_str);
        Self(digests.filter_map(|digest| u64::from_str_radix(digest, 16).ok()).take(MOST_RECALLED).collect())
    }

    /// True if a fact found in the turn is one of these, and the user did not say the same words in
    /// the turn.
    pub fn repeats(&self, fact: &str, said: &UserWords) -> bool {
        let words = normalised(fact);
        self.0.contains(&digest(&words)) && !said.contain(&words)
    }
}

/// The user's messages of a turn, each in normal form.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserWords(Vec<String>);

impl UserWords {
    /// Reads the user's items from the transcript in a memory task.
    pub fn of_task(content: &str) -> Self {
        let said = content.split_once("\n\n").map_or("", |(_, said)| said);
        let (mut messages, mut is_of_user) = (Vec::<String>::new(), false);
        for line in said.split('\n') {
            if let Some(text) = line.strip_prefix(USER) {
                messages.push(text.to_owned());
                is_of_user = true;
            } else if let (Some(text), Some(message), true) =
                (line.strip_prefix(INDENT), messages.last_mut(), is_of_user)
            {
                message.push(' ');
                message.push_str(text);
            } else {
                is_of_user = false;
            }
        }
        Self(messages.iter().map(|message| normalised(message)).collect())
    }

    fn contain(&self, words: &str) -> bool {
        let words = format!(" {words} ");
        self.0.iter().any(|said| format!(" {said} ").contains(&words))
    }
}

/// The words of a text in lower case: texts that differ only in punctuation, case, white space or
/// encoding are equal.
fn normalised(text: &str) -> String {
    let letters: String = text.nfkc().flat_map(char::to_lowercase).collect();
    let words = letters.split(|character: char| !character.is_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ")
}

/// FNV-1a. The digest must be the same in every build, because it is stored.
fn digest(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |digest, byte| (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
