//! Writes the events and maintains the output.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::answer_parts::{CompletePart, PartChange, ShownCall, Span};
use crate::encoder_driver::{AnswerEnd, AnswerReport, ProtocolEncoder};
use crate::usage::{self, Usage};
use crate::{StreamAction, schemas, sse};

use super::event_sequence::{EventSequence, Resume};
use super::object::{
    Content, Named, OutputEntry, OutputItem, ResponseObject, ResponseProgress, Status, Text, Written,
};
use super::options::{self, ResponseOptions, id_of};

#[derive(Debug)]
pub(super) struct ResponseEncoder {
    terms: ResponseOptions,
    id: String,
    numbers: EventSequence,
    output: Vec<OutputEntry>,
    progress: ResponseProgress,
    usage: Option<Usage>,
    /// Status of the items that are closed from now on.
    closed_as: Status,
}

/// An event of a response: its kind, its number, and the change.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = ResponseEvent)]
pub struct ResponseEvent<'a> {
    /// `response.created`, `response.output_text.delta`, … and last `response.completed`,
    /// `.incomplete` or `.failed`.
    #[serde(rename = "type")]
    #[schema(pattern = "^response\\.[a-z_.]+$")]
    name: &'a str,
    /// Number of the event; `starting_after` resumes after it.
    sequence_number: u64,
    /// The whole response, in the first events and in the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    response: Option<ResponseObject<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    item_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>, nullable = false)]
    output_index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>, nullable = false)]
    content_index: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Written>, nullable = false)]
    item: Option<&'a OutputEntry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Content>, nullable = false)]
    part: Option<&'a Content>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    delta: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    arguments: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<schemas::AnyObject>>, nullable = false)]
    logprobs: Option<[(); 0]>,
}

impl ProtocolEncoder for ResponseEncoder {
    fn open(&mut self, out: &mut Vec<u8>) {
        if !self.terms.background {
            self.progress = ResponseProgress::Running;
        }
        self.lifecycle("response.created", self.numbers.opening(0), out);
        let name = if self.terms.background { "response.queued" } else { "response.in_progress" };
        self.lifecycle(name, self.numbers.opening(1), out);
    }

    fn on_chunk(&mut self, out: &mut Vec<u8>) {
        if self.progress == ResponseProgress::Queued {
            self.progress = ResponseProgress::Running;
            self.lifecycle("response.in_progress", self.numbers.opening(2), out);
        }
    }

    fn change(&mut self, change: PartChange<'_>, out: &mut Vec<u8>) {
        self.begin_attempt(out);
        match change {
            PartChange::SpanBegan(span) => self.begin_span(span, out),
            PartChange::SpanGrew(span, text) => self.grow_span(span, text, out),
            PartChange::SpanEnded(span) => self.end_span(span, out),
            PartChange::CallBegan(call) => self.begin_call(&call, out),
            PartChange::CallGrew(call, text) => self.grow_call(&call, text, out),
            PartChange::CallEnded(call, arguments) => self.end_call(&call, &arguments, out),
            PartChange::ResultEnded(call, whole) => self.result(&call, Some(whole), out),
            PartChange::Unanswered(call) => self.result(&call, None, out),
            PartChange::StepBegan
            | PartChange::StepEnded
            | PartChange::ResultBegan(..)
            | PartChange::Noted(_) => {}
        }
    }

    fn ending(&mut self, end: AnswerEnd<'_>) {
        self.closed_as = match end {
            AnswerEnd::Complete => Status::Completed,
            AnswerEnd::Stopped | AnswerEnd::Failed(_) => Status::Incomplete,
        };
    }

    fn end(&mut self, end: AnswerEnd<'_>, report: &AnswerReport<'_>, out: &mut Vec<u8>) {
        self.begin_attempt(out);
        self.usage = report.usage;
        let (progress, name) = match (end, usage::finish_reason(report.metadata)) {
            (AnswerEnd::Failed(failure), _) => (ResponseProgress::Failed(failure.clone()), "response.failed"),
            // The protocol has no event for a cancelled response; this one is closest.
            (AnswerEnd::Stopped, _) => (ResponseProgress::Cancelled, "response.incomplete"),
            (AnswerEnd::Complete, "length") => {
                (ResponseProgress::Incomplete("max_output_tokens"), "response.incomplete")
            }
            (AnswerEnd::Complete, "content_filter") => {
                (ResponseProgress::Incomplete("content_filter"), "response.incomplete")
            }
            (AnswerEnd::Complete, _) => (ResponseProgress::Completed, "response.completed"),
        };
        self.progress = progress;
        let number = self.numbers.terminal();
        self.lifecycle(name, Some(number), out);
    }

    fn restart(&mut self, attempt: u32, was_shown: bool, _out: &mut Vec<u8>) -> StreamAction {
        self.numbers.restart(attempt);
        self.output.clear();
        if !was_shown {
            return StreamAction::Continue;
        }
        self.progress = ResponseProgress::Queued;
        StreamAction::Abort
    }
}

impl ResponseEncoder {
    pub(super) fn new(terms: ResponseOptions, resume: Resume) -> Self {
        let id = id_of(&terms.message);
        let opening = if terms.background { 3 } else { 2 };
        Self {
            terms,
            id,
            numbers: EventSequence::new(resume, opening),
            output: Vec::new(),
            progress: ResponseProgress::Queued,
            usage: None,
            closed_as: Status::Completed,
        }
    }

    pub(super) fn recall(&mut self) {
        self.numbers.recall();
    }

    pub(super) fn object(&self) -> ResponseObject<'_> {
        let shown = |name: &str| self.terms.shown.as_map().and_then(|fields| fields.get(name));
        let shown_or =
            |name: &str, default: Value| shown(name).map_or_else(|| Cow::Owned(default), Cow::Borrowed);
        ResponseObject {
            id: &self.id,
            object: "response",
            created_at: self.terms.created_at.0.div_euclid(1_000),
            status: self.progress.status(),
            background: self.terms.background,
            conversation: Named { id: self.terms.thread.name() },
            error: self.progress.error(),
            incomplete_details: self.progress.incomplete(),
            instructions: shown("instructions"),
            max_output_tokens: shown("max_output_tokens"),
            metadata: &self.terms.metadata,
            model: &self.terms.model,
            output: &self.output,
            parallel_tool_calls: shown_or("parallel_tool_calls", Value::Bool(true)),
            previous_response_id: self.terms.previous_response_id.as_deref(),
            store: shown("store").and_then(Value::as_bool).unwrap_or(true),
            reasoning: shown("reasoning"),
            temperature: shown("temperature"),
            text: Text::of(shown("text")),
            tool_choice: shown_or("tool_choice", "auto".into()),
            tools: [],
            top_p: shown("top_p"),
            truncation: "auto",
            usage: self.usage.map(Into::into),
        }
    }

    /// A client that has seen part of a failed attempt restarts with this event.
    fn begin_attempt(&mut self, out: &mut Vec<u8>) {
        if self.numbers.begin_attempt() {
            self.lifecycle("response.created", self.numbers.opening_again(0), out);
            self.lifecycle("response.in_progress", self.numbers.opening_again(1), out);
        }
    }

    fn begin_span(&mut self, span: Span, out: &mut Vec<u8>) {
        let (status, content) = (Status::InProgress, Vec::new());
        let (prefix, item) = match span.is_reasoning {
            true => (options::REASONING, OutputItem::Reasoning { status, content }),
            false => (options::MESSAGE, OutputItem::Message { status, content }),
        };
        let index = self.push(span.part, prefix, item);
        self.item("response.output_item.added", index, out);
        if let Some(content) = self.output[index].content_mut() {
            content.push(Content::new(span.is_reasoning));
        }
        self.part("response.content_part.added", index, out);
    }

    fn grow_span(&mut self, span: Span, delta: &str, out: &mut Vec<u8>) {
        let Some(index) = self.find(span.part) else { return };
        if let Some(content) = self.output[index].content_mut().and_then(|parts| parts.first_mut()) {
            content.push(delta);
        }
        let (name, logprobs) = match span.is_reasoning {
            true => ("response.reasoning_text.delta", None),
            false => ("response.output_text.delta", Some([])),
        };
        let number = self.numbers.piece();
        write(
            number,
            ResponseEvent { name, delta: Some(delta), logprobs, ..self.place(index, Some(0)) },
            out,
        );
    }

    fn end_span(&mut self, span: Span, out: &mut Vec<u8>) {
        let Some(index) = self.find(span.part) else { return };
        let (name, logprobs) = match span.is_reasoning {
            true => ("response.reasoning_text.done", None),
            false => ("response.output_text.done", Some([])),
        };
        let number = self.numbers.event();
        let text = self.output[index].content().map_or("", Content::text);
        write(number, ResponseEvent { name, text: Some(text), logprobs, ..self.place(index, Some(0)) }, out);
        self.part("response.content_part.done", index, out);
        self.end_item(index, self.closed_as, out);
    }

    fn begin_call(&mut self, call: &ShownCall, out: &mut Vec<u8>) {
        let (status, name, arguments) = (Status::InProgress, call.tool.clone(), String::new());
        let index = self.push(
            call.part,
            options::CALL,
            OutputItem::McpCall { status, name, arguments, result: None },
        );
        self.item("response.output_item.added", index, out);
        self.placed("response.mcp_call.in_progress", index, out);
    }

    fn grow_call(&mut self, call: &ShownCall, delta: &str, out: &mut Vec<u8>) {
        let Some(index) = self.find(call.part) else { return };
        if let Some(arguments) = self.output[index].arguments_mut() {
            arguments.push_str(delta);
        }
        let number = self.numbers.piece();
        let name = "response.mcp_call_arguments.delta";
        write(number, ResponseEvent { name, delta: Some(delta), ..self.place(index, None) }, out);
    }

    fn end_call(&mut self, call: &ShownCall, arguments: &str, out: &mut Vec<u8>) {
        let Some(index) = self.find(call.part) else { return };
        let number = self.numbers.event();
        let name = "response.mcp_call_arguments.done";
        write(number, ResponseEvent { name, arguments: Some(arguments), ..self.place(index, None) }, out);
    }

    /// Ends a call with its result, or without one.
    fn result(&mut self, call: &ShownCall, whole: Option<CompletePart>, out: &mut Vec<u8>) {
        let Some(index) = self.find(call.part) else { return };
        let (status, said) = match whole {
            Some(whole) if whole.is_error => (Status::Failed, Some(Err(whole.text))),
            Some(whole) => (Status::Completed, Some(Ok(whole.text))),
            None => (Status::Incomplete, None),
        };
        if let OutputItem::McpCall { result, .. } = &mut self.output[index].item {
            *result = said;
        }
        match status {
            Status::Completed => self.placed("response.mcp_call.completed", index, out),
            Status::Failed => self.placed("response.mcp_call.failed", index, out),
            Status::InProgress | Status::Incomplete => {}
        }
        self.end_item(index, status, out);
    }

    fn end_item(&mut self, index: usize, status: Status, out: &mut Vec<u8>) {
        self.output[index].set_status(status);
        self.item("response.output_item.done", index, out);
    }

    fn push(&mut self, part: u32, prefix: &str, item: OutputItem) -> usize {
        let id = options::item_id(prefix, &self.terms.message, part);
        self.output.push(OutputEntry { part, id, item });
        self.output.len() - 1
    }

    /// Searches from the end, because the entry is usually the last one.
    fn find(&self, part: u32) -> Option<usize> {
        self.output.iter().rposition(|entry| entry.part == part)
    }

    /// An event about a part of an item.
    fn place(&self, output_index: usize, content_index: Option<u32>) -> ResponseEvent<'_> {
        let item_id = Some(self.output[output_index].id.as_str());
        ResponseEvent { item_id, output_index: Some(output_index), content_index, ..ResponseEvent::default() }
    }

    fn lifecycle(&self, name: &'static str, number: Option<u64>, out: &mut Vec<u8>) {
        write(number, ResponseEvent { name, response: Some(self.object()), ..ResponseEvent::default() }, out);
    }

    fn item(&mut self, name: &str, output_index: usize, out: &mut Vec<u8>) {
        let number = self.numbers.event();
        let (item, output_index) = (Some(&self.output[output_index]), Some(output_index));
        write(number, ResponseEvent { name, output_index, item, ..ResponseEvent::default() }, out);
    }

    fn placed(&mut self, name: &str, index: usize, out: &mut Vec<u8>) {
        let number = self.numbers.event();
        write(number, ResponseEvent { name, ..self.place(index, None) }, out);
    }

    fn part(&mut self, name: &str, index: usize, out: &mut Vec<u8>) {
        let number = self.numbers.event();
        if let part @ Some(_) = self.output[index].content() {
            write(number, ResponseEvent { name, part, ..self.place(index, Some(0)) }, out);
        }
    }
}

/// Writes an event if the client wants it.
fn write(number: Option<u64>, event: ResponseEvent<'_>, out: &mut Vec<u8>) {
    if let Some(sequence_number) = number {
        sse::named(out, event.name, &ResponseEvent { sequence_number, ..event });
    }
}
