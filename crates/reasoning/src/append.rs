//! New messages of the temp layer.

use std::collections::BTreeSet;

use crate::text::{check_name, check_text};
use crate::{
    MAX_CALLS_PER_MESSAGE, MAX_CONTENT_BYTES, MAX_MESSAGES_PER_APPEND, Reason, ReasoningRole, Refusal,
    SessionCall,
};

/// A message that is to be appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewMessage {
    /// Who speaks.
    pub role: ReasoningRole,
    /// What is said; may be blank beside calls or thinking, and for a result.
    pub content: String,
    /// What the model thought before.
    pub thinking: Option<String>,
    /// Of an assistant message.
    pub calls: Vec<SessionCall>,
    /// Of a tool message: the call that it answers.
    pub answers: Option<String>,
    /// Of a tool message: the tool; without it, the name in the call.
    pub tool: Option<String>,
}

/// Messages that fit together, and what they need of the calls that wait for results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewMessages {
    /// In order.
    pub messages: Vec<NewMessage>,
    /// Calls of earlier messages that these answer: they must be waiting.
    pub answers: BTreeSet<String>,
    /// Calls that are made here: they must not be waiting, but for those that are answered here before.
    pub calls: BTreeSet<String>,
    /// Calls that are made here and wait afterwards.
    pub waiting: BTreeSet<String>,
}

impl NewMessages {
    /// The calls that wait afterwards, if `waiting` wait before.
    ///
    /// # Errors
    /// A result without a call, or a call whose id waits already.
    pub fn settle(&self, waiting: &BTreeSet<String>) -> Result<BTreeSet<String>, Refusal> {
        if let Some(missing) = self.answers.iter().find(|id| !waiting.contains(*id)) {
            return Err(Reason::NoSuchCall(missing.clone()).into());
        }
        if let Some(again) = self.calls.iter().find(|id| waiting.contains(*id)) {
            return Err(Reason::CallWaits(again.clone()).into());
        }
        Ok(waiting.difference(&self.answers).chain(&self.waiting).cloned().collect())
    }
}

/// Checks messages that are to be appended together.
///
/// # Errors
/// What is wrong with one of them; then none is to be appended.
pub fn append(mut messages: Vec<NewMessage>) -> Result<NewMessages, Refusal> {
    if messages.is_empty() {
        return Err(Reason::Blank { what: "the list of messages" }.into());
    }
    if messages.len() > MAX_MESSAGES_PER_APPEND {
        let (count, max) = (messages.len() as u64, MAX_MESSAGES_PER_APPEND as u64);
        return Err(Reason::TooMany { what: "messages", count, max }.into());
    }
    let (mut answers, mut calls, mut waiting) = (BTreeSet::new(), BTreeSet::new(), Vec::<SessionCall>::new());
    for message in &mut messages {
        check(message)?;
        for call in &message.calls {
            if waiting.iter().any(|waits| waits.id == call.id) {
                return Err(Reason::CallWaits(call.id.clone()).into());
            }
            // Answered here before it is called here, it waited before; made a second time here, it was answered in between.
            if !answers.contains(&call.id) {
                calls.insert(call.id.clone());
            }
            waiting.push(call.clone());
        }
        let Some(id) = &message.answers else { continue };
        match waiting.iter().position(|call| call.id == *id) {
            Some(index) => {
                let call = waiting.remove(index);
                message.tool.get_or_insert(call.name);
            }
            None if calls.contains(id) || !answers.insert(id.clone()) => {
                return Err(Reason::NoSuchCall(id.clone()).into());
            }
            None => {}
        }
    }
    let waiting = waiting.into_iter().map(|call| call.id).collect();
    Ok(NewMessages { messages, answers, calls, waiting })
}

fn check(message: &NewMessage) -> Result<(), Reason> {
    check_text("the content", &message.content, MAX_CONTENT_BYTES)?;
    if let Some(thinking) = &message.thinking {
        check_text("the thinking", thinking, MAX_CONTENT_BYTES)?;
    }
    let wrong = |what, role: ReasoningRole| Reason::WrongRole { what, role: role.name() };
    if message.role == ReasoningRole::Summary {
        return Err(Reason::Summary);
    }
    if message.role != ReasoningRole::Assistant && (!message.calls.is_empty() || message.thinking.is_some()) {
        let what = if message.calls.is_empty() { "thinking" } else { "a call" };
        return Err(wrong(what, ReasoningRole::Assistant));
    }
    if (message.role == ReasoningRole::Tool) != message.answers.is_some() {
        return Err(wrong("the id of the call that is answered", ReasoningRole::Tool));
    }
    if message.tool.is_some() && message.role != ReasoningRole::Tool {
        return Err(wrong("the name of the tool", ReasoningRole::Tool));
    }
    if message.calls.len() > MAX_CALLS_PER_MESSAGE {
        let (count, max) = (message.calls.len() as u64, MAX_CALLS_PER_MESSAGE as u64);
        return Err(Reason::TooMany { what: "calls of a message", count, max });
    }
    for call in &message.calls {
        check_name("the id of a call", &call.id)?;
        check_name("the name of a tool", &call.name)?;
    }
    let names = [("the id of a call", &message.answers), ("the name of a tool", &message.tool)];
    names
        .into_iter()
        .filter_map(|(what, name)| Some((what, name.as_ref()?)))
        .try_for_each(|(what, name)| check_name(what, name))?;
    let says_nothing = message.content.trim().is_empty()
        && message.role != ReasoningRole::Tool
        && message.calls.is_empty()
        && message.thinking.as_ref().is_none_or(|thinking| thinking.trim().is_empty());
    match says_nothing {
        true => Err(Reason::Blank { what: "the content" }),
        false => Ok(()),
    }
}
