//! What a memory task has found, as it follows from the turn that is written.

use batches::memory::{Fact, InvalidFacts, parse_facts};
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
    /// At least one.
    pub facts: Vec<Fact>,
}

impl TurnWrite {
    /// What is remembered of this turn; `None`: it is not that of a memory task, or there is nothing worth remembering.
    ///
    /// # Errors
    /// It is that of a memory task, and its answer does not have the shape of [`parse_facts`].
    pub fn noted_facts(&self) -> Result<Option<NotedFacts>, InvalidFacts> {
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
        let facts = parse_facts(&answer.content)?;
        let noted = NotedFacts { agent: agent.agent(), thread, answer: message, facts };
        Ok(Some(noted).filter(|noted| !noted.facts.is_empty()))
    }
}
