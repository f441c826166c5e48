//! Event ids of the native stream: a client's reading position, from which any gateway can
//! continue.
//!
//! ```text
//! <base> ( "~" <message> "." <attempt> "." <next> "." <bytes> [ "." <reasoning> "." <step> ( "." <call> )* ] [ ".x" ] [ ".f" ] [ ".i" | ".w" ] )*
//! <call> = <arguments> [ "-" <result> ]
//! 7263004410880000~answer-7.0.12.480~answer-8.1.9.33.120.2.14-0
//! ```
//!
//! - `base`: the position of the newest message whose end the client has seen; the client has all
//!   ends up to it. It rises with every end, so no id occurs twice.
//! - each message after it is open for the client, which has seen the chunks below `next` of this
//!   attempt, with `bytes` bytes (UTF-8) of text. If there was more than text, `reasoning` counts
//!   the bytes of reasoning, and `step` is the current step of the turn. Each `call` of that step
//!   has the bytes of its arguments and result. `f`: the final chunk was seen; `x`: there are more
//!   calls than listed; `i`: the input that the message answers was seen; `w`: and was withdrawn.
//!   The chunks are deleted with the commit; with these figures the rest of a message is read from
//!   Postgres.
//!
//! A plain position is a cursor too: `?after=<position of the last message in the history>`.
//! Numbers are decimal. A cursor contains positions but no clocks or sequence numbers of a gateway,
//! and only characters that need no escaping in a URL or a header.

use std::collections::BTreeMap;
use std::fmt;

use model::{Chunk, ChunkKind, MAX_CHUNK_ID, MessageId, Position};
use serde_json::Value;

/// Maximum number of open messages in a cursor.
pub const MAX_OPEN: usize = 64;
/// Maximum number of calls of one step in a cursor.
const MAX_CALLS: usize = 8;
/// Maximum length of a cursor's text in bytes.
pub const MAX_LEN: usize = 20 * 1024;

/// How much of an open message a client has seen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MessageOffset {
    pub attempt: u32,
    /// Chunks below this id were seen.
    pub next: u32,
    /// Bytes of text in them.
    pub bytes: u64,
    /// Bytes of reasoning in them.
    pub reasoning: u64,
    /// Step of the turn of the last of them.
    pub step: u32,
    /// The calls of that step, in the order in which they began.
    pub calls: Vec<CallOffset>,
    /// There were more calls than a cursor can list.
    pub is_inexact: bool,
    /// The final chunk was seen.
    pub is_final: bool,
}

/// How much of a call a client has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallOffset {
    /// Bytes of its arguments.
    pub arguments: u64,
    /// Bytes of its result; `None` while there is none.
    pub result: Option<u64>,
}

impl MessageOffset {
    /// The offset of a client that has seen nothing of an attempt.
    pub fn nothing(attempt: u32) -> Self {
        Self { attempt, ..Self::default() }
    }

    /// Whether the chunks of a message can lead to this offset.
    pub fn is_possible(&self) -> bool {
        self.next <= MAX_CHUNK_ID + 1
    }
}

/// The [`MessageOffset`] of a message while its chunks are shown one after another.
#[derive(Debug, Clone)]
pub struct MessageProgress {
    seen: MessageOffset,
    /// Ids of the step's calls.
    ids: Vec<String>,
    has_steps: bool,
}

impl MessageProgress {
    /// The start of an attempt. `has_steps`: the message is the answer of a turn, in which the
    /// first text, reasoning or call after a result begins a step.
    pub fn new(attempt: u32, has_steps: bool) -> Self {
        Self { seen: MessageOffset::nothing(attempt), ids: Vec::new(), has_steps }
    }

    /// Continues from an offset; `ids` are those of the step's calls.
    pub(crate) fn going_on(seen: MessageOffset, ids: Vec<String>, has_steps: bool) -> Self {
        Self { seen, ids, has_steps }
    }

    /// How much was shown.
    pub fn seen(&self) -> &MessageOffset {
        &self.seen
    }

    /// Counts the next chunk as shown.
    pub fn advance(&mut self, chunk: &Chunk) {
        let seen = &mut self.seen;
        seen.next = chunk.id + 1;
        seen.is_final |= chunk.is_final;
        let bytes = chunk.text.len() as u64;
        let speaks = matches!(chunk.kind, ChunkKind::Content | ChunkKind::Reasoning | ChunkKind::ToolCall);
        if speaks && self.has_steps && seen.calls.iter().any(|call| call.result.is_some()) {
            seen.step += 1;
            seen.calls.clear();
            seen.is_inexact = false;
            self.ids.clear();
        }
        match chunk.kind {
            ChunkKind::Content => seen.bytes += bytes,
            ChunkKind::Reasoning => seen.reasoning += bytes,
            ChunkKind::ToolCall => {
                if let Some(call) = self.call(chunk) {
                    call.arguments += bytes;
                }
            }
            ChunkKind::ToolResult => {
                if let Some(call) = self.call(chunk) {
                    *call.result.get_or_insert_default() += bytes;
                }
            }
            ChunkKind::Metadata | ChunkKind::Error => {}
        }
    }

    fn call(&mut self, chunk: &Chunk) -> Option<&mut CallOffset> {
        let id = chunk.metadata.get("tool_call_id").and_then(Value::as_str).unwrap_or_default();
        let known = self.ids.iter().position(|known| known == id);
        if known.is_none() && self.ids.len() == MAX_CALLS {
            self.seen.is_inexact = true;
            return None;
        }
        let index = known.unwrap_or_else(|| {
            self.ids.push(id.to_owned());
            self.seen.calls.push(CallOffset::default());
            self.ids.len() - 1
        });
        self.seen.calls.get_mut(index)
    }
}

/// A client's reading position in a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    base: Position,
    open: BTreeMap<MessageId, MessageOffset>,
    /// Inputs that the client has seen, by the ids of the open messages that answer them.
    inputs: BTreeMap<MessageId, InputMark>,
}

/// What a client has seen of the input that a message answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputMark {
    Shown,
    /// The input, and that it was withdrawn.
    Withdrawn,
}

/// Why a text is not a cursor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCursor {
    /// Longer than [`MAX_LEN`].
    #[error("the cursor has {0} bytes; at most {MAX_LEN} are allowed")]
    TooLong(usize),
    /// The part before the first `~` is not a position.
    #[error("the cursor must begin with a position, a whole number from 0 to 2^63-1")]
    Base,
    /// The entry with this index does not have the form that the module describes.
    #[error("entry {0} of the cursor is not message.attempt.next.bytes")]
    Entry(usize),
    /// There are too many entries, or one message twice.
    #[error("the cursor names too many messages, or one of them twice")]
    Entries,
}

impl Cursor {
    /// A client that has everything up to `base` and nothing beyond.
    pub fn at(base: Position) -> Self {
        Self { base, open: BTreeMap::new(), inputs: BTreeMap::new() }
    }

    /// Parses an event id.
    ///
    /// # Errors
    /// The text does not have the form that the module describes.
    pub fn parse(text: &str) -> Result<Self, InvalidCursor> {
        if text.len() > MAX_LEN {
            return Err(InvalidCursor::TooLong(text.len()));
        }
        let mut parts = text.split('~');
        let base = parts.next().and_then(number::<i64>).ok_or(InvalidCursor::Base)?;
        let mut cursor = Self::at(Position::from_stored(base));
        for (index, part) in parts.enumerate() {
            let (message, seen, input) = entry(part).ok_or(InvalidCursor::Entry(index + 1))?;
            cursor.inputs.extend(input.map(|input| (message.clone(), input)));
            if cursor.open.len() == MAX_OPEN || cursor.open.insert(message, seen).is_some() {
                return Err(InvalidCursor::Entries);
            }
        }
        Ok(cursor)
    }

    /// The client has all messages that ended at or below this position.
    pub fn base(&self) -> Position {
        self.base
    }

    /// How much of an open message the client has seen.
    pub fn seen(&self, message: &MessageId) -> Option<&MessageOffset> {
        self.open.get(message)
    }

    /// The messages that are open for the client.
    pub fn open(&self) -> impl Iterator<Item = (&MessageId, &MessageOffset)> {
        self.open.iter()
    }

    /// Sets how much of a message was shown.
    pub fn set(&mut self, message: &MessageId, seen: MessageOffset) {
        match self.open.get_mut(message) {
            Some(known) => *known = seen,
            None => drop(self.open.insert(message.clone(), seen)),
        }
    }

    /// What the client has seen of the input that a message answers.
    pub fn input(&self, message: &MessageId) -> Option<InputMark> {
        self.inputs.get(message).copied()
    }

    /// Sets what was shown of the input that a message answers.
    pub fn set_input(&mut self, message: &MessageId, mark: InputMark) {
        self.open.entry(message.clone()).or_default();
        self.inputs.insert(message.clone(), mark);
    }

    /// The client has discarded this message.
    pub fn forget(&mut self, message: &MessageId) {
        self.inputs.remove(message);
        self.open.remove(message);
    }

    /// Advances the base: nothing ended in between.
    pub fn pass(&mut self, position: Position) {
        self.base = self.base.max(position);
    }

    /// Ends the message for the client, at `position`.
    pub fn end(&mut self, message: &MessageId, position: Position) {
        self.forget(message);
        self.base = self.base.max(position);
    }
}

fn entry(text: &str) -> Option<(MessageId, MessageOffset, Option<InputMark>)> {
    let mut fields = text.split('.').peekable();
    let message = MessageId::parse(fields.next()?).ok()?;
    let mut seen = MessageOffset::nothing(number(fields.next()?)?);
    (seen.next, seen.bytes) = (number(fields.next()?)?, number(fields.next()?)?);
    let is_mark = |field: &&str| matches!(*field, "f" | "x" | "i" | "w");
    if fields.peek().is_some_and(|field| !is_mark(field)) {
        (seen.reasoning, seen.step) = (number(fields.next()?)?, number(fields.next()?)?);
        while let Some(field) = fields.next_if(|field| !is_mark(field)) {
            seen.calls.push(call(field)?);
        }
    }
    seen.is_inexact = fields.next_if(|field| *field == "x").is_some();
    seen.is_final = fields.next_if(|field| *field == "f").is_some();
    let input = match fields.next_if(|field| matches!(*field, "i" | "w")) {
        Some("i") => Some(InputMark::Shown),
        Some(_) => Some(InputMark::Withdrawn),
        None => None,
    };
    (fields.next().is_none() && seen.calls.len() <= MAX_CALLS).then_some((message, seen, input))
}

fn call(text: &str) -> Option<CallOffset> {
    Some(match text.split_once('-') {
        Some((arguments, result)) => {
            CallOffset { arguments: number(arguments)?, result: Some(number(result)?) }
        }
        None => CallOffset { arguments: number(text)?, result: None },
    })
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.base.fmt(f)?;
        for (message, seen) in &self.open {
            write!(f, "~{message}.{}.{}.{}", seen.attempt, seen.next, seen.bytes)?;
            if seen.reasoning > 0 || seen.step > 0 || !seen.calls.is_empty() {
                write!(f, ".{}.{}", seen.reasoning, seen.step)?;
                for call in &seen.calls {
                    write!(f, ".{}", call.arguments)?;
                    call.result.map_or(Ok(()), |result| write!(f, "-{result}"))?;
                }
            }
            f.write_str(if seen.is_inexact { ".x" } else { "" })?;
            f.write_str(if seen.is_final { ".f" } else { "" })?;
            f.write_str(match self.inputs.get(message) {
                Some(InputMark::Shown) => ".i",
                Some(InputMark::Withdrawn) => ".w",
                None => "",
            })?;
        }
        Ok(())
    }
}

/// Accepts decimal digits only: `parse` alone would accept a sign.
fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests;
