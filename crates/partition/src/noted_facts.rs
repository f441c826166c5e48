//! What a memory task has found, as it follows from the turn that is written.

use batches::memory::{Fact, InvalidAnswer, InvalidFact, ParsedFacts, RecalledFacts, UserWords, parse_facts};
use model::{AgentId, MessageId, TaskKind, ThreadId};
use serde_json::Value;

use crate::types::TurnWrite;

/// The facts that a memory task has found, and the turn which they are about.
#[derive(Debug, Clone, PartialEq)]
pub struct NotedFacts {
    /// Who remembers them.
    pub agent: AgentId,
    /// The thread of the turn.
    pub thread: ThreadId,
    /// The answer of that turn.
    pub answer: MessageId,
    /// What is remembered.
    pub facts: Vec<Fact>,
    /// What the answer has beside that, and cannot be used.
    pub left_out: Vec<InvalidFact>,
    /// How many of its facts are left out because the turn was given them, and the user has not said them.
    pub repeated: u64,
}

/// What becomes of the facts of a turn.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CountedFacts {
    pub(crate) remembered: u64,
    pub(crate) repeated: u64,
    pub(crate) invalid: Option<InvalidFacts>,
}

/// What of an answer to a memory task cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidFacts {
    /// Facts that are left out; 1 where there is no list of facts.
    pub count: u64,
    /// What is wrong with the first of them.
    pub text: String,
}

/// A log line has no more.
const MOST_REASONS: usize = 4;

impl TurnWrite {
    /// How many facts are remembered of this turn, and which are not.
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

    /// What is remembered of this turn; `None`: it is not that of a memory task, or its answer has no facts.
    ///
    /// # Errors
    /// It is that of a memory task, and its answer has no list of facts.
    pub fn noted_facts(&self) -> Result<Option<NotedFacts>, InvalidAnswer> {
        let (Some(input), Some(answer)) = (self.messages.first(), self.messages.last()) else {
            return Ok(None);
        };
        let queue = &input.key.thread;
        if queue.background_kind() != Some(TaskKind::Memory) {
            return Ok(None);
        }
        let about = |key: &str| input.metadata.get(key).and_then(Value::as_str);
        let (Ok(agent), Some(message)) = (AgentId::parse(queue.as_str()), about("assistant_message_id"))
        else {
            return Ok(None);
        };
        let thread = model::origin(&agent, TaskKind::Memory, &input.metadata);
        let (Some(thread), Ok(message)) = (thread, MessageId::parse(message)) else { return Ok(None) };
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
