// tidy: allow(names): the protocol is called so.
//! OpenAI's chat completions: the chunks of a stream, and the whole completion.
//!
//! Entry types: [`ChatCompletions`] for the answer, [`CompletionRequest`] for what a client asks. Source:
//! <https://platform.openai.com/docs/api-reference/chat>.
//!
//! All steps of a turn are one message here: its text is that of all steps, its calls are those of all steps. Reasoning and
//! the results of tools have no place in the protocol and are left out.
//!
//! Resume: none. An answer that starts again after something of it was shown ends in an error.
//!
//! State: the text and the calls, for the whole completion; so it grows with the answer, whose size owners bound.

pub(crate) mod request;

use std::sync::Arc;

use bytes::Bytes;
use model::{MessageId, Metadata, Timestamp};
use serde::Serialize;

use crate::answer_parts::{PartChange, ShownCall};
use crate::encoder_driver::{AnswerEnd, EncoderDriver, ProtocolEncoder};
use crate::openai::{ApiError, ErrorObject};
use crate::usage::{self, Usage};
use crate::{AnswerEvent, Protocol, ProtocolOutput, StreamAction, StreamError, json, sse};

pub use crate::openai::error_body;
pub use request::CompletionRequest;

/// What a completion says of itself.
#[derive(Debug, Clone)]
pub struct CompletionOptions {
    /// The answer.
    pub message: MessageId,
    /// What the client called the model.
    pub model: String,
    /// When the turn was opened.
    pub created_at: Timestamp,
    /// `stream_options.include_usage`.
    pub include_usage: bool,
    /// Whether the calls of tools are part of it.
    pub tool_calls: ToolCalls,
}

/// Whether a client is shown the tool calls of an answer. They were made here: a client that takes them for its own to make,
/// as the helpers of some libraries do, needs an answer without them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ToolCalls {
    /// As calls of functions.
    #[default]
    Shown,
    /// Not at all.
    Hidden,
}

/// The fold for one answer.
#[derive(Debug)]
// tidy: allow(names): the protocol is called so.
pub struct ChatCompletions(EncoderDriver<CompletionEncoder>);

impl ChatCompletions {
    /// The completion of an answer.
    pub fn new(terms: CompletionOptions) -> Self {
        let id = format!("chatcmpl-{}", terms.message);
        Self(EncoderDriver::new(
            terms.message.clone(),
            CompletionEncoder { terms, id, text: String::new(), calls: Vec::new(), ended: None },
        ))
    }

    /// The whole completion, for a request without `stream`; `None` before the end.
    ///
    /// # Errors
    /// The turn failed.
    pub fn object(&self) -> Option<Result<Bytes, &StreamError>> {
        self.0.words.object()
    }
}

impl Protocol for ChatCompletions {
    fn apply(&mut self, happening: AnswerEvent<'_>) -> ProtocolOutput {
        self.0.apply(happening)
    }
}

#[derive(Debug)]
struct CompletionEncoder {
    terms: CompletionOptions,
    id: String,
    text: String,
    calls: Vec<WholeCall>,
    ended: Option<CompletionEnd>,
}

#[derive(Debug)]
enum CompletionEnd {
    Well { finish_reason: &'static str, usage: Option<Usage> },
    Failed(StreamError),
}

#[derive(Debug)]
struct WholeCall {
    call: Arc<ShownCall>,
    arguments: String,
}

#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: i64,
    model: &'a str,
    choices: &'a [Choice<'a>],
    /// Outer: whether the field is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<CompletionUsage>>,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u32,
    delta: CompletionDelta<'a>,
    logprobs: Option<()>,
    finish_reason: Option<&'static str>,
}

#[derive(Default, Serialize)]
struct CompletionDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[ToolCall<'a>; 1]>,
}

#[derive(Serialize)]
struct ToolCall<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    arguments: &'a str,
}

#[derive(Serialize)]
struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: i64,
    model: &'a str,
    choices: [CompletePart<'a>; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<CompletionUsage>,
}

#[derive(Serialize)]
struct CompletePart<'a> {
    index: u32,
    message: CompletionMessage<'a>,
    logprobs: Option<()>,
    finish_reason: &'static str,
}

#[derive(Serialize)]
struct CompletionMessage<'a> {
    role: &'static str,
    content: &'a str,
    refusal: Option<()>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall<'a>>,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct CompletionUsage {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
}

impl From<Usage> for CompletionUsage {
    fn from(usage: Usage) -> Self {
        Self { prompt_tokens: usage.input, completion_tokens: usage.output, total_tokens: usage.total }
    }
}

impl ProtocolEncoder for CompletionEncoder {
    fn open(&mut self, out: &mut Vec<u8>) {
        self.delta(CompletionDelta { role: Some("assistant"), content: Some(""), tool_calls: None }, out);
    }

    fn change(&mut self, change: PartChange<'_>, out: &mut Vec<u8>) {
        let shows_calls = self.terms.tool_calls == ToolCalls::Shown;
        match change {
            PartChange::SpanGrew(span, text) if !span.is_reasoning => {
                self.text.push_str(text);
                self.delta(CompletionDelta { content: Some(text), ..CompletionDelta::default() }, out);
            }
            PartChange::CallBegan(call) if shows_calls => {
                let function = Function { name: Some(&call.tool), arguments: "" };
                let (index, id) = (Some(call.index), Some(&*call.id));
                self.call(ToolCall { index, id, kind: Some("function"), function }, out);
                self.calls.push(WholeCall { call, arguments: String::new() });
            }
            PartChange::CallGrew(call, text) if shows_calls => {
                if let Some(whole) = self.calls.get_mut(call.index as usize) {
                    whole.arguments.push_str(text);
                }
                let function = Function { name: None, arguments: text };
                self.call(ToolCall { index: Some(call.index), id: None, kind: None, function }, out);
            }
            PartChange::StepBegan
            | PartChange::StepEnded
            | PartChange::SpanBegan(_)
            | PartChange::SpanGrew(..)
            | PartChange::SpanEnded(_)
            | PartChange::CallBegan(_)
            | PartChange::CallGrew(..)
            | PartChange::CallEnded(..)
            | PartChange::ResultBegan(..)
            | PartChange::ResultEnded(..)
            | PartChange::Unanswered(_)
            | PartChange::Noted(_) => {}
        }
    }

    fn end(&mut self, end: AnswerEnd<'_>, metadata: &Metadata, out: &mut Vec<u8>) {
        let finish_reason = match end {
            AnswerEnd::Failed(failure) => {
                sse::data(out, &error(failure));
                self.ended = Some(CompletionEnd::Failed(failure.clone()));
                return;
            }
            AnswerEnd::Stopped => "stop",
            AnswerEnd::Complete => reason(usage::finish_reason(metadata)),
        };
        let usage = Usage::of(metadata);
        self.chunk(&[choice(CompletionDelta::default(), Some(finish_reason))], None, out);
        if let Some(usage) = usage.filter(|_| self.terms.include_usage) {
            self.chunk(&[], Some(usage.into()), out);
        }
        out.extend_from_slice(sse::DONE);
        self.ended = Some(CompletionEnd::Well { finish_reason, usage });
    }

    fn restart(&mut self, _attempt: u32, was_shown: bool, out: &mut Vec<u8>) -> StreamAction {
        (self.text, self.calls) = (String::new(), Vec::new());
        if !was_shown {
            return StreamAction::Continue;
        }
        let text = "the answer started again, and what came of it before does not count";
        sse::data(out, &error(&StreamError::new("restarted", text, true)));
        StreamAction::Close
    }
}

impl CompletionEncoder {
    fn delta(&self, delta: CompletionDelta<'_>, out: &mut Vec<u8>) {
        self.chunk(&[choice(delta, None)], None, out);
    }

    fn call(&self, call: ToolCall<'_>, out: &mut Vec<u8>) {
        self.delta(CompletionDelta { tool_calls: Some([call]), ..CompletionDelta::default() }, out);
    }

    /// With `include_usage` every chunk has the field; it is null in all but the last.
    fn chunk(&self, choices: &[Choice<'_>], usage: Option<CompletionUsage>, out: &mut Vec<u8>) {
        let chunk = Chunk {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.terms.created_at.0.div_euclid(1_000),
            model: &self.terms.model,
            choices,
            usage: self.terms.include_usage.then_some(usage),
        };
        sse::data(out, &chunk);
    }

    fn object(&self) -> Option<Result<Bytes, &StreamError>> {
        let (finish_reason, usage) = match self.ended.as_ref()? {
            CompletionEnd::Well { finish_reason, usage } => (*finish_reason, *usage),
            CompletionEnd::Failed(failure) => return Some(Err(failure)),
        };
        let message = CompletionMessage {
            role: "assistant",
            content: &self.text,
            refusal: None,
            tool_calls: self.calls.iter().map(whole_call).collect(),
        };
        let completion = Completion {
            id: &self.id,
            object: "chat.completion",
            created: self.terms.created_at.0.div_euclid(1_000),
            model: &self.terms.model,
            choices: [CompletePart { index: 0, message, logprobs: None, finish_reason }],
            usage: usage.map(CompletionUsage::from),
        };
        let mut out = Vec::new();
        json::append(&mut out, &completion);
        Some(Ok(out.into()))
    }
}

fn choice<'a>(delta: CompletionDelta<'a>, finish_reason: Option<&'static str>) -> Choice<'a> {
    Choice { index: 0, delta, logprobs: None, finish_reason }
}

fn whole_call(whole: &WholeCall) -> ToolCall<'_> {
    let function = Function { name: Some(&whole.call.tool), arguments: &whole.arguments };
    ToolCall { index: None, id: Some(&whole.call.id), kind: Some("function"), function }
}

fn error(failure: &StreamError) -> ApiError<'_> {
    let error =
        ErrorObject { message: &failure.text, kind: "server_error", param: None, code: &failure.code };
    ApiError { error }
}

/// The protocol's names of reasons. `tool_calls` would make the client call tools that were called here.
fn reason(reason: &str) -> &'static str {
    match reason {
        "length" => "length",
        "content_filter" => "content_filter",
        _ => "stop",
    }
}

#[cfg(test)]
mod tests;
