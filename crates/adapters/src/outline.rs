//! The outline of an answer: which text, reasoning, tool calls and results its chunks are, where each begins and ends.
//!
//! Entry type: [`Outline`]. All protocols but the native one show these changes, each in its own words, so what is open
//! when, and what is closed at the end, is decided here once. Steps are cut as the history cuts them: the first text,
//! reasoning or call after a result begins the next one.
//!
//! State: the arguments of calls that are still being written, one result, the ids of the calls. The text is not kept.

pub(crate) mod arguments;

use std::collections::BTreeSet;
use std::sync::Arc;

use model::{Chunk, ChunkKind, MessageId, Metadata};
use serde_json::Value;

use arguments::Arguments;

/// A run of text or of reasoning that nothing interrupts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    /// Its number among all spans and calls of the answer.
    pub(crate) part: u32,
    /// The step that it belongs to.
    pub(crate) step: u32,
    /// Which of the two.
    pub(crate) is_reasoning: bool,
}

/// A tool call, as it is shown.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// Unique in the answer: a producer that uses an id for two calls would make clients mix them up.
    pub(crate) id: String,
    /// The tool.
    pub(crate) tool: String,
    /// Its number among all spans and calls of the answer.
    pub(crate) part: u32,
    /// Its number among the calls of the answer.
    pub(crate) index: u32,
    /// The step that it belongs to.
    pub(crate) step: u32,
    /// Its number among the calls of its step.
    pub(crate) number: usize,
}

/// What a chunk changes in the outline.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Change<'a> {
    StepBegan,
    StepEnded,
    SpanBegan(Span),
    /// Never empty.
    SpanGrew(Span, &'a str),
    SpanEnded(Span),
    CallBegan(Arc<Call>),
    /// Never empty.
    CallGrew(Arc<Call>, &'a str),
    /// All of its arguments: nothing of it follows but a result.
    CallEnded(Arc<Call>, String),
    /// The first piece of a result.
    ResultBegan(Arc<Call>, Piece<'a>),
    /// The whole result.
    ResultEnded(Arc<Call>, Whole),
    /// The step, or the answer, ended without a result.
    Unanswered(Arc<Call>),
    /// Metadata that came before the end; never empty.
    Noted(&'a Metadata),
}

/// A piece of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece<'a> {
    pub(crate) text: &'a str,
    pub(crate) is_error: bool,
}

/// A whole result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Whole {
    pub(crate) text: String,
    pub(crate) is_error: bool,
    /// It came in one piece: [`Change::ResultBegan`] had all of it.
    pub(crate) is_one_piece: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Outline {
    message: MessageId,
    step: u32,
    is_step_open: bool,
    /// The step has a result: what the model says next belongs to another one.
    has_results: bool,
    span: Option<Span>,
    /// The calls of the step.
    calls: Vec<OpenCall>,
    result: Option<(Arc<Call>, Whole)>,
    ids: BTreeSet<String>,
    next_part: u32,
    metadata: Metadata,
}

/// A call of the step that is open.
#[derive(Debug)]
struct OpenCall {
    call: Arc<Call>,
    /// The producer's id.
    named: String,
    /// `None` when they have ended.
    arguments: Option<Arguments>,
    has_result: bool,
}

impl Outline {
    pub(crate) fn new(message: MessageId) -> Self {
        Self {
            message,
            step: 0,
            is_step_open: false,
            has_results: false,
            span: None,
            calls: Vec::new(),
            result: None,
            ids: BTreeSet::new(),
            next_part: 0,
            metadata: Metadata::EMPTY,
        }
    }

    /// Metadata of the final chunk; empty before it.
    pub(crate) fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Takes the next chunk.
    pub(crate) fn chunk<'a>(&mut self, chunk: &'a Chunk) -> Vec<Change<'a>> {
        let mut changes = Vec::new();
        match chunk.kind {
            ChunkKind::Content => self.speak(&chunk.text, false, &mut changes),
            ChunkKind::Reasoning => self.speak(&chunk.text, true, &mut changes),
            ChunkKind::ToolCall => self.call(chunk, &mut changes),
            ChunkKind::ToolResult => self.answer(chunk, &mut changes),
            ChunkKind::Metadata if !chunk.is_final && !chunk.metadata.is_empty() => {
                changes.push(Change::Noted(&chunk.metadata));
            }
            // That an error is the end of the answer is the owner's decision, and comes as such.
            ChunkKind::Metadata | ChunkKind::Error => {}
        }
        if chunk.is_final && chunk.kind != ChunkKind::Error {
            self.metadata = chunk.metadata.clone();
            self.close(&mut changes);
        }
        changes
    }

    /// Closes whatever is open.
    pub(crate) fn close(&mut self, changes: &mut Vec<Change<'_>>) {
        self.end_span(changes);
        self.end_result(changes);
        for mut open in std::mem::take(&mut self.calls) {
            open.end_arguments(changes);
            if !open.has_result {
                changes.push(Change::Unanswered(open.call));
            }
        }
        if std::mem::take(&mut self.is_step_open) {
            changes.push(Change::StepEnded);
        }
    }

    fn speak<'a>(&mut self, text: &'a str, is_reasoning: bool, changes: &mut Vec<Change<'a>>) {
        if text.is_empty() {
            // It begins the next step of the history, too, though there is nothing to show of it yet.
            return self.end_step_with_results(changes);
        }
        self.begin_step(changes);
        let span = match self.span.filter(|span| span.is_reasoning == is_reasoning) {
            Some(span) => span,
            None => {
                self.end_span(changes);
                let span = Span { part: self.take_part(), step: self.step, is_reasoning };
                self.span = Some(span);
                changes.push(Change::SpanBegan(span));
                span
            }
        };
        changes.push(Change::SpanGrew(span, text));
    }

    fn call<'a>(&mut self, chunk: &'a Chunk, changes: &mut Vec<Change<'a>>) {
        self.begin_step(changes);
        self.end_span(changes);
        let open = self.open_call(chunk, changes);
        // A producer that adds to what it has ended is not followed: nobody can take the end back.
        let Some(arguments) = &mut open.arguments else { return };
        if !chunk.text.is_empty() {
            arguments.push(&chunk.text);
            changes.push(Change::CallGrew(Arc::clone(&open.call), &chunk.text));
        }
        if arguments.are_whole() || chunk.metadata.get("args_done") == Some(&Value::Bool(true)) {
            open.end_arguments(changes);
        }
    }

    fn answer<'a>(&mut self, chunk: &'a Chunk, changes: &mut Vec<Change<'a>>) {
        self.open_step(changes);
        self.end_span(changes);
        self.has_results = true;
        let named = text_at(chunk, "tool_call_id");
        let is_error = chunk.metadata.get("is_error") == Some(&Value::Bool(true));
        let goes_on = |call: &Arc<Call>| {
            self.calls.iter().any(|open| open.named == named && Arc::ptr_eq(&open.call, call))
        };
        if let Some((_, whole)) = self.result.as_mut().filter(|(call, _)| goes_on(call)) {
            whole.text.push_str(&chunk.text);
            whole.is_error |= is_error;
            whole.is_one_piece = false;
            return;
        }
        self.end_result(changes);
        let open = self.open_call(chunk, changes);
        open.end_arguments(changes);
        open.has_result = true;
        let call = Arc::clone(&open.call);
        changes.push(Change::ResultBegan(Arc::clone(&call), Piece { text: &chunk.text, is_error }));
        self.result = Some((call, Whole { text: chunk.text.to_string(), is_error, is_one_piece: true }));
    }

    /// The model speaks: after a result, in a new step.
    fn begin_step(&mut self, changes: &mut Vec<Change<'_>>) {
        self.end_step_with_results(changes);
        self.open_step(changes);
    }

    fn end_step_with_results(&mut self, changes: &mut Vec<Change<'_>>) {
        if std::mem::take(&mut self.has_results) {
            self.close(changes);
            self.step += 1;
        }
    }

    fn open_step(&mut self, changes: &mut Vec<Change<'_>>) {
        if !std::mem::replace(&mut self.is_step_open, true) {
            changes.push(Change::StepBegan);
        }
    }

    fn end_span(&mut self, changes: &mut Vec<Change<'_>>) {
        changes.extend(self.span.take().map(Change::SpanEnded));
    }

    fn end_result(&mut self, changes: &mut Vec<Change<'_>>) {
        changes.extend(self.result.take().map(|(call, whole)| Change::ResultEnded(call, whole)));
    }

    /// The call of the step that the chunk is about; a result without a call gets one, as in the history.
    fn open_call(&mut self, chunk: &Chunk, changes: &mut Vec<Change<'_>>) -> &mut OpenCall {
        let named = text_at(chunk, "tool_call_id");
        let at = match self.calls.iter().position(|open| open.named == named) {
            Some(at) => at,
            None => {
                let call = Arc::new(self.new_call(named, text_at(chunk, "tool_name")));
                changes.push(Change::CallBegan(Arc::clone(&call)));
                let arguments = Some(Arguments::default());
                self.calls.push(OpenCall { call, named: named.to_owned(), arguments, has_result: false });
                self.calls.len() - 1
            }
        };
        &mut self.calls[at]
    }

    fn new_call(&mut self, named: &str, tool: &str) -> Call {
        let index = self.ids.len() as u32;
        let mut id = match named {
            "" => format!("{}-c{index}", self.message),
            named => named.to_owned(),
        };
        while self.ids.contains(&id) {
            id = format!("{id}-c{index}");
        }
        self.ids.insert(id.clone());
        let tool = if tool.is_empty() { "unknown" } else { tool }.to_owned();
        Call { id, tool, part: self.take_part(), index, step: self.step, number: self.calls.len() }
    }

    fn take_part(&mut self) -> u32 {
        let part = self.next_part;
        self.next_part += 1;
        part
    }
}

impl OpenCall {
    fn end_arguments(&mut self, changes: &mut Vec<Change<'_>>) {
        if let Some(arguments) = self.arguments.take() {
            changes.push(Change::CallEnded(Arc::clone(&self.call), arguments.into_text()));
        }
    }
}

fn text_at<'a>(chunk: &'a Chunk, key: &str) -> &'a str {
    chunk.metadata.get(key).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests;
