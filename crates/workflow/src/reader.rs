//! Reads the response of a model's endpoint: a fold over bytes whose result does not depend on
//! where they are cut.
//!
//! Entry: [`Reader`]. `sse` finds events, `json` parses and repairs them, `completions` interprets
//! events of chat completions, `calls` assembles tool calls, and this file decides how the answer
//! ended. `deploy/workflow/README.md` lists the rules in a table.
//!
//! Invariants: an answer is complete or a named failure, and never silently empty. Whatever is
//! dropped is noted as a [`Deviation`]. No I/O, no clock.

mod anthropic;
mod arguments;
mod calls;
mod completions;
mod content;
mod deviations;
mod finish;
mod google;
mod json;
mod responses;
mod sse;
mod units;

use std::collections::HashSet;

use model::TokenCounts;
use serde_json::Value;

use crate::endpoint_errors;
use crate::engine_event::{CallName, Failure};
use crate::interface::Interface;

pub(crate) use arguments::object as arguments_object;
pub(crate) use calls::ModelToolCall;
pub(crate) use deviations::{Deviation, Deviations};
pub(crate) use finish::Finish;

use calls::Calls;
use completions::Said;
use content::ContentPiece;
use sse::{Event, EventFold};
use units::Joiner;

/// A part of an answer that clients see, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    Text(String),
    Reasoning(String),
    /// A piece of a call's arguments; the first one may be empty.
    Call(CallName, String),
}

/// The result of one model call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ModelReply {
    pub(crate) text: String,
    /// Reasoning that the endpoint needs back during the turn.
    pub(crate) reasoning_content: String,
    pub(crate) calls: Vec<ModelToolCall>,
    pub(crate) finish: Option<Finish>,
    pub(crate) model: Option<String>,
    pub(crate) usage: TokenCounts,
    pub(crate) deviations: Deviations,
    /// Data that the provider needs back with this answer, in its own format.
    pub(crate) native: Vec<Value>,
    /// Text or reasoning has arrived.
    pub(crate) has_begun: bool,
}

impl ModelReply {
    /// Why the answer ended, if the endpoint gave a reason.
    pub(crate) fn finish_reason(&self) -> &'static str {
        self.finish.unwrap_or(Finish::Stop).name()
    }

    /// The answer is incomplete.
    pub(crate) fn is_cut(&self) -> bool {
        self.finish.is_some_and(Finish::is_cut)
    }
}

/// Reads one response incrementally.
pub(crate) struct Reader<'a> {
    events: EventFold,
    provider: Provider,
    text: Joiner,
    reasoning: Joiner,
    /// All reasoning so far, to recognise a whole message that repeats it.
    reasoned: String,
    calls: Calls<'a>,
    reply: ModelReply,
    failure: Option<Failure>,
    /// `[DONE]` has arrived.
    is_done: bool,
    is_whole: bool,
    may_be_empty: bool,
}

/// State kept between the events of an interface.
enum Provider {
    ChatCompletions(completions::ChosenChoice),
    Responses(responses::ResponsesState),
    Anthropic(anthropic::AnthropicState),
    Google(google::GoogleState),
}

impl Provider {
    fn read(&mut self, value: &Value, deviations: &mut Deviations) -> Said {
        match self {
            Self::ChatCompletions(chosen) => completions::read(value, chosen, deviations),
            Self::Responses(state) => responses::read(value, state, deviations),
            Self::Anthropic(state) => anthropic::read(value, state, deviations),
            Self::Google(state) => google::read(value, state, deviations),
        }
    }

    fn native(self) -> Vec<Value> {
        match self {
            Self::ChatCompletions(_) => Vec::new(),
            Self::Responses(state) => state.items(),
            Self::Anthropic(state) => state.blocks(),
            Self::Google(state) => state.parts(),
        }
    }
}

impl From<Interface> for Provider {
    fn from(interface: Interface) -> Self {
        match interface {
            Interface::ChatCompletions => Self::ChatCompletions(completions::ChosenChoice::default()),
            Interface::Responses => Self::Responses(responses::ResponsesState::default()),
            Interface::Anthropic => Self::Anthropic(anthropic::AnthropicState::default()),
            Interface::Google => Self::Google(google::GoogleState::default()),
        }
    }
}

/// The end of a response.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The last parts for clients.
    pub(crate) parts: Vec<Part>,
    pub(crate) reply: ModelReply,
    pub(crate) outcome: Result<(), Failure>,
}

impl<'a> Reader<'a> {
    /// `tools`: names of the tools offered to the model. `known_ids`: ids of calls that the turn
    /// has already. `may_be_empty`: the model has called tools, so an empty answer is valid.
    pub(crate) fn new(
        interface: Interface,
        step: u32,
        known_ids: &'a mut HashSet<String>,
        tools: &'a [String],
        may_be_empty: bool,
    ) -> Self {
        Self {
            events: EventFold::default(),
            provider: interface.into(),
            text: Joiner::default(),
            reasoning: Joiner::default(),
            reasoned: String::new(),
            calls: Calls::new(step, known_ids, tools),
            reply: ModelReply::default(),
            failure: None,
            is_done: false,
            is_whole: false,
            may_be_empty,
        }
    }

    /// Takes the next bytes and returns the parts that clients may see now.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) -> Vec<Part> {
        let mut parts = Vec::new();
        while !self.is_done
            && let Some(event) = self.events.next(&mut bytes, &mut self.reply.deviations)
        {
            self.take(&event, &mut parts);
        }
        parts
    }

    /// Nothing more needs to be read.
    pub(crate) fn is_done(&self) -> bool {
        self.is_done
    }

    /// The answer has ended or failed; only counts may follow.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_done || self.is_whole || self.failure.is_some() || self.reply.finish.is_some()
    }

    /// Ends the response. `cut`: why its bytes ended early, if they did.
    pub(crate) fn end(mut self, cut: Option<Failure>) -> Ended {
        let mut parts = Vec::new();
        if !self.is_done {
            let left = self.events.end(&mut self.reply.deviations);
            left.iter().for_each(|event| self.take(event, &mut parts));
        }
        let (text, reasoning) = (self.text.end(), self.reasoning.end());
        self.say_reasoning(reasoning.to_owned(), false, &mut parts);
        self.say_text(text.to_owned(), &mut parts);
        let has_lost = self.text.has_lost || self.reasoning.has_lost;
        self.reply.deviations.note_if(has_lost, Deviation::InvalidText);
        let outcome = self.verdict(cut);
        let (is_cut, had_calls) = (self.reply.is_cut() || outcome.is_err(), !self.calls.is_empty());
        let (shown, calls) = self.calls.finish(is_cut, &mut self.reply.deviations);
        parts.extend(shown.into_iter().map(|(name, more)| Part::Call(name, more)));
        self.reply.native = self.provider.native();
        let outcome = outcome.and(calls).and_then(|calls| {
            self.reply.calls = calls;
            check_content(&self.reply, had_calls, self.may_be_empty)
        });
        Ended { parts, reply: self.reply, outcome }
    }

    /// Whether the response is complete.
    fn verdict(&mut self, cut: Option<Failure>) -> Result<(), Failure> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let deviations = &mut self.reply.deviations;
        match self.reply.finish {
            Some(Finish::Failed) => {
                let text = "the model's endpoint ended the answer with a finish reason that is an error";
                Err(Failure::transient("upstream_error", text))
            }
            Some(_) => {
                deviations.note_if(!self.is_done && !self.is_whole, Deviation::NoEnd);
                Ok(())
            }
            None if self.is_done || self.is_whole => {
                deviations.note(Deviation::NoFinishReason);
                Ok(())
            }
            None => Err(cut.unwrap_or_else(|| {
                let is_unread = deviations.has(Deviation::NotJson) && !self.reply.has_begun;
                if is_unread { unreadable() } else { endpoint_errors::cut() }
            })),
        }
    }

    fn take(&mut self, event: &Event, parts: &mut Vec<Part>) {
        let data = event.data.trim_ascii();
        // A block without data, such as a lone `event:` or `retry:`.
        if self.is_done || data.is_empty() {
            return;
        }
        if is_end(data) {
            self.is_done = true;
            return;
        }
        // `[DONE]` without a line of its own.
        let before = data.strip_suffix(b"[DONE]").map(<[u8]>::trim_ascii_end);
        if let Some(before) = before.filter(|before| before.ends_with(b"}")) {
            self.reply.deviations.note(Deviation::NoEmptyLine);
            let event = Event { name: event.name.clone(), data: before.to_vec(), is_open: false };
            self.take(&event, parts);
            self.is_done = true;
            return;
        }
        // This comes before the repair, which would read `[ERROR]` as a list.
        if begins_with_error(data) && !self.is_ending() {
            return self.take_unreadable(event, data);
        }
        let unclosed = || json::read_unclosed(data).filter(|_| !event.is_open).map(|value| (value, true));
        let several = || json::read_several(data).map(|values| (Value::Array(values), true));
        let Some((value, is_mended)) = json::read(data).or_else(unclosed).or_else(several) else {
            return self.take_unreadable(event, data);
        };
        self.reply.deviations.note_if(is_mended, Deviation::InvalidJson);
        self.take_value(event, value, parts);
    }

    /// A list is read as events, and a string as the data of one.
    fn take_value(&mut self, event: &Event, value: Value, parts: &mut Vec<Part>) {
        match value {
            Value::Object(_) => self.take_object(&event.name, &value, parts),
            Value::Array(list) if !list.is_empty() => {
                for value in list {
                    if !self.is_done {
                        self.take_value(event, value, parts);
                    }
                }
            }
            Value::String(text) if !text.trim().is_empty() => {
                let data = units::clean(&text).into_bytes();
                self.take(&Event { name: event.name.clone(), data, is_open: event.is_open }, parts);
            }
            other => self.take_unreadable(event, other.to_string().as_bytes()),
        }
    }

    fn take_object(&mut self, name: &str, value: &Value, parts: &mut Vec<Part>) {
        if self.failure.is_some() {
            // The response has failed: only counts are read.
            self.reply.usage = self.reply.usage.max(completions::usage(value));
            return;
        }
        let mut said = self.provider.read(value, &mut self.reply.deviations);
        said.error = completions::error(name, value).map(units::cleaned);
        // Some endpoints name the last event instead of sending `[DONE]`.
        said.is_last |= matches!(name, "done" | "end" | "complete");
        self.take_said(said, parts);
    }

    fn take_unreadable(&mut self, event: &Event, data: &[u8]) {
        let is_json_like = data.starts_with(b"{") || data.starts_with(b"[") && data != b"[]";
        if event.name == "error" || (begins_with_error(data) && !self.is_ending()) {
            let text = String::from_utf8_lossy(data).into_owned();
            self.fail(endpoint_errors::of_object(&Value::String(text)));
        } else if self.is_ending() || !is_json_like {
            self.reply.deviations.note(Deviation::NotJson);
        } else if event.is_open {
            self.fail(endpoint_errors::cut());
        } else {
            self.fail(unreadable());
        }
    }

    fn take_said(&mut self, said: Said, parts: &mut Vec<Part>) {
        self.reply.usage = self.reply.usage.max(said.usage);
        if said.model.is_some() {
            self.reply.model = said.model;
        }
        said.pieces.into_iter().for_each(|piece| self.take_piece(piece, parts));
        if let Some(message) = said.message {
            self.take_message(message, said.is_piece, parts);
        }
        if let Some(error) = &said.error {
            self.fail(endpoint_errors::of_object(error));
        }
        self.reply.finish = self.reply.finish.max(said.finish);
        self.is_whole |= said.is_whole;
        self.is_done |= said.is_last;
    }

    fn take_piece(&mut self, piece: ContentPiece, parts: &mut Vec<Part>) {
        self.reply.has_begun |= !matches!(piece, ContentPiece::Calls(_));
        match piece {
            ContentPiece::Text(text) => {
                let text = self.text.push(&text);
                self.say_text(text, parts);
            }
            ContentPiece::Reasoning { text, goes_back } => {
                let text = self.reasoning.push(&text);
                self.say_reasoning(text, goes_back, parts);
            }
            ContentPiece::Calls(calls) => {
                let shown = self.calls.add(calls, &mut self.reply.deviations);
                self.reply.has_begun |= !self.calls.is_empty();
                parts.extend(shown.into_iter().map(|(name, more)| Part::Call(name, more)));
            }
        }
    }

    /// Adds what a whole message has beyond the pieces before it. A message that may be a piece
    /// (`is_piece`) adds everything that does not repeat earlier text.
    fn take_message(&mut self, message: Vec<ContentPiece>, is_piece: bool, parts: &mut Vec<Part>) {
        let (mut text, mut reasoning, mut goes_back) = (String::new(), String::new(), false);
        let has_calls = !self.calls.is_empty();
        let mut calls = Vec::new();
        for piece in message {
            match piece {
                ContentPiece::Text(more) => text.push_str(&more),
                ContentPiece::Reasoning { text: more, goes_back: goes } => {
                    reasoning.push_str(&more);
                    goes_back |= goes;
                }
                ContentPiece::Calls(more) => calls.extend(more),
            }
        }
        let deviations = &mut self.reply.deviations;
        let mut rest = |whole: String, said: &str| match whole.strip_prefix(said) {
            Some(rest) => rest.to_owned(),
            None if is_piece => whole,
            None => {
                deviations.note_if(!whole.is_empty(), Deviation::Message);
                String::new()
            }
        };
        let (text, reasoning) = (rest(text, &self.reply.text), rest(reasoning, &self.reasoned));
        if !reasoning.is_empty() {
            self.take_piece(ContentPiece::Reasoning { text: reasoning, goes_back }, parts);
        }
        if !text.is_empty() {
            self.take_piece(ContentPiece::Text(text), parts);
        }
        if has_calls && !is_piece {
            self.reply.deviations.note_if(!calls.is_empty(), Deviation::Repetition);
        } else if !calls.is_empty() {
            self.take_piece(ContentPiece::Calls(calls), parts);
        }
    }

    fn say_text(&mut self, text: String, parts: &mut Vec<Part>) {
        if !text.is_empty() {
            // Some endpoints send blanks between the pieces of calls.
            self.show_calls(text.trim().is_empty(), parts);
            self.reply.text.push_str(&text);
            parts.push(Part::Text(text));
        }
    }

    fn say_reasoning(&mut self, text: String, goes_back: bool, parts: &mut Vec<Part>) {
        if !text.is_empty() {
            self.show_calls(false, parts);
            if goes_back {
                self.reply.reasoning_content.push_str(&text);
            }
            self.reasoned.push_str(&text);
            parts.push(Part::Reasoning(text));
        }
    }

    /// Output that follows a call is shown after the call.
    fn show_calls(&mut self, is_blank: bool, parts: &mut Vec<Part>) {
        let shown = self.calls.pause(is_blank);
        parts.extend(shown.into_iter().map(|(name, more)| Part::Call(name, more)));
    }

    fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }
}

/// Checks that an answer has the content that its finish reason implies.
fn check_content(reply: &ModelReply, had_calls: bool, may_be_empty: bool) -> Result<(), Failure> {
    let is_cut = reply.is_cut();
    if reply.finish == Some(Finish::ToolCalls) && !had_calls {
        let text = "the model's endpoint announced tool calls, and none came";
        return Err(Failure::transient("missing_calls", text));
    }
    let is_empty = reply.text.trim().is_empty() && reply.calls.is_empty();
    if is_empty && !is_cut && !(may_be_empty && reply.finish == Some(Finish::Stop)) {
        return Err(Failure::transient("empty_answer", "the model's endpoint ended without an answer"));
    }
    Ok(())
}

/// Matches `error: out of memory`, `[ERROR] …`.
fn begins_with_error(data: &[u8]) -> bool {
    let text = data.strip_prefix(b"[").unwrap_or(data).trim_ascii_start();
    text.get(..5).is_some_and(|word| word.eq_ignore_ascii_case(b"error"))
}

/// `[DONE]` and its variants.
fn is_end(data: &[u8]) -> bool {
    data.len() < 12 && data.trim_ascii().eq_ignore_ascii_case(b"[DONE]")
        || data.eq_ignore_ascii_case(b"\"[DONE]\"")
        || data.eq_ignore_ascii_case(b"DONE")
}

fn unreadable() -> Failure {
    Failure::transient("bad_stream", "the model's endpoint sent something that cannot be read")
}

#[cfg(test)]
mod tests;
