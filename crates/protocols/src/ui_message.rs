//! The UI message stream of Vercel's AI SDK, versions 5 to 7: one UI message for a turn, with a step for each call of the
//! model and a dynamic tool part for each call of a tool.
//!
//! Entry types: [`UiMessage`] for the answer, [`Request`] for what a client asks. Source:
//! <https://ai-sdk.dev/docs/ai-sdk-ui/stream-protocol>. Only types and fields that version 5.0.100 knows are written: a client
//! ends the stream over one that it does not.
//!
//! Resume: the protocol has no cursor. A client that comes back reads the whole message again from its first event,
//! which makes it forget what it had.
//!
//! State: the arguments of calls that are still being written, the results of a step, and the ids of the calls. Text is not
//! kept.

mod history;
pub(crate) mod request;

use model::{MessageId, Metadata};
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::answer_parts::{PartChange, arguments};
use crate::encoder_driver::{EncoderDriver, End, ProtocolEncoder};
use crate::usage::finish_reason;
use crate::{AnswerEvent, Output, Protocol, StreamAction, sse};

pub use history::HistoryMessage;
pub use request::{Regenerated, Request, error_body};

/// The header that tells clients and proxies which stream it is.
pub const HEADERS: &[(&str, &str)] = &[("x-vercel-ai-ui-message-stream", "v1")];

/// The fold for one answer.
#[derive(Debug)]
pub struct UiMessage(EncoderDriver<Writer>);

impl UiMessage {
    /// The stream of the answer `message`, which becomes the id of the UI message.
    pub fn new(message: MessageId) -> Self {
        Self(EncoderDriver::new(message.clone(), Writer { message, refused: Vec::new() }))
    }
}

impl Protocol for UiMessage {
    fn apply(&mut self, happening: AnswerEvent<'_>) -> Output {
        self.0.apply(happening)
    }

    fn headers(&self) -> &'static [(&'static str, &'static str)] {
        HEADERS
    }
}

#[derive(Debug)]
struct Writer {
    message: MessageId,
    /// Calls of the step whose arguments were shown as an error.
    refused: Vec<u32>,
}

/// The chunks of the protocol, as far as they are used.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "kebab-case", rename_all_fields = "camelCase")]
enum Part<'a> {
    Start {
        message_id: &'a MessageId,
    },
    StartStep,
    FinishStep,
    TextStart {
        id: PartId,
    },
    TextDelta {
        id: PartId,
        delta: &'a str,
    },
    TextEnd {
        id: PartId,
    },
    ReasoningStart {
        id: PartId,
    },
    ReasoningDelta {
        id: PartId,
        delta: &'a str,
    },
    ReasoningEnd {
        id: PartId,
    },
    ToolInputStart {
        tool_call_id: &'a str,
        tool_name: &'a str,
        #[serde(flatten)]
        tool: Tool,
    },
    ToolInputDelta {
        tool_call_id: &'a str,
        input_text_delta: &'a str,
    },
    ToolInputAvailable {
        tool_call_id: &'a str,
        tool_name: &'a str,
        input: Value,
        #[serde(flatten)]
        tool: Tool,
    },
    ToolInputError {
        tool_call_id: &'a str,
        tool_name: &'a str,
        input: &'a str,
        error_text: String,
        #[serde(flatten)]
        tool: Tool,
    },
    ToolOutputAvailable {
        tool_call_id: &'a str,
        output: &'a str,
        #[serde(flatten)]
        tool: Tool,
    },
    ToolOutputError {
        tool_call_id: &'a str,
        error_text: &'a str,
        #[serde(flatten)]
        tool: Tool,
    },
    MessageMetadata {
        message_metadata: &'a Metadata,
    },
    Finish {
        finish_reason: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        message_metadata: Option<&'a Metadata>,
    },
    Abort,
    Error {
        error_text: String,
    },
}

/// On every part of a call: clients have no type for our tools, and must not call them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Tool {
    provider_executed: bool,
    dynamic: bool,
}

const OURS: Tool = Tool { provider_executed: true, dynamic: true };

impl ProtocolEncoder for Writer {
    fn open(&mut self, out: &mut Vec<u8>) {
        sse::data(out, &Part::Start { message_id: &self.message });
    }

    fn change(&mut self, change: PartChange<'_>, out: &mut Vec<u8>) {
        match change {
            PartChange::StepBegan => {
                self.refused.clear();
                sse::data(out, &Part::StartStep);
            }
            PartChange::StepEnded => sse::data(out, &Part::FinishStep),
            PartChange::SpanBegan(span) => {
                let id = PartId(span.part);
                let part =
                    if span.is_reasoning { Part::ReasoningStart { id } } else { Part::TextStart { id } };
                sse::data(out, &part);
            }
            PartChange::SpanGrew(span, delta) => {
                let id = PartId(span.part);
                let part = match span.is_reasoning {
                    true => Part::ReasoningDelta { id, delta },
                    false => Part::TextDelta { id, delta },
                };
                sse::data(out, &part);
            }
            PartChange::SpanEnded(span) => {
                let id = PartId(span.part);
                let part = if span.is_reasoning { Part::ReasoningEnd { id } } else { Part::TextEnd { id } };
                sse::data(out, &part);
            }
            PartChange::CallBegan(call) => {
                let part = Part::ToolInputStart { tool_call_id: &call.id, tool_name: &call.tool, tool: OURS };
                sse::data(out, &part);
            }
            PartChange::CallGrew(call, input_text_delta) => {
                sse::data(out, &Part::ToolInputDelta { tool_call_id: &call.id, input_text_delta });
            }
            PartChange::CallEnded(call, text) => {
                let part = input(&call.id, &call.tool, &text);
                if matches!(part, Part::ToolInputError { .. }) {
                    self.refused.push(call.part);
                }
                sse::data(out, &part);
            }
            // A viewer sees the result at once; when more of it came, the whole takes its place.
            PartChange::ResultBegan(call, piece) => {
                sse::data(out, &result(&call.id, piece.text, piece.is_error));
            }
            PartChange::ResultEnded(call, whole) if whole.pieces > 1 => {
                sse::data(out, &result(&call.id, &whole.text, whole.is_error));
            }
            PartChange::ResultEnded(..) => {}
            // It has its error already.
            PartChange::Unanswered(call) if self.refused.contains(&call.part) => {}
            PartChange::Unanswered(call) => sse::data(out, &result(&call.id, NO_RESULT, true)),
            PartChange::Noted(message_metadata) => {
                sse::data(out, &Part::MessageMetadata { message_metadata })
            }
        }
    }

    fn end(&mut self, end: End<'_>, metadata: &Metadata, out: &mut Vec<u8>) {
        let part = match end {
            End::Complete => Part::Finish {
                finish_reason: reason(finish_reason(metadata)),
                message_metadata: Some(metadata).filter(|metadata| !metadata.is_empty()),
            },
            End::Stopped => Part::Abort,
            End::Failed(failure) => Part::Error { error_text: format!("{}: {}", failure.code, failure.text) },
        };
        sse::data(out, &part);
        if !matches!(end, End::Failed(_)) {
            out.extend_from_slice(sse::DONE);
        }
    }

    fn restart(&mut self, _attempt: u32, was_shown: bool, _out: &mut Vec<u8>) -> StreamAction {
        if was_shown { StreamAction::Abort } else { StreamAction::Continue }
    }
}

/// What a call without a result is shown with.
const NO_RESULT: &str = "the answer ended before a result came";

/// Ids of parts need to be unique in their message only.
#[derive(Debug, Clone, Copy)]
struct PartId(u32);

impl Serialize for PartId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("p{}", self.0))
    }
}

fn input<'a>(tool_call_id: &'a str, tool_name: &'a str, text: &'a str) -> Part<'a> {
    match arguments::parse(text) {
        Ok(input) => Part::ToolInputAvailable { tool_call_id, tool_name, input, tool: OURS },
        Err(error) => {
            let error_text = format!("the arguments are no JSON: {error}");
            Part::ToolInputError { tool_call_id, tool_name, input: text, error_text, tool: OURS }
        }
    }
}

fn result<'a>(tool_call_id: &'a str, text: &'a str, is_error: bool) -> Part<'a> {
    match is_error {
        true => Part::ToolOutputError { tool_call_id, error_text: text, tool: OURS },
        false => Part::ToolOutputAvailable { tool_call_id, output: text, tool: OURS },
    }
}

/// The protocol's names of reasons; it refuses others.
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
