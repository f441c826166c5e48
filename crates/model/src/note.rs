//! Notes: texts that an operator or another agent puts into a thread beside its turns.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::metadata::InvalidMetadata;
use crate::{Chunk, Frame, IncomingChunk, MessageId, Metadata, Role, ThreadId};

/// In the metadata of a message, as `true`: it is a note.
const NOTE: &str = "note";
/// In the metadata of a note: who wrote it.
const AUTHOR: &str = "author";
/// In the metadata of a note on `messages.<thread>`, as `true`: only models read it.
const HIDDEN: &str = "hidden";

/// A text that an operator or another agent puts into a thread. It is a message and a batch of its own, and in the context of the next turn.
#[derive(Debug, Clone, PartialEq)]
pub struct Note {
    /// The thread.
    pub thread: ThreadId,
    /// Its message: the same again is the same note.
    pub message: MessageId,
    /// What it says.
    pub content: String,
    /// Who wrote it.
    pub author: Box<str>,
    /// Only models read it: no stream shows it, and histories only with what the system made up (`synthetic=true`).
    pub is_hidden: bool,
}

impl Note {
    /// The message that it is, whole.
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
    /// Whether the message is a note. Only the boolean `true` says so.
    pub fn is_note(&self) -> bool {
        self.get(NOTE) == Some(&Value::Bool(true))
    }

    /// Who wrote the note.
    pub fn note_author(&self) -> Option<&str> {
        self.get(AUTHOR).and_then(Value::as_str)
    }

    /// Whether a publisher of the note wants that only models read it.
    pub fn is_note_to_hide(&self) -> bool {
        self.is_note() && self.get(HIDDEN) == Some(&Value::Bool(true))
    }

    /// The metadata of a note that only models read.
    #[must_use]
    pub fn hidden(self) -> Self {
        let mut map = self.as_map().cloned().unwrap_or_default();
        map.insert("synthetic".to_owned(), Value::Bool(true));
        // A key and a mark, which are valid.
        Self::new(map).unwrap_or(self)
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
