//! Facts found by a memory task, derived from its written turn.

use batches::memory::{Fact, InvalidAnswer, InvalidFact, ParsedFacts, RecalledFacts, UserWords, parse_facts};
use model::{AgentId, MessageId, TaskKind, ThreadId};

use crate::types::TurnWrite;

/// Facts found by a memory task, and the turn they concern.
#[derive(Debug, Clone, PartialEq)]
pub struct NotedFacts {
    /// Agent that remembers them.
    pub agent: AgentId,
    /// Thread of that turn.
    pub thread: ThreadId,
    /// Answer of that turn.
    pub answer: MessageId,
    /// Facts to remember.
    pub facts: Vec<Fact>,
    /// Facts of the answer that cannot be used.
    pub left_out: Vec<InvalidFact>,
    /// Number of facts left out because the turn had been given them, and the user did not state
    /// them.
    pub repeated: u64,
}

/// Counts of a turn's facts by outcome.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CountedFacts {
    pub(crate) remembered: u64,
    pub(crate) repeated: u64,
    pub(crate) invalid: Option<InvalidFacts>,
}

/// Unusable facts in an answer to a memory task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidFacts {
    /// Number of facts left out; 1 if there is no list of facts.
    pub count: u64,
    /// Errors of the first of them.
    pub text: String,
}

/// Maximum number of errors in one log line.
const MOST_REASONS: usize = 4;

impl TurnWrite {
    /// Counts the facts remembered of this turn and those that are not.
    pub(crate) fn counted_facts(&self) -> CountedFacts {
        let noted = match self.noted_facts() {
            Ok(None) => return CountedFacts::default(),
            Ok(Some(noted)) => noted,
            Err(error) => {
                let invalid = Some(InvalidFacts { count: 1, text: error.to_string() });
                return CountedFacts { invalid, ..CountedFacts::default() };
            }
        };
        let reasons: Vec<String> =
            noted.left_out.iter().take(MOST_REASONS).map(ToString::to_string).collect();
        let invalid = InvalidFacts { count: noted.left_out.len() as u64, text: reasons.join("; ") };
        CountedFacts {
            remembered: noted.facts.len() as u64,
            repeated: noted.repeated,
            invalid: Some(invalid).filter(|invalid| invalid.count > 0),
        }
    }

    /// Facts to remember of this turn; `None`: it is not a memory task's turn, or its answer has no
    /// facts.
    ///
    /// # Errors
    /// The turn is that of a memory task, and its answer has no list of facts.
    pub fn noted_facts(&self) -> Result<Option<NotedFacts>, InvalidAnswer> {
        let (Some(input), Some(answer)) = (self.messages.first(), self.messages.last()) else {
            return Ok(None);
        };
        let queue = &input.key.thread;
        if queue.background_kind() != Some(TaskKind::Memory) {
            return Ok(None);
        }
        let Ok(agent) = AgentId::parse(queue.as_str()) else { return Ok(None) };
        let Some((thread, message)) = input.metadata.answer_followed(&agent) else { return Ok(None) };
        let ParsedFacts { mut facts, left_out } = parse_facts(&answer.content)?;
        let (recalled, said) = (RecalledFacts::of_task(&input.metadata), UserWords::of_task(&input.content));
        let found = facts.len();
        facts.retain(|fact| !recalled.repeats(&fact.text, &said));
        let repeated = (found - facts.len()) as u64;
        if found == 0 && left_out.is_empty() {
            return Ok(None);
        }
        Ok(Some(NotedFacts { agent: agent.agent(), thread, answer: message, facts, left_out, repeated }))
    }
}
