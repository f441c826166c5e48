//! The outline of an answer: where each text, reasoning, tool call and result in its chunks begins
//! and ends.
//!
//! Entry type: [`AnswerParts`]. All protocols except the native one encode these changes, so this
//! module alone decides what is open and what is closed at the end. Steps are split as in the
//! history: the first text, reasoning or call after a result begins the next step.
//!
//! State: the arguments of unfinished calls, the results of the step, the ids of the calls. The
//! text is not kept.

pub(crate) mod arguments;

use std::collections::BTreeSet;
use std::sync::Arc;

use model::{Chunk, ChunkKind, FollowUpHint, MessageId, Metadata};
use serde_json::Value;

use arguments::ArgumentsScanner;

/// An uninterrupted run of text or reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    /// Number among all spans and calls of the answer.
    pub(crate) part: u32,
    /// Step that the text or the reasoning belongs to.
    pub(crate) step: u32,
    /// Reasoning if true, else text.
    pub(crate) is_reasoning: bool,
}

/// A tool call as shown.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ShownCall {
    /// Unique in the answer: clients would confuse two calls to which a producer gave one id.
    pub(crate) id: String,
    /// Name of the tool.
    pub(crate) tool: String,
    /// Number among all spans and calls of the answer.
    pub(crate) part: u32,
    /// Step that the call belongs to.
    pub(crate) step: u32,
    /// Number among the calls of its step.
    pub(crate) number: usize,
}

/// A change of the outline by a chunk.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PartChange<'a> {
    StepBegan,
    StepEnded,
    SpanBegan(Span),
    /// The piece is not empty.
    SpanGrew(Span, &'a str),
    SpanEnded(Span),
    CallBegan(Arc<ShownCall>),
    /// The piece is not empty.
    CallGrew(Arc<ShownCall>, &'a str),
    /// The complete arguments: only a result may follow for this call.
    CallEnded(Arc<ShownCall>, String),
    /// The first piece of a result.
    ResultBegan(Arc<ShownCall>, PartDelta<'a>),
    /// The whole result, once, at the end of its step. Further pieces may arrive until then, also
    /// between other parts.
    ResultEnded(Arc<ShownCall>, CompletePart),
    /// The step or the answer ended without a result.
    Unanswered(Arc<ShownCall>),
    /// Metadata that came before the end; never empty.
    Noted(&'a Metadata),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PartDelta<'a> {
    pub(crate) text: &'a str,
    pub(crate) is_error: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct CompletePart {
    pub(crate) text: String,
    pub(crate) is_error: bool,
    /// Number of pieces; if it is 1, [`PartChange::ResultBegan`] had the whole result.
    pub(crate) pieces: u32,
}

/// Tracks the outline of one answer; see the module.
#[derive(Debug)]
pub(crate) struct AnswerParts {
    message: MessageId,
    step: u32,
    is_step_open: bool,
    /// The step has a result: later output of the model belongs to another step.
    has_results: bool,
    span: Option<Span>,
    /// The calls of the step.
    calls: Vec<OpenCall>,
    ids: BTreeSet<String>,
    next_part: u32,
    metadata: Metadata,
}

/// An open call of the step.
#[derive(Debug)]
struct OpenCall {
    call: Arc<ShownCall>,
    /// The producer's id.
    named: String,
    /// `None` once the arguments have ended.
    arguments: Option<ArgumentsScanner>,
    result: Option<CompletePart>,
}

impl AnswerParts {
    pub(crate) fn new(message: MessageId) -> Self {
        Self {
            message,
            step: 0,
            is_step_open: false,
            has_results: false,
            span: None,
            calls: Vec::new(),
            ids: BTreeSet::new(),
            next_part: 0,
            metadata: Metadata::EMPTY,
        }
    }

    /// Metadata of the final chunk; empty before it.
    pub(crate) fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Adds the next chunk and returns the changes.
    pub(crate) fn chunk<'a>(&mut self, chunk: &'a Chunk) -> Vec<PartChange<'a>> {
        let mut changes = Vec::new();
        match chunk.kind {
            ChunkKind::Content => self.speak(&chunk.text, false, &mut changes),
            ChunkKind::Reasoning => self.speak(&chunk.text, true, &mut changes),
            ChunkKind::ToolCall => self.call(chunk, &mut changes),
            ChunkKind::ToolResult => self.answer(chunk, &mut changes),
            ChunkKind::Metadata if !chunk.is_final && chunk.metadata.is_more_than_model_calls() => {
                changes.push(PartChange::Noted(&chunk.metadata));
            }
            // The owner decides whether an error ends the answer, and reports that as an event.
            ChunkKind::Metadata | ChunkKind::Error => {}
        }
        if chunk.is_final && chunk.kind != ChunkKind::Error {
            self.metadata = FollowUpHint::hidden_in(&chunk.metadata).into_owned();
            self.close(&mut changes);
        }
        changes
    }

    /// Closes all open parts.
    pub(crate) fn close(&mut self, changes: &mut Vec<PartChange<'_>>) {
        self.end_span(changes);
        for mut open in std::mem::take(&mut self.calls) {
            open.end_arguments(changes);
            changes.push(match open.result {
                Some(result) => PartChange::ResultEnded(open.call, result),
                None => PartChange::Unanswered(open.call),
            });
        }
        if std::mem::take(&mut self.is_step_open) {
            changes.push(PartChange::StepEnded);
        }
    }

    fn speak<'a>(&mut self, text: &'a str, is_reasoning: bool, changes: &mut Vec<PartChange<'a>>) {
        if text.is_empty() {
            // An empty text also begins the next step of the history, although the step has nothing
            // to show yet.
            return self.end_step_with_results(changes);
        }
        self.begin_step(changes);
        let span = match self.span.filter(|span| span.is_reasoning == is_reasoning) {
            Some(span) => span,
            None => {
                self.end_span(changes);
                let span = Span { part: self.take_part(), step: self.step, is_reasoning };
                self.span = Some(span);
                changes.push(PartChange::SpanBegan(span));
                span
            }
        };
        changes.push(PartChange::SpanGrew(span, text));
    }

    fn call<'a>(&mut self, chunk: &'a Chunk, changes: &mut Vec<PartChange<'a>>) {
        self.begin_step(changes);
        self.end_span(changes);
        let at = self.open_call(chunk, changes);
        let open = &mut self.calls[at];
        // Additions to ended arguments are ignored: an end that was sent cannot be withdrawn.
        let Some(arguments) = &mut open.arguments else { return };
        if !chunk.text.is_empty() {
            arguments.push(&chunk.text);
            changes.push(PartChange::CallGrew(Arc::clone(&open.call), &chunk.text));
        }
        if arguments.are_whole() || chunk.metadata.get("args_done") == Some(&Value::Bool(true)) {
            open.end_arguments(changes);
        }
    }

    fn answer<'a>(&mut self, chunk: &'a Chunk, changes: &mut Vec<PartChange<'a>>) {
        self.open_step(changes);
        self.end_span(changes);
        self.has_results = true;
        let at = self.open_call(chunk, changes);
        let open = &mut self.calls[at];
        open.end_arguments(changes);
        let is_error = chunk.metadata.get("is_error") == Some(&Value::Bool(true));
        if open.result.is_none() {
            let piece = PartDelta { text: &chunk.text, is_error };
            changes.push(PartChange::ResultBegan(Arc::clone(&open.call), piece));
        }
        let result = open.result.get_or_insert_default();
        result.text.push_str(&chunk.text);
        result.is_error |= is_error;
        result.pieces += 1;
    }

    /// Called for output of the model: after a result it begins a new step.
    fn begin_step(&mut self, changes: &mut Vec<PartChange<'_>>) {
        self.end_step_with_results(changes);
        self.open_step(changes);
    }

    fn end_step_with_results(&mut self, changes: &mut Vec<PartChange<'_>>) {
        if std::mem::take(&mut self.has_results) {
            self.close(changes);
            self.step += 1;
        }
    }

    fn open_step(&mut self, changes: &mut Vec<PartChange<'_>>) {
        if !std::mem::replace(&mut self.is_step_open, true) {
            changes.push(PartChange::StepBegan);
        }
    }

    fn end_span(&mut self, changes: &mut Vec<PartChange<'_>>) {
        changes.extend(self.span.take().map(PartChange::SpanEnded));
    }

    /// The call of the step that the chunk belongs to. A result without a call gets one, as in the
    /// history.
    fn open_call(&mut self, chunk: &Chunk, changes: &mut Vec<PartChange<'_>>) -> usize {
        if let Some(at) = self.known_call(chunk) {
            return at;
        }
        let named = text_at(chunk, "tool_call_id");
        let call = Arc::new(self.new_call(named, text_at(chunk, "tool_name")));
        changes.push(PartChange::CallBegan(Arc::clone(&call)));
        let arguments = Some(ArgumentsScanner::default());
        self.calls.push(OpenCall { call, named: named.to_owned(), arguments, result: None });
        self.calls.len() - 1
    }

    fn known_call(&self, chunk: &Chunk) -> Option<usize> {
        let named = text_at(chunk, "tool_call_id");
        self.calls.iter().position(|open| open.named == named)
    }

    fn new_call(&mut self, named: &str, tool: &str) -> ShownCall {
        let index = self.ids.len();
        let mut id = match named {
            "" => format!("{}-c{index}", self.message),
            named => named.to_owned(),
        };
        while self.ids.contains(&id) {
            id = format!("{id}-c{index}");
        }
        self.ids.insert(id.clone());
        let tool = if tool.is_empty() { "unknown" } else { tool }.to_owned();
        ShownCall { id, tool, part: self.take_part(), step: self.step, number: self.calls.len() }
    }

    fn take_part(&mut self) -> u32 {
        let part = self.next_part;
        self.next_part += 1;
        part
    }
}

impl OpenCall {
    fn end_arguments(&mut self, changes: &mut Vec<PartChange<'_>>) {
        if let Some(arguments) = self.arguments.take() {
            changes.push(PartChange::CallEnded(Arc::clone(&self.call), arguments.into_text()));
        }
    }
}

fn text_at<'a>(chunk: &'a Chunk, key: &str) -> &'a str {
    chunk.metadata.get(key).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests;
