//! Converts an answer that exists only in the history back into chunks, so that every protocol can
//! encode it.
//!
//! Entry type: [`StoredAnswer`]. Steps, texts, calls and results equal the original, so objects and
//! messages come out the same. The pieces do not, because the history does not keep them. A client
//! that has part of the answer gets the rest of each text, call and result, in the order of the
//! steps ([`StoredAnswer::rest`]).

use std::sync::Arc;

use model::{AnswerReport, Chunk, ChunkKind, FollowUpHint, Metadata, Position, Role, is_withheld_tool};
use serde_json::{Map, Value, json};

use crate::AnswerEvent;
use crate::cursor::{CallOffset, MessageOffset, MessageProgress};
use crate::withheld;

/// A stored message: of a turn, after its input, or a message without a turn.
#[derive(Debug, Clone, Copy)]
pub struct StoredMessage<'a> {
    /// Assistant or tool.
    pub role: Role,
    /// The text; for a tool message, the result.
    pub content: &'a str,
    /// For an assistant message with calls: `[{"id", "name", "arguments"}]`, with `"result"` in a
    /// message without a turn.
    pub tool_calls: Option<&'a Value>,
    /// For a tool message: the id of the answered call.
    pub tool_call_id: Option<&'a str>,
    pub metadata: &'a Metadata,
}

/// A complete answer.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredAnswer {
    attempt: u32,
    position: Position,
    /// The message is the answer of a turn, and not a message without a turn.
    has_steps: bool,
    steps: Vec<StoredStep>,
    /// Metadata of the final chunk; `None`: the turn was stopped before it.
    metadata: Option<Metadata>,
    /// The whole answer.
    chunks: Vec<Arc<Chunk>>,
    report: AnswerReport,
}

#[derive(Debug, Clone, PartialEq)]
struct StoredStep {
    reasoning: String,
    content: String,
    calls: Vec<StoredCall>,
}

#[derive(Debug, Clone, PartialEq)]
struct StoredCall {
    id: String,
    name: String,
    arguments: String,
    /// The call's arguments and result are hidden from people.
    is_withheld: bool,
    /// The call itself is stored, not only its result.
    is_made: bool,
    result: Option<String>,
    is_error: bool,
}

/// The rest of an answer that a client lacks.
#[derive(Debug, Clone)]
pub struct AnswerRest {
    /// The client's part does not match the answer, which is sent again from its beginning.
    pub is_anew: bool,
    /// Chunks whose ids follow those that the client has.
    pub chunks: Vec<Arc<Chunk>>,
    /// The client's progress, to be advanced with each chunk.
    pub progress: MessageProgress,
}

impl StoredAnswer {
    /// Built from the messages of the turn after its input, in order; unless `has_steps`, from the
    /// one message without a turn. `attempt` and `position` are those of the last message.
    pub fn new<'a>(
        messages: impl IntoIterator<Item = StoredMessage<'a>>,
        has_steps: bool,
        attempt: u32,
        position: Position,
    ) -> Self {
        let (mut steps, mut last) = (Vec::new(), None);
        for message in messages {
            add(&mut steps, &message);
            last = Some((message.role, message.metadata));
        }
        let (role, metadata) = last.unwrap_or((Role::Tool, &Metadata::EMPTY));
        let is_silent = has_steps && steps.last().is_some_and(|step: &StoredStep| step.content.is_empty());
        let report = match role {
            Role::Assistant => AnswerReport::of_stored(metadata),
            Role::User | Role::Tool | Role::System => AnswerReport::default(),
        };
        let metadata = (!has_mark(metadata, "stopped")).then(|| said_with_final(metadata, is_silent));
        let mut answer = Self { attempt, position, has_steps, steps, metadata, chunks: Vec::new(), report };
        answer.chunks =
            answer.after(&MessageOffset::nothing(attempt)).map(|(chunks, _)| chunks).unwrap_or_default();
        answer
    }

    /// Why it ended, and its usage.
    pub fn report(&self) -> &AnswerReport {
        &self.report
    }

    /// The attempt that produced it.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Position of its last message.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Whether its turn was stopped.
    pub fn is_stopped(&self) -> bool {
        self.metadata.is_none()
    }

    /// The events of the answer, in order.
    pub fn events(&self) -> impl Iterator<Item = AnswerEvent<'_>> {
        let attempt = self.attempt;
        let chunks = self.chunks.iter().map(move |chunk| AnswerEvent::Chunk { attempt, chunk });
        let used = self.report.usage.as_deref().map(AnswerEvent::Used);
        let end = match self.is_stopped() {
            true => AnswerEvent::Stopped,
            false => AnswerEvent::Complete { position: self.position },
        };
        std::iter::once(AnswerEvent::Opened).chain(chunks).chain(used).chain([end])
    }

    /// Whether a client can have seen this much. For a stopped answer the client may have seen
    /// more, from an owner that did not store it.
    pub fn has(&self, seen: &MessageOffset) -> bool {
        let text: usize = self.steps.iter().map(|step| step.content.len()).sum();
        let is_within = seen.attempt != self.attempt || seen.bytes <= text as u64;
        seen.is_possible() && (is_within || self.is_stopped())
    }

    /// The part that a client with this offset lacks.
    pub fn rest(&self, seen: &MessageOffset) -> AnswerRest {
        match self.after(seen).filter(|_| seen.attempt == self.attempt) {
            Some((chunks, progress)) => AnswerRest { is_anew: false, chunks, progress },
            None => {
                let progress = MessageProgress::new(self.attempt, self.has_steps);
                AnswerRest { is_anew: seen.next > 0, chunks: self.chunks.clone(), progress }
            }
        }
    }

    /// `None` if the offset does not fit this answer, or is inexact.
    fn after(&self, seen: &MessageOffset) -> Option<(Vec<Arc<Chunk>>, MessageProgress)> {
        let mut writer = ChunkWriter { next: seen.next, chunks: Vec::new() };
        let (mut said, mut thought) = (seen.bytes as usize, seen.reasoning as usize);
        let mut ids = Vec::new();
        if seen.is_inexact || (seen.next > 0 && seen.step as usize >= self.steps.len()) {
            return None;
        }
        for (number, step) in (0_u32..).zip(&self.steps) {
            if number < seen.step {
                said = said.checked_sub(step.content.len())?;
                thought = thought.checked_sub(step.reasoning.len())?;
            } else if number > seen.step || seen.next == 0 {
                writer.step(step);
            } else {
                writer.rest_of_step(step, said, thought, &seen.calls)?;
                ids = step.calls.iter().take(seen.calls.len()).map(|call| call.id.clone()).collect();
            }
        }
        if let Some(metadata) = self.metadata.as_ref().filter(|_| !seen.is_final) {
            writer.push(ChunkKind::Content, "", metadata.clone(), true);
        }
        // A client that has the final chunk lacks nothing.
        let is_a_part = !seen.is_final || writer.chunks.is_empty();
        is_a_part.then(|| (writer.chunks, MessageProgress::going_on(seen.clone(), ids, self.has_steps)))
    }
}

fn add(steps: &mut Vec<StoredStep>, message: &StoredMessage<'_>) {
    if message.role == Role::Tool {
        // The entry that closes a call without a result is not a result.
        if has_mark(message.metadata, "missing") || has_mark(message.metadata, "stopped") {
            return;
        }
        if steps.is_empty() {
            steps.push(StoredStep { reasoning: String::new(), content: String::new(), calls: Vec::new() });
        }
        let Some(step) = steps.last_mut() else { return };
        let (id, result) = (message.tool_call_id.unwrap_or_default(), Some(message.content.to_owned()));
        let is_error = has_mark(message.metadata, "is_error");
        match step.calls.iter_mut().find(|call| call.id == id && call.result.is_none()) {
            Some(call) => (call.result, call.is_error) = (result, is_error),
            None => {
                let name = message.metadata.get("tool_name").and_then(Value::as_str).unwrap_or_default();
                let (id, name, arguments) = (id.to_owned(), name.to_owned(), String::new());
                let is_withheld = is_withheld_tool(&name);
                step.calls.push(StoredCall {
                    id,
                    name,
                    arguments,
                    is_withheld,
                    is_made: false,
                    result,
                    is_error,
                });
            }
        }
        return;
    }
    let calls = message.tool_calls.and_then(Value::as_array).into_iter().flatten().map(|call| {
        let text = |key: &str| call.get(key).and_then(Value::as_str);
        StoredCall {
            id: text("id").unwrap_or_default().to_owned(),
            is_withheld: is_withheld_tool(text("name").unwrap_or_default()),
            name: text("name").unwrap_or_default().to_owned(),
            arguments: text("arguments").unwrap_or_default().to_owned(),
            is_made: true,
            result: text("result").map(str::to_owned),
            is_error: false,
        }
    });
    let reasoning = message.metadata.get("reasoning").and_then(Value::as_str).unwrap_or_default();
    let content = message.content.to_owned();
    steps.push(StoredStep { reasoning: reasoning.to_owned(), content, calls: calls.collect() });
}

struct ChunkWriter {
    next: u32,
    chunks: Vec<Arc<Chunk>>,
}

impl ChunkWriter {
    fn step(&mut self, step: &StoredStep) {
        if !step.reasoning.is_empty() {
            self.push(ChunkKind::Reasoning, &step.reasoning, Metadata::EMPTY, false);
        }
        // An empty text begins its step, too.
        self.push(ChunkKind::Content, &step.content, Metadata::EMPTY, false);
        step.calls.iter().for_each(|call| self.call(call));
        step.calls.iter().for_each(|call| self.result(call, 0));
    }

    /// The chunks after these numbers of bytes of text and reasoning, and of these calls.
    fn rest_of_step(
        &mut self,
        step: &StoredStep,
        said: usize,
        thought: usize,
        calls: &[CallOffset],
    ) -> Option<()> {
        let (content, reasoning) = (step.content.get(said..)?, step.reasoning.get(thought..)?);
        let (begun, others) = step.calls.split_at_checked(calls.len())?;
        let arguments = |(call, seen): (&StoredCall, &CallOffset)| {
            !call.is_withheld && call.arguments.len() > seen.arguments as usize
        };
        let lacks_calls = !others.is_empty() || begun.iter().zip(calls).any(arguments);
        let has_results = calls.iter().any(|call| call.result.is_some());
        // Output after a result would begin the next step.
        if has_results && (lacks_calls || !content.is_empty() || !reasoning.is_empty()) {
            return None;
        }
        if !reasoning.is_empty() {
            self.push(ChunkKind::Reasoning, reasoning, Metadata::EMPTY, false);
        }
        if !content.is_empty() {
            self.push(ChunkKind::Content, content, Metadata::EMPTY, false);
        }
        for (call, seen) in begun.iter().zip(calls).filter(|(call, _)| !call.is_withheld) {
            let arguments = call.arguments.get(seen.arguments as usize..)?;
            if !arguments.is_empty() {
                self.push(ChunkKind::ToolCall, arguments, call.metadata(), false);
            }
        }
        others.iter().for_each(|call| self.call(call));
        for (call, seen) in begun.iter().zip(calls) {
            match (seen.result, &call.result) {
                (None, _) => self.result(call, 0),
                // The first piece of a withheld result was shown as the whole result.
                (Some(_), Some(_)) if call.is_withheld => {}
                (Some(seen), Some(result)) if seen as usize == result.len() => {}
                (Some(seen), Some(result)) => {
                    result.get(seen as usize..)?;
                    self.result(call, seen as usize);
                }
                (Some(_), None) => return None,
            }
        }
        others.iter().for_each(|call| self.result(call, 0));
        Some(())
    }

    fn call(&mut self, call: &StoredCall) {
        if !call.is_made {
            return;
        }
        let arguments = if call.is_withheld { withheld::ARGUMENTS } else { &call.arguments };
        self.push(ChunkKind::ToolCall, arguments, call.metadata(), false);
    }

    fn result(&mut self, call: &StoredCall, from: usize) {
        if let Some(result) = &call.result {
            let mut metadata = json!({"tool_call_id": call.id});
            if !call.is_made && !call.name.is_empty() {
                metadata["tool_name"] = call.name.as_str().into();
            }
            if call.is_error {
                metadata["is_error"] = true.into();
            }
            let text = if call.is_withheld { withheld::result_of(&call.name) } else { &result[from..] };
            self.push(ChunkKind::ToolResult, text, fields(metadata), false);
        }
    }

    fn push(&mut self, kind: ChunkKind, text: &str, metadata: Metadata, is_final: bool) {
        self.chunks.push(Arc::new(Chunk { kind, metadata, ..Chunk::content(self.next, text, is_final) }));
        self.next += 1;
    }
}

impl StoredCall {
    fn metadata(&self) -> Metadata {
        fields(json!({"tool_call_id": self.id, "tool_name": self.name}))
    }
}

/// The final chunk's metadata without `reasoning`, which was already sent, and without `missing`,
/// which the producer did not write.
fn said_with_final(metadata: &Metadata, is_silent: bool) -> Metadata {
    let mut map = FollowUpHint::hidden_in(metadata).as_map().cloned().unwrap_or_default();
    map.remove("reasoning");
    if is_silent {
        map.remove("missing");
    }
    Metadata::new(map).unwrap_or_default()
}

fn fields(fields: Value) -> Metadata {
    let map = if let Value::Object(map) = fields { map } else { Map::new() };
    Metadata::new(map).unwrap_or_default()
}

fn has_mark(metadata: &Metadata, mark: &str) -> bool {
    metadata.get(mark) == Some(&Value::Bool(true))
}
