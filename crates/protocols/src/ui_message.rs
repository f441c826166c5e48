//! The UI message stream of Vercel's AI SDK, versions 5 to 7. Each turn is one UI message, with a
//! step for each model call and a dynamic tool part for each tool call.
//!
//! Entry types: [`UiMessage`] for the answer, [`UiMessageRequest`] for a client's request. Source:
//! <https://ai-sdk.dev/docs/ai-sdk-ui/stream-protocol>. Only types and fields known to version
//! 5.0.100 are written: a client ends the stream when it meets an unknown one.
//!
//! Resume: the protocol has no cursor. A client that reconnects reads the whole message again from
//! its first event, which makes it discard its part.
//!
//! State: the arguments of unfinished calls, the results of a step, and the ids of the calls. Text
//! is not kept.

mod history;
pub(crate) mod request;

use model::{MessageId, Metadata};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::answer_parts::{PartChange, arguments};
use crate::encoder_driver::{AnswerEnd, AnswerReport, EncoderDriver, ProtocolEncoder};
use crate::usage::finish_reason;
use crate::{AnswerEvent, Protocol, ProtocolOutput, StreamAction, schemas, sse};

pub use history::{CLIENT_MESSAGE_ID, HistoryMessage};
pub use request::{Regenerated, UiMessageRequest, error_body};

/// The header by which clients and proxies recognise the protocol.
pub const HEADERS: &[(&str, &str)] = &[("x-vercel-ai-ui-message-stream", "v1")];

/// The encoder of one answer.
#[derive(Debug)]
pub struct UiMessage(EncoderDriver<UiMessageEncoder>);

impl UiMessage {
    /// The stream of the answer `message`, whose id becomes that of the UI message.
    pub fn new(message: MessageId) -> Self {
        Self(EncoderDriver::new(message.clone(), UiMessageEncoder { message, refused: Vec::new() }))
    }
}

impl Protocol for UiMessage {
    fn apply(&mut self, happening: AnswerEvent<'_>) -> ProtocolOutput {
        self.0.apply(happening)
    }

    fn headers(&self) -> &'static [(&'static str, &'static str)] {
        HEADERS
    }
}

#[derive(Debug)]
struct UiMessageEncoder {
    message: MessageId,
    /// Calls of the step whose arguments were shown as an error.
    refused: Vec<u32>,
}

/// A part of a UI message.
// Each part of a call is marked as dynamic: clients have no type for our tools and must not call
// them.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "kebab-case")]
#[schema(as = UiPart)]
pub enum UiChunk<'a> {
    #[serde(rename_all = "camelCase")]
    Start {
        #[schema(value_type = String)]
        message_id: &'a MessageId,
    },
    StartStep,
    FinishStep,
    TextStart {
        id: String,
    },
    TextDelta {
        id: String,
        delta: &'a str,
    },
    TextEnd {
        id: String,
    },
    ReasoningStart {
        id: String,
    },
    ReasoningDelta {
        id: String,
        delta: &'a str,
    },
    ReasoningEnd {
        id: String,
    },
    #[serde(rename_all = "camelCase")]
    ToolInputStart {
        tool_call_id: &'a str,
        tool_name: &'a str,
        provider_executed: bool,
        dynamic: bool,
    },
    #[serde(rename_all = "camelCase")]
    ToolInputDelta {
        tool_call_id: &'a str,
        input_text_delta: &'a str,
    },
    #[serde(rename_all = "camelCase")]
    ToolInputAvailable {
        tool_call_id: &'a str,
        tool_name: &'a str,
        input: Value,
        provider_executed: bool,
        dynamic: bool,
    },
    #[serde(rename_all = "camelCase")]
    ToolInputError {
        tool_call_id: &'a str,
        tool_name: &'a str,
        input: &'a str,
        error_text: String,
        provider_executed: bool,
        dynamic: bool,
    },
    #[serde(rename_all = "camelCase")]
    ToolOutputAvailable {
        tool_call_id: &'a str,
        output: &'a str,
        provider_executed: bool,
        dynamic: bool,
    },
    #[serde(rename_all = "camelCase")]
    ToolOutputError {
        tool_call_id: &'a str,
        error_text: &'a str,
        provider_executed: bool,
        dynamic: bool,
    },
    #[serde(rename_all = "camelCase")]
    MessageMetadata {
        #[schema(value_type = schemas::AnyObject)]
        message_metadata: &'a Metadata,
    },
    #[serde(rename_all = "camelCase")]
    Finish {
        finish_reason: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(value_type = schemas::AnyObject, required = false)]
        message_metadata: Option<&'a Metadata>,
    },
    Abort,
    #[serde(rename_all = "camelCase")]
    Error {
        error_text: String,
    },
}

impl ProtocolEncoder for UiMessageEncoder {
    fn open(&mut self, out: &mut Vec<u8>) {
        sse::data(out, &UiChunk::Start { message_id: &self.message });
    }

    fn change(&mut self, change: PartChange<'_>, out: &mut Vec<u8>) {
        match change {
            PartChange::StepBegan => {
                self.refused.clear();
                sse::data(out, &UiChunk::StartStep);
            }
            PartChange::StepEnded => sse::data(out, &UiChunk::FinishStep),
            PartChange::SpanBegan(span) => {
                let id = part_id(span.part);
                let part = if span.is_reasoning {
                    UiChunk::ReasoningStart { id }
                } else {
                    UiChunk::TextStart { id }
                };
                sse::data(out, &part);
            }
            PartChange::SpanGrew(span, delta) => {
                let id = part_id(span.part);
                let part = match span.is_reasoning {
                    true => UiChunk::ReasoningDelta { id, delta },
                    false => UiChunk::TextDelta { id, delta },
                };
                sse::data(out, &part);
            }
            PartChange::SpanEnded(span) => {
                let id = part_id(span.part);
                let part =
                    if span.is_reasoning { UiChunk::ReasoningEnd { id } } else { UiChunk::TextEnd { id } };
                sse::data(out, &part);
            }
            PartChange::CallBegan(call) => {
                let part = UiChunk::ToolInputStart {
                    tool_call_id: &call.id,
                    tool_name: &call.tool,
                    provider_executed: true,
                    dynamic: true,
                };
                sse::data(out, &part);
            }
            PartChange::CallGrew(call, input_text_delta) => {
                sse::data(out, &UiChunk::ToolInputDelta { tool_call_id: &call.id, input_text_delta });
            }
            PartChange::CallEnded(call, text) => {
                let part = input(&call.id, &call.tool, &text);
                if matches!(part, UiChunk::ToolInputError { .. }) {
                    self.refused.push(call.part);
                }
                sse::data(out, &part);
            }
            // The first piece is shown at once, and usually is the whole result. If more follows,
            // the whole result replaces it, once. The first piece cannot be marked as
            // `preliminary`: the first clients of version 5 refuse that.
            PartChange::ResultBegan(call, piece) => {
                sse::data(out, &result(&call.id, piece.text, piece.is_error));
            }
            PartChange::ResultEnded(call, whole) if whole.pieces > 1 => {
                sse::data(out, &result(&call.id, &whole.text, whole.is_error));
            }
            PartChange::ResultEnded(..) => {}
            // This call has its error already.
            PartChange::Unanswered(call) if self.refused.contains(&call.part) => {}
            PartChange::Unanswered(call) => sse::data(out, &result(&call.id, NO_RESULT, true)),
            PartChange::Noted(message_metadata) => {
                sse::data(out, &UiChunk::MessageMetadata { message_metadata })
            }
        }
    }

    fn end(&mut self, end: AnswerEnd<'_>, report: &AnswerReport<'_>, out: &mut Vec<u8>) {
        let metadata = report.metadata;
        let part = match end {
            AnswerEnd::Complete => UiChunk::Finish {
                finish_reason: reason(finish_reason(metadata)),
                message_metadata: Some(metadata).filter(|metadata| !metadata.is_empty()),
            },
            AnswerEnd::Stopped => UiChunk::Abort,
            AnswerEnd::Failed(failure) => {
                UiChunk::Error { error_text: format!("{}: {}", failure.code, failure.text) }
            }
        };
        sse::data(out, &part);
        if !matches!(end, AnswerEnd::Failed(_)) {
            out.extend_from_slice(sse::DONE);
        }
    }

    fn restart(&mut self, _attempt: u32, was_shown: bool, _out: &mut Vec<u8>) -> StreamAction {
        if was_shown { StreamAction::Abort } else { StreamAction::Continue }
    }
}

/// Text shown for a call without a result.
const NO_RESULT: &str = "the answer ended before a result came";

/// Ids of parts must be unique in their message only.
fn part_id(part: u32) -> String {
    format!("p{part}")
}

fn input<'a>(tool_call_id: &'a str, tool_name: &'a str, text: &'a str) -> UiChunk<'a> {
    match arguments::parse(text) {
        Ok(input) => UiChunk::ToolInputAvailable {
            tool_call_id,
            tool_name,
            input,
            provider_executed: true,
            dynamic: true,
        },
        Err(error) => {
            let error_text = format!("the arguments are no JSON: {error}");
            UiChunk::ToolInputError {
                tool_call_id,
                tool_name,
                input: text,
                error_text,
                provider_executed: true,
                dynamic: true,
            }
        }
    }
}

fn result<'a>(tool_call_id: &'a str, text: &'a str, is_error: bool) -> UiChunk<'a> {
    match is_error {
        true => UiChunk::ToolOutputError {
            tool_call_id,
            error_text: text,
            provider_executed: true,
            dynamic: true,
        },
        false => UiChunk::ToolOutputAvailable {
            tool_call_id,
            output: text,
            provider_executed: true,
            dynamic: true,
        },
    }
}

/// The protocol's finish reason; it refuses others.
fn reason(reason: &str) -> &'static str {
    match reason {
        "stop" => "stop",
        "length" => "length",
        "content_filter" => "content-filter",
        "tool_calls" => "tool-calls",
        "error" => "error",
        _ => "other",
    }
}

#[cfg(test)]
mod tests;
