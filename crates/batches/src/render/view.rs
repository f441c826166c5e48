//! The messages of a context in a form that any provider accepts.

use std::borrow::Cow;

use model::{Role, quoting};
use serde_json::{Value, json};

use super::ids::{Ids, fitting};
use super::{Repair, RepairKind};
use crate::{AnswerLocation, Batch, Context, Item, ItemCall, Pairing, SharedItem};

/// Replaces a required text that is blank.
const NO_TEXT: &str = "(no text)";
/// Replaces a blank result.
const NO_RESULT: &str = "(no result)";
/// Result of a call whose turn was stopped or continues without the result.
const STOPPED: &str = "stopped";
/// Precedes an assistant message that no input asked for.
const BEGIN: &str = "(The thread begins with the assistant.)";
/// Follows an assistant message that the model must continue.
const GO_ON: &str = "(Go on.)";
/// Maximum length of a tool name that all providers accept.
const LONGEST_NAME: usize = 64;

/// The rules of a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Maximum bytes of a call id.
    pub longest_id: usize,
    /// Ids may contain only letters, digits, `_` and `-`.
    pub has_narrow_ids: bool,
    /// Instructions are allowed among the messages.
    pub takes_system: bool,
}

impl Rules {
    /// Rules of OpenAI's chat completions.
    pub const OPENAI: Self = Self { longest_id: 40, has_narrow_ids: false, takes_system: true };
    /// Rules of Anthropic's messages.
    pub const ANTHROPIC: Self = Self { longest_id: 64, has_narrow_ids: true, takes_system: false };
    /// Rules that satisfy all providers.
    pub const ANY: Self = Self { longest_id: 40, has_narrow_ids: true, takes_system: false };
}

/// A message in the form that a provider receives.
#[derive(Debug, Clone, PartialEq)]
pub struct ViewMessage<'a> {
    pub role: Role,
    /// The text, which is never blank, except in a message with calls.
    pub text: Cow<'a, str>,
    /// The calls of an assistant message. The results follow directly as messages, in the same
    /// order.
    pub calls: Vec<SaidCall>,
    /// For a tool message: the shown id of the call.
    pub answers: Option<String>,
    /// The stored message; `None` for a generated one.
    pub source: Option<&'a SharedItem>,
}

impl<'a> ViewMessage<'a> {
    /// The stored message, if the view shows exactly its role and text and nothing else.
    pub fn as_stored(&self) -> Option<&'a SharedItem> {
        let has_more = !self.calls.is_empty() || self.answers.is_some();
        let source = self.source.filter(|source| !has_more && source.role == self.role)?;
        matches!(self.text, Cow::Borrowed(text) if std::ptr::eq(text, source.content.as_str()))
            .then_some(source)
    }
}

/// A call in the form that a provider receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaidCall {
    /// The id, which is unique in the view.
    pub id: String,
    pub name: String,
    /// The arguments as text of a JSON object.
    pub arguments: String,
}

/// The messages of a context, and the repairs made to them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct View<'a> {
    /// The messages, without instructions and summary.
    pub messages: Vec<ViewMessage<'a>>,
    /// The repairs, in the order of the messages.
    pub repairs: Vec<Repair>,
}

/// The messages of a context, in a form that a provider with these rules accepts.
pub fn view<'a>(context: &'a Context, rules: &'a Rules) -> View<'a> {
    let mut writer = ViewWriter { rules, view: View::default(), ids: Ids::default() };
    let is_active = |batch: &&Batch| context.active == Some(batch.id());
    let was_last = context.batches.last().is_some_and(|last| is_active(&last));
    context.batches.iter().filter(|batch| !is_active(batch)).for_each(|batch| writer.batch(batch));
    for active in context.batches.iter().filter(is_active) {
        if !was_last {
            writer.kind(active.items().first().map(|item| &**item), RepairKind::ActiveMoved);
        }
        writer.batch(active);
    }
    writer.finish()
}

struct ViewWriter<'a> {
    rules: &'a Rules,
    view: View<'a>,
    ids: Ids,
}

impl<'a> ViewWriter<'a> {
    fn kind(&mut self, item: Option<&Item>, kind: RepairKind) {
        self.view.repairs.push(Repair { message: item.map(|item| item.position), kind });
    }

    fn say(
        &mut self,
        source: Option<&'a SharedItem>,
        role: Role,
        text: impl Into<Cow<'a, str>>,
    ) -> &mut ViewMessage<'a> {
        let text = text.into();
        self.view.messages.push(ViewMessage { role, text, calls: Vec::new(), answers: None, source });
        let last = self.view.messages.len() - 1;
        &mut self.view.messages[last]
    }

    fn batch(&mut self, batch: &'a Batch) {
        let pairing = Pairing::of(batch.items());
        for (index, item) in batch.items().iter().enumerate() {
            match item.role {
                _ if item.is_note() => {
                    let text = quoting::note_text(item.metadata.note_author(), &item.content);
                    self.say(Some(item), Role::User, text);
                }
                Role::User => {
                    let text = self.filled(item, NO_TEXT);
                    match item.metadata.author_name() {
                        Some(author) => self.say(Some(item), Role::User, quoting::said_by(author, text)),
                        None => self.say(Some(item), Role::User, text),
                    };
                }
                Role::System => self.system(item),
                Role::Assistant if pairing.answers(index).is_empty() => self.text(item),
                Role::Assistant => self.calls(batch.items(), index, pairing.answers(index)),
                Role::Tool if pairing.orphans().contains(&index) => {
                    let id = item.tool_call_id.clone().unwrap_or_default();
                    self.kind(Some(item), RepairKind::OrphanDropped { id });
                }
                // The result was already written directly after its call.
                Role::Tool => {}
            }
        }
    }

    /// The text of a message; if it is blank, these words.
    fn filled(&mut self, item: &'a Item, words: &'static str) -> &'a str {
        if !is_blank(&item.content) {
            return &item.content;
        }
        self.kind(Some(item), RepairKind::EmptyFilled);
        words
    }

    fn system(&mut self, item: &'a SharedItem) {
        if is_blank(&item.content) {
            return self.kind(Some(item), RepairKind::EmptyDropped);
        }
        let role = if self.rules.takes_system { Role::System } else { Role::User };
        if role == Role::User {
            self.kind(Some(item), RepairKind::SystemAsUser);
        }
        self.say(Some(item), role, &item.content);
    }

    fn text(&mut self, item: &'a SharedItem) {
        match is_blank(&item.content) {
            true => self.kind(Some(item), RepairKind::EmptyDropped),
            false => {
                self.say(Some(item), Role::Assistant, &item.content);
            }
        }
    }

    fn calls(&mut self, items: &'a [SharedItem], index: usize, answers: &[AnswerLocation]) {
        let item = &items[index];
        let calls = item.calls();
        // A message without a turn may have calls, results and text: its text comes after the
        // results.
        let has_results = answers.contains(&AnswerLocation::Beside);
        let text = if has_results || is_blank(&item.content) { "" } else { &item.content };
        let shown: Vec<SaidCall> = calls.iter().map(|call| self.call(item, call)).collect();
        let ids: Vec<String> = shown.iter().map(|call| call.id.clone()).collect();
        self.say(Some(item), Role::Assistant, text).calls = shown;
        // Results that arrived in order directly follow their calls, in the same order.
        let mut next = index + 1;
        for ((call, answer), id) in calls.iter().zip(answers).zip(ids) {
            let (source, text) = match answer {
                AnswerLocation::Message(at) => {
                    let expected = std::mem::replace(&mut next, at + 1);
                    self.result(items, *at, expected)
                }
                AnswerLocation::Beside => (item, call.result.unwrap_or_default()),
                AnswerLocation::Open => {
                    self.kind(Some(item), RepairKind::CallClosed { id: call.id.to_owned() });
                    (item, STOPPED)
                }
            };
            let text = if is_blank(text) { NO_RESULT } else { text };
            self.say(Some(source), Role::Tool, text).answers = Some(id);
        }
        if has_results {
            self.text(item);
        }
    }

    fn result(&mut self, items: &'a [SharedItem], at: usize, expected: usize) -> (&'a SharedItem, &'a str) {
        let result = &items[at];
        if at != expected {
            let id = result.tool_call_id.clone().unwrap_or_default();
            self.kind(Some(result), RepairKind::ResultMoved { id });
        }
        let words = if result.is_marked("stopped") { STOPPED } else { NO_RESULT };
        (result, self.filled(result, words))
    }

    fn call(&mut self, item: &Item, call: &ItemCall<'_>) -> SaidCall {
        let id = self.ids.next(call.id, self.rules.longest_id, self.rules.has_narrow_ids);
        if id != call.id {
            self.kind(Some(item), RepairKind::IdChanged { from: call.id.to_owned(), to: id.clone() });
        }
        let name = fitting(call.name, "unnamed", LONGEST_NAME, true);
        if name != call.name {
            self.kind(Some(item), RepairKind::NameChanged { from: call.name.to_owned(), to: name.clone() });
        }
        let arguments = match call.arguments.trim() {
            "" => "{}".to_owned(),
            text if is_object(text) => call.arguments.to_owned(),
            _ => {
                self.kind(Some(item), RepairKind::ArgumentsWrapped { id: call.id.to_owned() });
                json!({ "arguments": call.arguments }).to_string()
            }
        };
        SaidCall { id, name, arguments }
    }

    /// Ensures that the first message is the user's and the last is one that the model can answer.
    fn finish(mut self) -> View<'a> {
        let first = self.view.messages.iter().position(|said| said.role != Role::System);
        if let Some(first) = first.filter(|first| self.view.messages[*first].role == Role::Assistant) {
            let begin = ViewMessage {
                role: Role::User,
                text: BEGIN.into(),
                calls: Vec::new(),
                answers: None,
                source: None,
            };
            self.view.messages.insert(first, begin);
            self.view.repairs.insert(0, Repair { message: None, kind: RepairKind::BegunWithUser });
        }
        if !self.view.messages.last().is_some_and(|last| matches!(last.role, Role::User | Role::Tool)) {
            self.say(None, Role::User, GO_ON);
            self.kind(None, RepairKind::EndedWithUser);
        }
        self.view
    }
}

/// True if a text is only white space: providers refuse it like an empty one.
fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}

fn is_object(text: &str) -> bool {
    matches!(serde_json::from_str::<Value>(text), Ok(Value::Object(_)))
}
