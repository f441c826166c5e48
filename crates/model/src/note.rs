//! Notes: texts that an operator or another agent adds to a thread outside its turns.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::metadata::InvalidMetadata;
use crate::{Chunk, Frame, IncomingChunk, MessageId, Metadata, Role, ThreadId};

/// Metadata key; `true` marks a message as a note.
const NOTE: &str = "note";
/// Metadata key of a note's author.
const AUTHOR: &str = "author";
/// Metadata key of a note on `messages.<thread>`; `true`: only models read it.
const HIDDEN: &str = "hidden";

/// A text that an operator or another agent adds to a thread. It is a message and batch of its own,
/// and is in the context of the next turn.
#[derive(Debug, Clone, PartialEq)]
pub struct Note {
    pub thread: ThreadId,
    /// Message id: a repeated note with the same id is the same note.
    pub message: MessageId,
    pub content: String,
    pub author: Box<str>,
    /// True if only models read it: no stream shows it, and histories show it only with other
    /// system messages (`synthetic=true`).
    pub is_hidden: bool,
}

impl Note {
    /// The complete message of the note.
    ///
    /// # Errors
    /// The author's name has a character that cannot be stored.
    pub fn into_frame(self) -> Result<Frame, InvalidMetadata> {
        let mut map = Map::from_iter([(NOTE.to_owned(), Value::Bool(true))]);
        if !self.author.is_empty() {
            map.insert(AUTHOR.to_owned(), String::from(self.author).into());
        }
        let metadata = Metadata::new(map)?;
        let metadata = if self.is_hidden { metadata.hidden() } else { metadata };
        let chunk = Chunk { metadata, ..Chunk::content(0, &self.content, true) };
        let arrival = IncomingChunk {
            message: self.message,
            attempt: 0,
            step: 0,
            role: Role::System,
            chunk: Arc::new(chunk),
        };
        Ok(Frame { thread: self.thread, chunks: vec![arrival], token: None })
    }
}

impl Metadata {
    /// True for a note. Only the boolean `true` counts.
    pub fn is_note(&self) -> bool {
        self.get(NOTE) == Some(&Value::Bool(true))
    }

    pub fn note_author(&self) -> Option<&str> {
        self.get(AUTHOR).and_then(Value::as_str)
    }

    /// True if the publisher of the note wants only models to read it.
    pub fn is_note_to_hide(&self) -> bool {
        self.is_note() && self.get(HIDDEN) == Some(&Value::Bool(true))
    }

    /// Metadata of a note that only models read.
    #[must_use]
    pub fn hidden(self) -> Self {
        self.with_synthetic()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_note_is_one_message_of_one_chunk() {
        let note = |is_hidden| Note {
            thread: ThreadId::parse("t").unwrap(),
            message: MessageId::parse("n").unwrap(),
            content: "Mind the gap.".to_owned(),
            author: "ann".into(),
            is_hidden,
        };
        for (is_hidden, metadata) in [
            (false, json!({"note": true, "author": "ann"})),
            (true, json!({"note": true, "author": "ann", "synthetic": true})),
        ] {
            let frame = note(is_hidden).into_frame().unwrap();
            let [arrival] = &frame.chunks[..] else { panic!("{frame:?}") };
            assert_eq!((arrival.role, arrival.chunk.id, arrival.chunk.is_final), (Role::System, 0, true));
            assert_eq!(arrival.chunk.metadata.to_value(), metadata);
            assert!(arrival.chunk.metadata.is_note());
            assert_eq!(arrival.chunk.metadata.note_author(), Some("ann"));
        }
        assert!(Note { author: "a\0".into(), ..note(false) }.into_frame().is_err());
    }
}
