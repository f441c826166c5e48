//! Builds threads from short words.

use model::ReasoningSessionId;
use reasoning::{
    Compression, CompressionRequest, NewMessage, ReasoningRole, ReasoningThreadStack, Refusal, Selection,
    SessionCall, SessionMessage, message_id,
};

/// An empty session.
pub(crate) fn empty() -> ReasoningThreadStack {
    ReasoningThreadStack::new(session(), Vec::new())
}

pub(crate) fn session() -> ReasoningSessionId {
    ReasoningSessionId::parse("acme~s").unwrap()
}

/// Words are `u:text`, `a:text`, `s:text`; `a:text>c1,c2` calls the tool `search` twice;
/// `t<c1:text` is a result.
pub(crate) fn message(word: &str) -> NewMessage {
    let (head, text) = word.split_once(':').unwrap();
    let (text, calls) = text.split_once('>').unwrap_or((text, ""));
    let role = match &head[..1] {
        "u" => ReasoningRole::User,
        "a" => ReasoningRole::Assistant,
        "s" => ReasoningRole::System,
        _ => ReasoningRole::Tool,
    };
    let call = |id: &str| {
        let name = if id.starts_with("frs") { "frs_compress_last" } else { "search" };
        SessionCall::new(id, name)
    };
    NewMessage {
        role,
        content: text.to_owned(),
        thinking: None,
        signature: None,
        calls: calls.split(',').filter(|id| !id.is_empty()).map(call).collect(),
        answers: head.split_once('<').map(|(_, id)| id.to_owned()),
        tool: None,
    }
}

pub(crate) fn messages(words: &str) -> Vec<NewMessage> {
    words.split_whitespace().map(message).collect()
}

/// A session whose temp layer has these messages.
pub(crate) fn temp(words: &str) -> ReasoningThreadStack {
    let mut stack = empty();
    stack.append(messages(words)).unwrap();
    stack
}

/// A session with these base messages, and these words in its temp layer.
pub(crate) fn over(base: &str, words: &str) -> ReasoningThreadStack {
    let base = messages(base).into_iter().map(|new| SessionMessage {
        number: 0,
        in_temp: true,
        role: new.role,
        content: new.content,
        thinking: None,
        signature: None,
        calls: new.calls,
        answers: new.answers,
        tool: new.tool,
    });
    let mut stack = ReasoningThreadStack::new(session(), base.collect());
    if !words.is_empty() {
        stack.append(messages(words)).unwrap();
    }
    stack
}

pub(crate) fn request(selection: Selection, summary: &str) -> CompressionRequest {
    CompressionRequest { selection, summary: summary.to_owned(), token: None }
}

pub(crate) fn last(
    stack: &mut ReasoningThreadStack,
    count: i64,
    summary: &str,
) -> Result<Compression, Refusal> {
    stack.compress(&request(Selection::Last(count), summary))
}

pub(crate) fn range(
    stack: &mut ReasoningThreadStack,
    from: i64,
    to: i64,
    summary: &str,
) -> Result<Compression, Refusal> {
    stack.compress(&request(Selection::Range(from, to), summary))
}

pub(crate) fn numbers(
    stack: &mut ReasoningThreadStack,
    numbers: &[i64],
    summary: &str,
) -> Result<Compression, Refusal> {
    stack.compress(&request(Selection::Numbers(numbers.to_vec()), summary))
}

/// The shown messages in order, by their texts.
pub(crate) fn texts(stack: &ReasoningThreadStack) -> String {
    stack.shown().iter().map(|message| message.content.as_str()).collect::<Vec<_>>().join(" ")
}

/// The shown messages in order, by their numbers.
pub(crate) fn shown(stack: &ReasoningThreadStack) -> Vec<u64> {
    stack.shown().iter().map(|message| message.number).collect()
}

/// The text of a refusal, after checking that nothing has changed.
pub(crate) fn refused(
    stack: &mut ReasoningThreadStack,
    action: impl FnOnce(&mut ReasoningThreadStack) -> Result<Compression, Refusal>,
) -> String {
    let before = (stack.view(), stack.messages().len());
    let refusal = action(stack).unwrap_err();
    assert_eq!((stack.view(), stack.messages().len()), before, "{refusal}");
    refusal.to_string()
}

pub(crate) fn summary_id(compression: &Compression) -> String {
    message_id(compression.summary)
}
