//! Facts that an agent remembers: parses a model's notes on a turn, and builds the memory query of
//! a turn. No I/O.

mod recalled;

use model::{Role, quoting};
use serde::Deserialize;
use serde_json::Value;

use crate::Item;
use crate::context::Context;

pub use recalled::{RECALLED, RecalledFacts, UserWords};

/// Maximum number of facts from one turn.
pub const MOST_FACTS: usize = 32;
/// Maximum number of matching facts that a turn receives, however much room there is. If there are
/// no more facts than this, a turn receives all of them.
pub const MOST_OF_TURN: u32 = 16;
/// Maximum characters of a fact's text.
pub const MOST_FACT_CHARS: usize = 1_000;
/// Maximum number of facts that one fact replaces.
const MOST_SUPERSEDED: usize = 16;
/// Maximum bytes of a fact's id.
const MOST_ID_BYTES: usize = 512;
/// Maximum characters of a fact's kind.
const MOST_KIND_CHARS: usize = 64;
/// Maximum characters of a query. The end of the text is used, because it usually has the subject.
const MOST_QUERY_CHARS: usize = 2_000;

/// A fact to remember.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Fact {
    /// One sentence that can be understood without context.
    pub text: String,
    /// Subject of the fact, such as `preference` or `event`, in lower-case letters, digits and `_`.
    #[serde(default = "default_kind")]
    pub kind: String,
    /// Certainty from 0 to 1.
    #[serde(default = "default_confidence")]
    pub confidence: f32,
    /// Ids of facts that this one replaces, because it makes them wrong or outdated. They are about
    /// the same user or thread.
    #[serde(default)]
    pub supersedes: Vec<String>,
}

fn default_kind() -> String {
    "note".to_owned()
}

fn default_confidence() -> f32 {
    1.0
}

#[derive(Deserialize)]
struct Answer {
    facts: Vec<Value>,
}

/// The facts in an answer to a memory task.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ParsedFacts {
    /// The facts that can be stored, at most [`MOST_FACTS`].
    pub facts: Vec<Fact>,
    /// The facts that cannot be stored, with reasons.
    pub left_out: Vec<InvalidFact>,
}

/// The reason why an answer has no facts at all: it is not JSON of the expected form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the answer is not {{\"facts\": [{{\"text\", \"kind\", \"confidence\"}}]}}: {0}")]
pub struct InvalidAnswer(String);

/// The reason why a fact of an answer is left out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("fact {number}: {why}")]
pub struct InvalidFact {
    /// Index of the fact, from 0.
    pub number: usize,
    pub why: String,
}

/// Parses the answer to a memory task: `{"facts": [{"text", "kind", "confidence", "supersedes"}]}`,
/// with or without a code fence. Only `text` is required. Texts become one plain line
/// ([`quoting::one_line`]).
///
/// Models add fields and make errors in single facts. So unknown fields are ignored, and an
/// unusable fact is left out without affecting the others.
///
/// # Errors
/// The answer has no list of facts.
pub fn parse_facts(answer: &str) -> Result<ParsedFacts, InvalidAnswer> {
    // The error of serde quotes the input, which must not be logged.
    let invalid = |error: serde_json::Error| {
        let (kind, line, column) = (error.classify(), error.line(), error.column());
        InvalidAnswer(format!("{kind:?} error at line {line}, column {column}"))
    };
    let Answer { facts } = serde_json::from_str(unfenced(answer)).map_err(invalid)?;
    let mut parsed = ParsedFacts::default();
    for (number, fact) in facts.into_iter().enumerate() {
        let fact = if parsed.facts.len() == MOST_FACTS {
            Err(format!("a turn may have {MOST_FACTS} facts"))
        } else {
            usable(fact)
        };
        match fact {
            Ok(fact) => parsed.facts.push(fact),
            Err(why) => parsed.left_out.push(InvalidFact { number, why }),
        }
    }
    Ok(parsed)
}

fn usable(fact: Value) -> Result<Fact, String> {
    // The reason is logged, and the error of serde would quote the fact.
    let mut fact: Fact = serde_json::from_value(fact)
        .map_err(|_| "it is not an object with the fields of a fact, each of its type".to_owned())?;
    fact.text = quoting::one_line(&fact.text).into_owned();
    match fact.fault() {
        Some(why) => Err(why.to_owned()),
        None => Ok(fact),
    }
}

impl Fact {
    /// The reason why the fact cannot be stored; `None`: it can be stored.
    pub fn fault(&self) -> Option<&'static str> {
        let is_kind = |kind: &str| {
            (1..=MOST_KIND_CHARS).contains(&kind.len())
                && kind.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
        };
        let is_id = |id: &String| {
            (1..=MOST_ID_BYTES).contains(&id.len()) && !id.contains(|c: char| c.is_whitespace() || c == '\0')
        };
        if self.text.trim().is_empty() {
            Some("the text is empty")
        } else if self.text.chars().count() > MOST_FACT_CHARS {
            Some("the text is longer than 1,000 characters")
        } else if quoting::not_of_one_line(&self.text).is_some() {
            Some(
                "`text` must be one line, without tabs, control characters, invisible characters and characters that change its direction",
            )
        } else if !is_kind(&self.kind) {
            Some("the kind is not 1 to 64 small letters, digits and _")
        } else if !(0.0..=1.0).contains(&self.confidence) {
            Some("the confidence is not a number from 0 to 1")
        } else if self.supersedes.len() > MOST_SUPERSEDED || !self.supersedes.iter().all(is_id) {
            Some("supersedes is not a list of at most 16 ids of facts")
        } else {
            None
        }
    }
}

/// The answer without the code fence that models often put around JSON.
fn unfenced(answer: &str) -> &str {
    let trimmed = answer.trim();
    let inside = trimmed.strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    inside.map_or(trimmed, |inside| inside.strip_prefix("json").unwrap_or(inside).trim())
}

/// The query to the memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryQuery {
    pub text: String,
    pub source: QuerySource,
}

/// The source of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuerySource {
    /// The message that the turn answers.
    CurrentMessage,
    /// The last message of a person before the one that the turn answers.
    LastMessage,
    /// The summary of compacted batches.
    Summary,
}

impl QuerySource {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::CurrentMessage => "current_message",
            Self::LastMessage => "last_message",
            Self::Summary => "summary",
        }
    }
}

/// The query text of a memory task, taken from its content. It is the end of the turn's messages,
/// which begin after the first empty line.
pub fn memory_query_of_task(content: &str) -> &str {
    let said = content.split_once("\n\n").map_or(content, |(_, said)| said);
    ending(said)
}

fn ending(text: &str) -> &str {
    let from = text.char_indices().rev().nth(MOST_QUERY_CHARS - 1).map_or(0, |(at, _)| at);
    &text[from..]
}

/// The query of a turn with this context: its input, or else the last message of a person, or else
/// the summary. Returns `None` if there is no text for a query. Skips synthetic messages and empty
/// texts.
pub fn memory_query(context: &Context) -> Option<MemoryQuery> {
    // Sorted by position: a continuation is the newest message but is not in the newest batch.
    let mut items: Vec<&Item> =
        context.batches.iter().flat_map(|batch| batch.items()).map(|item| &**item).collect();
    items.sort_by_key(|item| std::cmp::Reverse(item.position));
    let mut items = items.into_iter();
    let current = items.next().and_then(text_of_person);
    let query = |text: &str, source| Some(MemoryQuery { text: ending(text).to_owned(), source });
    if let Some(text) = current {
        return query(text, QuerySource::CurrentMessage);
    }
    if let Some(text) = items.find_map(text_of_person) {
        return query(text, QuerySource::LastMessage);
    }
    let summary = context.summary.as_deref().map(str::trim).filter(|summary| !summary.is_empty())?;
    query(summary, QuerySource::Summary)
}

/// The text of a message by a person or of a task.
fn text_of_person(item: &Item) -> Option<&str> {
    let text = item.content.trim();
    (item.role == Role::User && !item.is_synthetic() && !text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests;
