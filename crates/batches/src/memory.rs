//! Facts that an agent remembers: what a model has noted of a turn, and what memory is asked when a turn begins. Pure.

mod recalled;

use model::{Role, quoting};
use serde::Deserialize;
use serde_json::Value;

use crate::Item;
use crate::context::Context;

pub use recalled::{RECALLED, RecalledFacts, UserWords};

/// Most facts of one turn.
pub const MOST_FACTS: usize = 32;
/// Facts that a turn begins with because they fit, whatever room there is; and the number of facts that are few, of which it is given all.
pub const MOST_OF_TURN: u32 = 16;
/// Longest text of a fact, characters.
pub const MOST_FACT_CHARS: usize = 1_000;
/// Most facts whose place one takes.
const MOST_SUPERSEDED: usize = 16;
/// Longest id of a fact, bytes.
const MOST_ID_BYTES: usize = 512;
/// Longest kind of a fact, characters.
const MOST_KIND_CHARS: usize = 64;
/// Of a query, characters: what is asked about stands at its end or is long-winded.
const MOST_QUERY_CHARS: usize = 2_000;

/// Something worth remembering.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Fact {
    /// One sentence that makes sense alone.
    pub text: String,
    /// What it is about: `preference`, `event` and the like, in small letters, digits and `_`.
    #[serde(default = "default_kind")]
    pub kind: String,
    /// How certain it is, from 0 to 1.
    #[serde(default = "default_confidence")]
    pub confidence: f32,
    /// Ids of facts that it makes wrong or outdated, of the same user or thread: it takes their place.
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

/// What an answer to a memory task has.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ParsedFacts {
    /// Those that can be stored, at most [`MOST_FACTS`].
    pub facts: Vec<Fact>,
    /// Those that cannot.
    pub left_out: Vec<InvalidFact>,
}

/// Why an answer has no facts at all: it is no JSON of that shape.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the answer is not {{\"facts\": [{{\"text\", \"kind\", \"confidence\"}}]}}: {0}")]
pub struct InvalidAnswer(String);

/// Why a fact of an answer is left out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("fact {number}: {why}")]
pub struct InvalidFact {
    /// Which, from 0.
    pub number: usize,
    /// What is wrong.
    pub why: String,
}

/// The facts of an answer to a memory task: `{"facts": [{"text", "kind", "confidence", "supersedes"}]}`, of which all but the text may be absent, with a fence
/// of code around it or without. Texts become one plain line ([`quoting::one_line`]). Models add fields and get single facts wrong: unknown fields do not
/// count, and each fact that cannot be used is left out alone.
///
/// # Errors
/// It has no list of facts.
pub fn parse_facts(answer: &str) -> Result<ParsedFacts, InvalidAnswer> {
    // serde's own text quotes what it found, and this one goes into the log.
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
    // The reason is logged: serde's own would quote what the fact says.
    let mut fact: Fact = serde_json::from_value(fact)
        .map_err(|_| "it is not an object with the fields of a fact, each of its type".to_owned())?;
    fact.text = quoting::one_line(&fact.text).into_owned();
    match fact.fault() {
        Some(why) => Err(why.to_owned()),
        None => Ok(fact),
    }
}

impl Fact {
    /// What is wrong with it; `None`: it can be stored.
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

/// Models like to put JSON into a fence.
fn unfenced(answer: &str) -> &str {
    let trimmed = answer.trim();
    let inside = trimmed.strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    inside.map_or(trimmed, |inside| inside.strip_prefix("json").unwrap_or(inside).trim())
}

/// What memory is asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryQuery {
    /// The text.
    pub text: String,
    /// Where it comes from.
    pub source: QuerySource,
}

/// Where a query comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuerySource {
    /// The message that the turn answers.
    CurrentMessage,
    /// The last message of a person before it.
    LastMessage,
    /// The summary of what was compacted.
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

/// What a memory task is asked about, by its content: the end of what was said in the turn, which comes after the first empty line.
pub fn memory_query_of_task(content: &str) -> &str {
    let said = content.split_once("\n\n").map_or(content, |(_, said)| said);
    ending(said)
}

fn ending(text: &str) -> &str {
    let from = text.char_indices().rev().nth(MOST_QUERY_CHARS - 1).map_or(0, |(at, _)| at);
    &text[from..]
}

/// The query of a turn whose context this is: its input, else the last message of a person, else the summary; `None`: there is nothing to
/// ask. What the system made up itself is never asked about, and neither is what has no text.
pub fn memory_query(context: &Context) -> Option<MemoryQuery> {
    // A continuation is the newest message, and not in the newest batch.
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

/// The text of a message of a person, or of a task.
fn text_of_person(item: &Item) -> Option<&str> {
    let text = item.content.trim();
    (item.role == Role::User && !item.is_synthetic() && !text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests;
