// tidy: allow(names): the protocol is called so.
//! OpenAI's chat completions: the chunks of a stream, and the whole completion.
//!
//! Entry types: [`ChatCompletions`] for the answer, [`CompletionRequest`] for a client's request.
//! Source: <https://platform.openai.com/docs/api-reference/chat>.
//!
//! All steps of a turn form one message: its text joins their texts with blank lines. The protocol
//! has no place for reasoning and tool results, so they are left out. Calls are left out too,
//! because a client would execute them.
//!
//! Resume: none. An answer that restarts after a part of it was shown ends in an error.
//!
//! State: the text, for the whole completion. It grows with the answer, whose size owners limit.

pub(crate) mod request;

use bytes::Bytes;
use model::{MessageId, Timestamp};
use serde::Serialize;
use utoipa::ToSchema;

use crate::answer_parts::PartChange;
use crate::encoder_driver::{AnswerEnd, AnswerReport, EncoderDriver, ProtocolEncoder};
use crate::openai::ErrorObject;
use crate::usage::{self, Usage};
use crate::{AnswerEvent, Protocol, ProtocolOutput, StreamAction, StreamError, json, schemas, sse};

pub use crate::openai::{ApiError, error_body};
pub use request::CompletionRequest;

/// The fields of a completion that do not come from its answer.
#[derive(Debug, Clone)]
pub struct CompletionOptions {
    /// Id of the answer.
    pub message: MessageId,
    /// The client's name of the model.
    pub model: String,
    /// When the turn was opened.
    pub created_at: Timestamp,
    /// `stream_options.include_usage`.
    pub include_usage: bool,
}

/// The encoder of one answer.
#[derive(Debug)]
// tidy: allow(names): the protocol is called so.
pub struct ChatCompletions(EncoderDriver<CompletionEncoder>);

impl ChatCompletions {
    pub fn new(terms: CompletionOptions) -> Self {
        let id = format!("chatcmpl-{}", terms.message);
        Self(EncoderDriver::new(
            terms.message.clone(),
            CompletionEncoder { terms, id, text: String::new(), last_step: 0, ended: None },
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
    /// The step of the last text.
    last_step: u32,
    ended: Option<CompletionEnd>,
}

#[derive(Debug)]
enum CompletionEnd {
    Well { finish_reason: &'static str, usage: Option<Usage> },
    Failed(StreamError),
}

/// A chunk of a streamed completion.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CompletionChunk)]
pub struct Chunk<'a> {
    id: &'a str,
    #[schema(value_type = schemas::CompletionChunkSchema)]
    object: &'static str,
    created: i64,
    #[schema(value_type = schemas::AgentIdSchema)]
    model: &'a str,
    /// One choice, or none in the chunk with the usage.
    #[schema(max_items = 1)]
    choices: &'a [Choice<'a>],
    /// With `stream_options.include_usage`: null in all chunks but the last.
    // The outer option is whether the field is present.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<CompletionUsage>)]
    usage: Option<Option<CompletionUsage>>,
}

/// The choice of a chunk.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChunkChoice)]
struct Choice<'a> {
    index: u32,
    delta: CompletionDelta<'a>,
    #[schema(value_type = Option<Object>, required)]
    logprobs: Option<()>,
    #[schema(required)]
    finish_reason: Option<&'static str>,
}

/// The text of a chunk.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = ChunkDelta)]
struct CompletionDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    content: Option<&'a str>,
}

/// A whole completion.
#[derive(Debug, Serialize, ToSchema)]
pub struct Completion<'a> {
    id: &'a str,
    #[schema(value_type = schemas::CompletionSchema)]
    object: &'static str,
    /// Time of creation in seconds since 1970.
    created: i64,
    /// Name of the agent that answered.
    #[schema(value_type = schemas::AgentIdSchema)]
    model: &'a str,
    #[schema(value_type = Vec<CompletePart>, min_items = 1, max_items = 1)]
    choices: [CompletePart<'a>; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    usage: Option<CompletionUsage>,
}

/// The choice of a whole completion.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CompletionChoice)]
struct CompletePart<'a> {
    index: u32,
    message: CompletionMessage<'a>,
    #[schema(value_type = Option<Object>, required)]
    logprobs: Option<()>,
    finish_reason: &'static str,
}

/// The text of an answer. The agent's workflow has executed the tool calls, so none are shown.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CompletionMessage)]
struct CompletionMessage<'a> {
    #[schema(value_type = schemas::RoleSchema)]
    role: &'static str,
    content: &'a str,
    #[schema(value_type = Option<String>, required)]
    refusal: Option<()>,
}

/// The token usage of an answer.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[schema(as = CompletionTokens)]
struct CompletionUsage {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    /// Details of the input tokens, if the workflow has reported them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schemas::AnyObject>, nullable = false)]
    prompt_tokens_details: Option<PromptDetails>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schemas::AnyObject>, nullable = false)]
    completion_tokens_details: Option<CompletionDetails>,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct PromptDetails {
    cached_tokens: u64,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct CompletionDetails {
    reasoning_tokens: u64,
}

impl From<Usage> for CompletionUsage {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.input,
            completion_tokens: usage.output,
            total_tokens: usage.total,
            prompt_tokens_details: usage.cached.map(|cached_tokens| PromptDetails { cached_tokens }),
            completion_tokens_details: usage
                .reasoning
                .map(|reasoning_tokens| CompletionDetails { reasoning_tokens }),
        }
    }
}

impl ProtocolEncoder for CompletionEncoder {
    fn open(&mut self, out: &mut Vec<u8>) {
        self.delta(CompletionDelta { role: Some("assistant"), content: Some("") }, out);
    }

    fn change(&mut self, change: PartChange<'_>, out: &mut Vec<u8>) {
        match change {
            PartChange::SpanGrew(span, text) if !span.is_reasoning => {
                let is_later = std::mem::replace(&mut self.last_step, span.step) < span.step;
                if is_later && !self.text.is_empty() {
                    self.content(BETWEEN_STEPS, out);
                }
                self.content(text, out);
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

    fn end(&mut self, end: AnswerEnd<'_>, report: &AnswerReport<'_>, out: &mut Vec<u8>) {
        let finish_reason = match end {
            AnswerEnd::Failed(failure) => {
                sse::data(out, &error(failure));
                self.ended = Some(CompletionEnd::Failed(failure.clone()));
                return;
            }
            AnswerEnd::Stopped => "stop",
            AnswerEnd::Complete => reason(usage::finish_reason(report.metadata)),
        };
        let usage = report.usage;
        self.chunk(&[choice(CompletionDelta::default(), Some(finish_reason))], None, out);
        if let Some(usage) = usage.filter(|_| self.terms.include_usage) {
            self.chunk(&[], Some(usage.into()), out);
        }
        out.extend_from_slice(sse::DONE);
        self.ended = Some(CompletionEnd::Well { finish_reason, usage });
    }

    fn restart(&mut self, _attempt: u32, was_shown: bool, out: &mut Vec<u8>) -> StreamAction {
        self.text.clear();
        self.last_step = 0;
        if !was_shown {
            return StreamAction::Continue;
        }
        let text = "the answer started again, and what came of it before does not count";
        sse::data(out, &error(&StreamError::new("restarted", text, true)));
        StreamAction::Close
    }
}

/// Separates the texts of two steps.
const BETWEEN_STEPS: &str = "\n\n";

impl CompletionEncoder {
    fn content(&mut self, text: &str, out: &mut Vec<u8>) {
        self.text.push_str(text);
        self.delta(CompletionDelta { content: Some(text), ..CompletionDelta::default() }, out);
    }

    fn delta(&self, delta: CompletionDelta<'_>, out: &mut Vec<u8>) {
        self.chunk(&[choice(delta, None)], None, out);
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
        let message = CompletionMessage { role: "assistant", content: &self.text, refusal: None };
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

fn error(failure: &StreamError) -> ApiError<'_> {
    let error =
        ErrorObject { message: &failure.text, kind: "server_error", param: None, code: &failure.code };
    ApiError { error }
}

/// The protocol's finish reason. `tool_calls` is never used: it would make the client execute
/// tools.
fn reason(reason: &str) -> &'static str {
    match reason {
        "length" => "length",
        "content_filter" => "content_filter",
        _ => "stop",
    }
}

#[cfg(test)]
mod tests;
