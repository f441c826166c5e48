//! Event ids of the native stream: how far a client has read, as a value that any gateway can continue from.
//!
//! ```text
//! <base> ( "~" <message> "." <attempt> "." <next> "." <bytes> )* ( "~" <message> )*
//! 7263004410880000~answer-7.0.12.480~answer-6
//! ```
//!
//! - `base`: every message of the thread that is committed at this position or below is behind the client.
//! - a message with three numbers is open for the client: of this attempt it has seen the chunks below `next`, and
//!   with them `bytes` bytes (UTF-8) of the message's text. The second figure continues a message from Postgres,
//!   which keeps the text and not its chunks.
//! - a bare message has ended for the client, beyond the base.
//!
//! A plain position is a cursor too: `?after=<position of the last message in the history>`. Numbers are decimal.
//! A cursor holds positions, never clocks or sequence numbers of a gateway, and only characters that a URL and
//! a header take as they are.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use model::{Chunk, ChunkKind, MessageId, Position};

/// Most messages that may be open in one cursor.
pub const MAX_OPEN: usize = 64;
/// Most ended messages that a cursor names; beyond it the oldest one moves the base.
pub const MAX_ENDED: usize = 32;
/// Most failed messages among them: no position ever passes those, and only the latest can still be told again.
const MAX_FAILED: usize = 4;
/// Longest text that is read as a cursor, in bytes.
pub const MAX_LEN: usize = 20 * 1024;

/// How much of an open message a client has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seen {
    /// The attempt.
    pub attempt: u32,
    /// Chunks below this id.
    pub next: u32,
    /// Bytes of text in them.
    pub bytes: u64,
}

impl Seen {
    /// Takes `chunk` as shown.
    pub fn advance(&mut self, chunk: &Chunk) {
        self.next = chunk.id + 1;
        if chunk.kind == ChunkKind::Content {
            self.bytes += chunk.text.len() as u64;
        }
    }
}

/// Where a client stands in a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    base: Position,
    open: BTreeMap<MessageId, Seen>,
    ended: VecDeque<(MessageId, Ended)>,
}

/// What is known of a message that a cursor names as ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    At(Position),
    Failed,
    /// Read from text.
    Unknown,
}

/// Text that is not a cursor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCursor {
    /// Longer than [`MAX_LEN`].
    #[error("the cursor has {0} bytes; at most {MAX_LEN} are allowed")]
    TooLong(usize),
    /// The part before the first `~` is no position.
    #[error("the cursor must begin with a position, a whole number from 0 to 2^63-1")]
    Base,
    /// An entry that is neither `message` nor `message.attempt.next.bytes`.
    #[error("entry {0} of the cursor is neither a message nor message.attempt.next.bytes")]
    Entry(usize),
    /// More entries than a cursor may have, or one message twice.
    #[error("the cursor names too many messages, or one of them twice")]
    Entries,
}

impl Cursor {
    /// A client that has everything up to `base` and nothing beyond.
    pub fn at(base: Position) -> Self {
        Self { base, open: BTreeMap::new(), ended: VecDeque::new() }
    }

    /// Reads an event id.
    ///
    /// # Errors
    /// The text is not of the form that the module describes.
    pub fn parse(text: &str) -> Result<Self, InvalidCursor> {
        if text.len() > MAX_LEN {
            return Err(InvalidCursor::TooLong(text.len()));
        }
        let mut parts = text.split('~');
        let base = parts.next().and_then(number::<i64>).ok_or(InvalidCursor::Base)?;
        let mut cursor = Self::at(Position::from_stored(base));
        for (index, part) in parts.enumerate() {
            cursor.parse_entry(part).ok_or(InvalidCursor::Entry(index + 1))??;
        }
        Ok(cursor)
    }

    fn parse_entry(&mut self, text: &str) -> Option<Result<(), InvalidCursor>> {
        let mut fields = text.split('.');
        let message = MessageId::parse(fields.next()?).ok()?;
        let seen = match (fields.next(), fields.next(), fields.next(), fields.next()) {
            (None, ..) => None,
            (Some(attempt), Some(next), Some(bytes), None) => {
                Some(Seen { attempt: number(attempt)?, next: number(next)?, bytes: number(bytes)? })
            }
            _ => return None,
        };
        let known = self.open.contains_key(&message) || self.has_ended(&message);
        if known || self.open.len() > MAX_OPEN || self.ended.len() > MAX_ENDED {
            return Some(Err(InvalidCursor::Entries));
        }
        match seen {
            Some(seen) => drop(self.open.insert(message, seen)),
            None => self.ended.push_back((message, Ended::Unknown)),
        }
        Some(Ok(()))
    }

    /// Everything at or below is behind the client.
    pub fn base(&self) -> Position {
        self.base
    }

    /// What the client has seen of an open message.
    pub fn seen(&self, message: &MessageId) -> Option<Seen> {
        self.open.get(message).copied()
    }

    /// The messages that are open for the client.
    pub fn open(&self) -> impl Iterator<Item = (&MessageId, Seen)> {
        self.open.iter().map(|(message, seen)| (message, *seen))
    }

    /// The messages beyond the base that have ended for the client.
    pub fn ended(&self) -> impl Iterator<Item = &MessageId> {
        self.ended.iter().map(|(message, _)| message)
    }

    /// True when the message is named as ended. One at or below the base is not named.
    pub fn has_ended(&self, message: &MessageId) -> bool {
        self.ended.iter().any(|(ended, _)| ended == message)
    }

    /// Sets how much of a message has been shown.
    pub fn set(&mut self, message: &MessageId, seen: Seen) {
        match self.open.get_mut(message) {
            Some(known) => *known = seen,
            None => drop(self.open.insert(message.clone(), seen)),
        }
    }

    /// The client has nothing of this message.
    pub fn forget(&mut self, message: &MessageId) {
        self.open.remove(message);
    }

    /// The message has ended for the client; at `position` when it is committed.
    pub fn end(&mut self, message: &MessageId, position: Option<Position>) {
        self.open.remove(message);
        if position.is_some_and(|position| position <= self.base) || self.has_ended(message) {
            return;
        }
        self.ended.push_back((message.clone(), position.map_or(Ended::Failed, Ended::At)));
        let is_failed = |(_, ended): &(MessageId, Ended)| *ended == Ended::Failed;
        if position.is_none() && self.ended.iter().filter(|ended| is_failed(ended)).count() > MAX_FAILED {
            self.ended.iter().position(is_failed).map(|oldest| self.ended.remove(oldest));
        }
        if self.ended.len() > MAX_ENDED
            && let Some((_, Ended::At(position))) = self.ended.pop_front()
        {
            self.advance(position);
        }
    }

    /// Everything at or below `base` is behind the client now.
    pub fn advance(&mut self, base: Position) {
        self.base = self.base.max(base);
        let base = self.base;
        self.ended.retain(|(_, ended)| !matches!(ended, Ended::At(position) if *position <= base));
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.base.fmt(f)?;
        for (message, seen) in &self.open {
            write!(f, "~{message}.{}.{}.{}", seen.attempt, seen.next, seen.bytes)?;
        }
        self.ended.iter().try_for_each(|(message, _)| write!(f, "~{message}"))
    }
}

/// Decimal digits only: `parse` alone would take a sign.
fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests;
