//! Inputs on their way to the history.

use crate::{MessageId, Metadata, Timestamp, TurnId};

/// A person's input that is accepted and whose turn is not committed.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenInput {
    pub turn: TurnId,
    /// Run of the turn, which determines the id of the answer.
    pub run: u32,
    pub content: String,
    pub metadata: Metadata,
    /// Time at which the input was accepted.
    pub accepted_at: Timestamp,
}

impl OpenInput {
    /// Id of the answer that the input waits for.
    pub fn answer(&self) -> MessageId {
        self.turn.answer(self.run)
    }

    /// Approximate size in bytes.
    pub fn size(&self) -> usize {
        self.content.len() + self.metadata.size() + 128
    }
}
