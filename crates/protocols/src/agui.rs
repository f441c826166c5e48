//! AG-UI 1.0: a run of an agent for each turn, with an assistant message for each step.
//!
//! Entry types: [`AgUi`] for the answer, [`AgUiRequest`] for what a client asks. Sources:
//! <https://docs.ag-ui.com/concepts/events> and <https://ag-ui.com/spec/1.0/schema.json>.
//!
//! The messages of steps and results have the ids that the history gives them, but for the last step's: while it is being
//! written it is not known that it is the last.
//!
//! Resume: the protocol has no cursor. A client that comes back reads the run again from `RUN_STARTED`.
//!
//! State: the arguments of calls that are still being written, the results of a step, and the ids of the calls. Text is not
//! kept.

pub(crate) mod request;

use model::{MessageId, Metadata, ThreadId};
use serde::{Serialize, Serializer};

use crate::answer_parts::{PartChange, ShownCall};
use crate::encoder_driver::{AnswerEnd, EncoderDriver, ProtocolEncoder};
use crate::usage::Usage;
use crate::{AnswerEvent, Protocol, ProtocolOutput, StreamAction, sse};

pub use request::{AgUiRequest, error_body};

/// The version of the protocol that is spoken.
pub const PROTOCOL_VERSION: &str = "1.0";

/// The fold for one answer.
#[derive(Debug)]
pub struct AgUi(EncoderDriver<AgUiEncoder>);

impl AgUi {
    /// The stream of the answer `message`. `run`: what the client called the run, or any id for one that did not begin it.
    pub fn new(thread: ThreadId, run: impl Into<String>, message: MessageId) -> Self {
        Self(EncoderDriver::new(message.clone(), AgUiEncoder { thread, run: run.into(), message }))
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
}

/// The events of the protocol, as far as they are used.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "SCREAMING_SNAKE_CASE", rename_all_fields = "camelCase")]
enum AgUiEvent<'a> {
    RunStarted {
        thread_id: &'a str,
        run_id: &'a str,
        protocol_version: &'static str,
    },
    TextMessageStart {
        message_id: Id<'a>,
        role: &'static str,
    },
    TextMessageContent {
        message_id: Id<'a>,
        delta: &'a str,
    },
    TextMessageEnd {
        message_id: Id<'a>,
    },
    ReasoningStart {
        message_id: Id<'a>,
    },
    ReasoningMessageStart {
        message_id: Id<'a>,
        role: &'static str,
    },
    ReasoningMessageContent {
        message_id: Id<'a>,
        delta: &'a str,
    },
    ReasoningMessageEnd {
        message_id: Id<'a>,
    },
    ReasoningEnd {
        message_id: Id<'a>,
    },
    ToolCallStart {
        tool_call_id: CallName<'a>,
        tool_call_name: &'a str,
        parent_message_id: Id<'a>,
    },
    ToolCallArgs {
        tool_call_id: CallName<'a>,
        delta: &'a str,
    },
    ToolCallEnd {
        tool_call_id: CallName<'a>,
    },
    ToolCallResult {
        message_id: Id<'a>,
        tool_call_id: CallName<'a>,
        content: &'a str,
        role: &'static str,
    },
    Custom {
        name: &'static str,
        value: &'a Metadata,
    },
    RunFinished {
        thread_id: &'a str,
        run_id: &'a str,
        outcome: RunOutcome,
        #[serde(skip_serializing_if = "Option::is_none")]
        usage: Option<[RunUsage; 1]>,
        #[serde(skip_serializing_if = "Option::is_none")]
        metadata: Option<&'a Metadata>,
    },
    RunError {
        message: &'a str,
        code: &'a str,
    },
}

/// The id of a message of the answer, which is made from the answer's own.
#[derive(Debug, Clone, Copy)]
struct Id<'a> {
    answer: &'a MessageId,
    part: MessageKind,
}

#[derive(Debug, Clone, Copy)]
enum MessageKind {
    Step(u32),
    /// The history counts results from 1. With the bytes that a message before has.
    Result(u32, usize, usize),
    Reasoning(u32),
}

impl Serialize for Id<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let answer = self.answer;
        match self.part {
            MessageKind::Step(step) => serializer.collect_str(&format_args!("{answer}-s{step}")),
            MessageKind::Result(step, number, 0) => {
                serializer.collect_str(&format_args!("{answer}-s{step}-r{number}"))
            }
            MessageKind::Result(step, number, sent) => {
                serializer.collect_str(&format_args!("{answer}-s{step}-r{number}-b{sent}"))
            }
            MessageKind::Reasoning(part) => serializer.collect_str(&format_args!("{answer}-p{part}")),
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum RunOutcome {
    Success,
    Cancelled,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RunUsage {
    input_tokens: u64,
    output_tokens: u64,
    total_tokens: u64,
}

impl ProtocolEncoder for AgUiEncoder {
    fn open(&mut self, out: &mut Vec<u8>) {
        let (thread_id, run_id) = (self.thread.name(), self.run.as_str());
        sse::data(out, &AgUiEvent::RunStarted { thread_id, run_id, protocol_version: PROTOCOL_VERSION });
    }

    fn change(&mut self, change: PartChange<'_>, out: &mut Vec<u8>) {
        match change {
            PartChange::StepBegan | PartChange::StepEnded | PartChange::ResultBegan(..) => {}
            PartChange::SpanBegan(span) if span.is_reasoning => {
                let message_id = self.id(MessageKind::Reasoning(span.part));
                sse::data(out, &AgUiEvent::ReasoningStart { message_id });
                sse::data(out, &AgUiEvent::ReasoningMessageStart { message_id, role: "reasoning" });
            }
            PartChange::SpanGrew(span, delta) if span.is_reasoning => {
                let message_id = self.id(MessageKind::Reasoning(span.part));
                sse::data(out, &AgUiEvent::ReasoningMessageContent { message_id, delta });
            }
            PartChange::SpanEnded(span) if span.is_reasoning => {
                let message_id = self.id(MessageKind::Reasoning(span.part));
                sse::data(out, &AgUiEvent::ReasoningMessageEnd { message_id });
                sse::data(out, &AgUiEvent::ReasoningEnd { message_id });
            }
            PartChange::SpanBegan(span) => {
                let message_id = self.id(MessageKind::Step(span.step));
                sse::data(out, &AgUiEvent::TextMessageStart { message_id, role: "assistant" });
            }
            PartChange::SpanGrew(span, delta) => {
                let message_id = self.id(MessageKind::Step(span.step));
                sse::data(out, &AgUiEvent::TextMessageContent { message_id, delta });
            }
            PartChange::SpanEnded(span) => {
                sse::data(
                    out,
                    &AgUiEvent::TextMessageEnd { message_id: self.id(MessageKind::Step(span.step)) },
                );
            }
            PartChange::CallBegan(call) => {
                let (tool_call_id, tool_call_name) = (self.call(call.id.as_ref()), &*call.tool);
                let parent_message_id = self.id(MessageKind::Step(call.step));
                sse::data(out, &AgUiEvent::ToolCallStart { tool_call_id, tool_call_name, parent_message_id });
            }
            PartChange::CallGrew(call, delta) => {
                sse::data(out, &AgUiEvent::ToolCallArgs { tool_call_id: self.call(&call.id), delta });
            }
            PartChange::CallEnded(call, _) => {
                sse::data(out, &AgUiEvent::ToolCallEnd { tool_call_id: self.call(&call.id) });
            }
            // A result is a message of its own and cannot grow: what follows is another message.
            PartChange::ResultEnded(call, whole) => {
                self.result(&call, whole.text.get(whole.sent..).unwrap_or_default(), whole.sent, out);
            }
            // As in the history: every call has a result, and this one is empty.
            PartChange::Unanswered(call) => self.result(&call, "", 0, out),
            PartChange::Noted(value) => sse::data(out, &AgUiEvent::Custom { name: "chunk_metadata", value }),
        }
    }

    fn end(&mut self, end: AnswerEnd<'_>, metadata: &Metadata, out: &mut Vec<u8>) {
        let outcome = match end {
            AnswerEnd::Complete => RunOutcome::Success,
            AnswerEnd::Stopped => RunOutcome::Cancelled,
            AnswerEnd::Failed(failure) => {
                return sse::data(out, &AgUiEvent::RunError { message: &failure.text, code: &failure.code });
            }
        };
        let usage = Usage::of(metadata).map(|usage| {
            [RunUsage { input_tokens: usage.input, output_tokens: usage.output, total_tokens: usage.total }]
        });
        let metadata = Some(metadata).filter(|metadata| !metadata.is_empty());
        let (thread_id, run_id) = (self.thread.name(), self.run.as_str());
        sse::data(out, &AgUiEvent::RunFinished { thread_id, run_id, outcome, usage, metadata });
    }

    fn restart(&mut self, _attempt: u32, was_shown: bool, _out: &mut Vec<u8>) -> StreamAction {
        if was_shown { StreamAction::Abort } else { StreamAction::Continue }
    }
}

impl AgUiEncoder {
    fn id(&self, part: MessageKind) -> Id<'_> {
        Id { answer: &self.message, part }
    }

    fn result(&self, call: &ShownCall, content: &str, sent: usize, out: &mut Vec<u8>) {
        let message_id = self.id(MessageKind::Result(call.step, call.number + 1, sent));
        let tool_call_id = self.call(&call.id);
        sse::data(out, &AgUiEvent::ToolCallResult { message_id, tool_call_id, content, role: "tool" });
    }

    /// Producers count their calls anew in each turn, and a client takes a call of the same id for the same call.
    fn call<'a>(&'a self, id: &'a str) -> CallName<'a> {
        CallName { answer: &self.message, id }
    }
}

/// The id of a call, unique over all answers.
#[derive(Debug, Clone, Copy)]
struct CallName<'a> {
    answer: &'a MessageId,
    id: &'a str,
}

impl Serialize for CallName<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}-{}", self.answer, self.id))
    }
}

#[cfg(test)]
mod tests;
