//! Checks new messages of the temp layer.

use std::collections::BTreeSet;

use crate::text::{check_name, check_text, is_blank};
use crate::{
    MAX_ARGUMENTS_BYTES, MAX_CALLS_PER_MESSAGE, MAX_CONTENT_BYTES, MAX_MESSAGES_PER_APPEND,
    MAX_SIGNATURE_BYTES, Reason, ReasoningRole, Refusal, SessionCall,
};

/// A message to append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewMessage {
    pub role: ReasoningRole,
    /// The text. It may be blank in a message with calls, in a result, and if the thinking belongs
    /// to the next message.
    pub content: String,
    /// The model's thinking before the message.
    pub thinking: Option<String>,
    /// The provider's signature of the thinking.
    pub signature: Option<String>,
    /// Calls of an assistant message.
    pub calls: Vec<SessionCall>,
    /// For a tool message: the id of the answered call.
    pub answers: Option<String>,
    /// For a tool message: the name of the tool; `None`: the name in the call.
    pub tool: Option<String>,
}

impl NewMessage {
    /// True if the message has only thinking, so that it gets no number.
    fn is_thinking_alone(&self) -> bool {
        self.role == ReasoningRole::Assistant
            && self.thinking.is_some()
            && is_blank(&self.content)
            && self.calls.is_empty()
            && self.answers.is_none()
            && self.tool.is_none()
    }
}

/// Valid messages, and the conditions that they set for the waiting calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewMessages {
    pub messages: Vec<NewMessage>,
    /// Calls of earlier messages that these messages answer. These calls must be waiting.
    pub answers: BTreeSet<String>,
    /// Calls of these messages. None of their ids may be waiting before, unless an earlier one of
    /// these messages answers it.
    pub calls: BTreeSet<String>,
    /// Calls of these messages that are waiting afterwards.
    pub waiting: BTreeSet<String>,
}

impl NewMessages {
    /// The calls that are waiting after these messages, if `waiting` are waiting before.
    ///
    /// # Errors
    /// A result has no call, or the id of a call is already waiting.
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

/// Checks messages that are appended together. Moves the thinking of a message that has only
/// thinking into the next assistant message.
///
/// # Errors
/// One of the messages is invalid; then none must be appended.
pub fn append(messages: Vec<NewMessage>) -> Result<NewMessages, Refusal> {
    if messages.is_empty() {
        return Err(Reason::Blank { what: "the list of messages" }.into());
    }
    if messages.len() > MAX_MESSAGES_PER_APPEND {
        let (count, max) = (messages.len() as u64, MAX_MESSAGES_PER_APPEND as u64);
        return Err(Reason::TooMany { what: "messages", count, max }.into());
    }
    let mut messages = with_thinking_placed(messages)?;
    let (mut answers, mut calls, mut waiting) = (BTreeSet::new(), BTreeSet::new(), Vec::<SessionCall>::new());
    for message in &mut messages {
        check(message)?;
        for call in &message.calls {
            if waiting.iter().any(|waits| waits.id == call.id) {
                return Err(Reason::CallWaits(call.id.clone()).into());
            }
            // If an earlier message of this append answers the id of the call, the id was waiting
            // before and is excluded. If the id was used by an earlier call of this append, that
            // call was answered in between.
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

/// The messages that get a number. If a message has only thinking, this moves into the next
/// message. That one must be the assistant's and have no thinking, because two signed thoughts
/// cannot be joined.
fn with_thinking_placed(messages: Vec<NewMessage>) -> Result<Vec<NewMessage>, Refusal> {
    let mut placed = Vec::with_capacity(messages.len());
    let mut alone: Option<NewMessage> = None;
    for mut message in messages {
        if let Some(thought) = alone.take() {
            if message.role != ReasoningRole::Assistant || message.thinking.is_some() {
                return Err(Reason::ThinkingAlone.into());
            }
            (message.thinking, message.signature) = (thought.thinking, thought.signature);
        }
        match message.is_thinking_alone() {
            true => alone = Some(message),
            false => placed.push(message),
        }
    }
    match alone {
        Some(_) => Err(Reason::ThinkingAlone.into()),
        None => Ok(placed),
    }
}

fn check(message: &NewMessage) -> Result<(), Reason> {
    check_text("the content", &message.content, MAX_CONTENT_BYTES)?;
    if let Some(thinking) = &message.thinking {
        check_text("the thinking", thinking, MAX_CONTENT_BYTES)?;
    }
    if let Some(signature) = &message.signature {
        check_text("the signature of the thinking", signature, MAX_SIGNATURE_BYTES)?;
    }
    let wrong = |what, role: ReasoningRole| Reason::WrongRole { what, role: role.name() };
    if message.role == ReasoningRole::Summary {
        return Err(Reason::Summary);
    }
    if message.role != ReasoningRole::Assistant {
        let of_assistant = [
            ("a call", !message.calls.is_empty()),
            ("thinking", message.thinking.is_some()),
            ("the signature of thinking", message.signature.is_some()),
        ];
        if let Some((what, _)) = of_assistant.into_iter().find(|(_, is_there)| *is_there) {
            return Err(wrong(what, ReasoningRole::Assistant));
        }
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
        let texts = [
            ("the arguments of a call", &call.arguments, MAX_ARGUMENTS_BYTES),
            ("the signature of a call", &call.signature, MAX_SIGNATURE_BYTES),
        ];
        for (what, text, max_bytes) in texts {
            check_text(what, text.as_deref().unwrap_or_default(), max_bytes)?;
        }
    }
    let names = [("the id of a call", &message.answers), ("the name of a tool", &message.tool)];
    names
        .into_iter()
        .filter_map(|(what, name)| Some((what, name.as_ref()?)))
        .try_for_each(|(what, name)| check_name(what, name))?;
    let says_nothing =
        is_blank(&message.content) && message.role != ReasoningRole::Tool && message.calls.is_empty();
    match says_nothing {
        true => Err(Reason::Blank { what: "the content" }),
        false => Ok(()),
    }
}
