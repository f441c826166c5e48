//! AG-UI 1.0: each turn is a run of an agent, with an assistant message for each step.
//!
//! Entry types: [`AgUi`] for the answer, [`AgUiRequest`] for a client's request. Sources:
//! <https://docs.ag-ui.com/concepts/events> and <https://ag-ui.com/spec/1.0/schema.json>.
//!
//! Messages of steps and results have their ids from the history, except the last step's: while it
//! is written, it is not known to be the last.
//!
//! Resume: the protocol has no cursor. A client that reconnects reads the run again from
//! `RUN_STARTED`, after a snapshot of the messages before the answer.
//!
//! State: the arguments of unfinished calls, the results of a step, and the ids of the calls. Text
//! is not kept.

pub(crate) mod request;
mod snapshot;

use model::{MessageId, Metadata, ThreadId};
use serde::Serialize;
use utoipa::ToSchema;

use crate::answer_parts::{PartChange, ShownCall};
use crate::encoder_driver::{AnswerEnd, AnswerReport, EncoderDriver, ProtocolEncoder};
use crate::{AnswerEvent, Protocol, ProtocolOutput, StreamAction, schemas, sse};

pub use request::{AgUiRequest, RunRefusal, error_body};
pub use snapshot::{AgUiCall, AgUiFunction, AgUiMessage};

/// Version of the protocol.
pub const PROTOCOL_VERSION: &str = "1.0";

/// The encoder of one answer.
#[derive(Debug)]
pub struct AgUi(EncoderDriver<AgUiEncoder>);

impl AgUi {
    /// The stream of the answer `message`. `run`: the client's id of the run, or any id for a
    /// client that did not begin it.
    pub fn new(thread: ThreadId, run: impl Into<String>, message: MessageId) -> Self {
        Self::connected(thread, run, message, None)
    }

    /// The same for a client that has no messages: the stream begins with those before the answer.
    pub fn connected(
        thread: ThreadId,
        run: impl Into<String>,
        message: MessageId,
        before: Option<Vec<AgUiMessage>>,
    ) -> Self {
        let encoder = AgUiEncoder { thread, run: run.into(), message: message.clone(), before };
        Self(EncoderDriver::new(message, encoder))
    }
}

impl Protocol for AgUi {
    fn apply(&mut self, happening: AnswerEvent<'_>) -> ProtocolOutput {
        self.0.apply(happening)
    }
}

#[derive(Debug)]
struct AgUiEncoder {
    thread: ThreadId,
    run: String,
    message: MessageId,
    /// The messages before the answer; `None`: the client has them.
    before: Option<Vec<AgUiMessage>>,
}

/// An event of AG-UI.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "SCREAMING_SNAKE_CASE")]
#[schema(as = RunEvent)]
pub enum AgUiEvent<'a> {
    #[serde(rename_all = "camelCase")]
    RunStarted { thread_id: &'a str, run_id: &'a str, protocol_version: &'static str },
    MessagesSnapshot {
        #[schema(value_type = Vec<schemas::AnyObject>)]
        messages: &'a [AgUiMessage],
    },
    #[serde(rename_all = "camelCase")]
    TextMessageStart { message_id: String, role: &'static str },
    #[serde(rename_all = "camelCase")]
    TextMessageContent { message_id: String, delta: &'a str },
    #[serde(rename_all = "camelCase")]
    TextMessageEnd { message_id: String },
    #[serde(rename_all = "camelCase")]
    ReasoningStart { message_id: String },
    #[serde(rename_all = "camelCase")]
    ReasoningMessageStart { message_id: String, role: &'static str },
    #[serde(rename_all = "camelCase")]
    ReasoningMessageContent { message_id: String, delta: &'a str },
    #[serde(rename_all = "camelCase")]
    ReasoningMessageEnd { message_id: String },
    #[serde(rename_all = "camelCase")]
    ReasoningEnd { message_id: String },
    #[serde(rename_all = "camelCase")]
    ToolCallStart { tool_call_id: String, tool_call_name: &'a str, parent_message_id: String },
    #[serde(rename_all = "camelCase")]
    ToolCallArgs { tool_call_id: String, delta: &'a str },
    #[serde(rename_all = "camelCase")]
    ToolCallEnd { tool_call_id: String },
    #[serde(rename_all = "camelCase")]
    ToolCallResult { message_id: String, tool_call_id: String, content: &'a str, role: &'static str },
    #[serde(rename_all = "camelCase")]
    Custom {
        name: &'static str,
        #[schema(value_type = schemas::AnyObject)]
        value: &'a Metadata,
    },
    #[serde(rename_all = "camelCase")]
    RunFinished {
        thread_id: &'a str,
        run_id: &'a str,
        outcome: RunOutcome,
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Vec<RunUsage>, required = false)]
        usage: Option<[RunUsage; 1]>,
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(value_type = schemas::AnyObject, required = false)]
        metadata: Option<&'a Metadata>,
    },
    #[serde(rename_all = "camelCase")]
    RunError { message: &'a str, code: &'a str },
}

/// How a run ended.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
#[schema(as = RunOutcome)]
pub enum RunOutcome {
    /// The answer is complete.
    Success,
    /// The turn was stopped.
    Cancelled,
}

/// The token usage of a run.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = RunTokens)]
pub struct RunUsage {
    input_tokens: u64,
    output_tokens: u64,
    total_tokens: u64,
}

impl ProtocolEncoder for AgUiEncoder {
    fn open(&mut self, out: &mut Vec<u8>) {
        let (thread_id, run_id) = (self.thread.name(), self.run.as_str());
        sse::data(out, &AgUiEvent::RunStarted { thread_id, run_id, protocol_version: PROTOCOL_VERSION });
        if let Some(messages) = self.before.take() {
            sse::data(out, &AgUiEvent::MessagesSnapshot { messages: &messages });
        }
    }

    fn change(&mut self, change: PartChange<'_>, out: &mut Vec<u8>) {
        match change {
            PartChange::StepBegan | PartChange::StepEnded | PartChange::ResultBegan(..) => {}
            PartChange::SpanBegan(span) if span.is_reasoning => {
                let message_id = self.reasoning_id(span.part);
                sse::data(out, &AgUiEvent::ReasoningStart { message_id: message_id.clone() });
                sse::data(out, &AgUiEvent::ReasoningMessageStart { message_id, role: "reasoning" });
            }
            PartChange::SpanGrew(span, delta) if span.is_reasoning => {
                let message_id = self.reasoning_id(span.part);
                sse::data(out, &AgUiEvent::ReasoningMessageContent { message_id, delta });
            }
            PartChange::SpanEnded(span) if span.is_reasoning => {
                let message_id = self.reasoning_id(span.part);
                sse::data(out, &AgUiEvent::ReasoningMessageEnd { message_id: message_id.clone() });
                sse::data(out, &AgUiEvent::ReasoningEnd { message_id });
            }
            PartChange::SpanBegan(span) => {
                let message_id = self.step_id(span.step);
                sse::data(out, &AgUiEvent::TextMessageStart { message_id, role: "assistant" });
            }
            PartChange::SpanGrew(span, delta) => {
                let message_id = self.step_id(span.step);
                sse::data(out, &AgUiEvent::TextMessageContent { message_id, delta });
            }
            PartChange::SpanEnded(span) => {
                sse::data(out, &AgUiEvent::TextMessageEnd { message_id: self.step_id(span.step) });
            }
            PartChange::CallBegan(call) => {
                let (tool_call_id, tool_call_name) = (self.call_id(&call.id), &*call.tool);
                let parent_message_id = self.step_id(call.step);
                sse::data(out, &AgUiEvent::ToolCallStart { tool_call_id, tool_call_name, parent_message_id });
            }
            PartChange::CallGrew(call, delta) => {
                sse::data(out, &AgUiEvent::ToolCallArgs { tool_call_id: self.call_id(&call.id), delta });
            }
            PartChange::CallEnded(call, _) => {
                sse::data(out, &AgUiEvent::ToolCallEnd { tool_call_id: self.call_id(&call.id) });
            }
            // A result is a separate message and cannot grow.
            PartChange::ResultEnded(call, whole) => self.result(&call, &whole.text, out),
            // As in the history, every call has a result; this one is empty.
            PartChange::Unanswered(call) => self.result(&call, "", out),
            PartChange::Noted(value) => sse::data(out, &AgUiEvent::Custom { name: "chunk_metadata", value }),
        }
    }

    fn end(&mut self, end: AnswerEnd<'_>, report: &AnswerReport<'_>, out: &mut Vec<u8>) {
        let outcome = match end {
            AnswerEnd::Complete => RunOutcome::Success,
            AnswerEnd::Stopped => RunOutcome::Cancelled,
            AnswerEnd::Failed(failure) => {
                return sse::data(out, &AgUiEvent::RunError { message: &failure.text, code: &failure.code });
            }
        };
        let usage = report.usage.map(|usage| {
            [RunUsage { input_tokens: usage.input, output_tokens: usage.output, total_tokens: usage.total }]
        });
        let metadata = Some(report.metadata).filter(|metadata| !metadata.is_empty());
        let (thread_id, run_id) = (self.thread.name(), self.run.as_str());
        sse::data(out, &AgUiEvent::RunFinished { thread_id, run_id, outcome, usage, metadata });
    }

    fn restart(&mut self, _attempt: u32, was_shown: bool, _out: &mut Vec<u8>) -> StreamAction {
        if was_shown { StreamAction::Abort } else { StreamAction::Continue }
    }
}

impl AgUiEncoder {
    /// Message ids are derived from the answer's id.
    fn step_id(&self, step: u32) -> String {
        format!("{}-s{step}", self.message)
    }

    fn reasoning_id(&self, part: u32) -> String {
        format!("{}-p{part}", self.message)
    }

    fn result(&self, call: &ShownCall, content: &str, out: &mut Vec<u8>) {
        // The history counts results from 1.
        let message_id = format!("{}-r{}", self.step_id(call.step), call.number + 1);
        let tool_call_id = self.call_id(&call.id);
        sse::data(out, &AgUiEvent::ToolCallResult { message_id, tool_call_id, content, role: "tool" });
    }

    fn call_id(&self, id: &str) -> String {
        snapshot::call_id(&self.message, id)
    }
}

#[cfg(test)]
mod tests;
