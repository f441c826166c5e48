//! A commit as a value: what one partition wants written, whole or not at all.

use std::sync::Arc;

use model::{Chunk, DeadLetter, Message, MessageKey, PartitionId, Role, Seq, Timestamp};

/// Everything that one partition writes in one transaction, under the epoch of its lease.
///
/// Storing it is one call; what it decides can be tested without a database. Applying the same commit twice has the
/// effect of applying it once: messages and dead letters have unique keys, the rest is absolute.
#[derive(Debug, Clone, PartialEq)]
pub struct Commit {
    /// The partition.
    pub partition: PartitionId,
    /// The epoch under which it was decided; the store refuses it under any other.
    pub epoch: u64,
    /// Complete messages in the order of their positions.
    pub messages: Vec<Message>,
    /// Inputs given up on.
    pub dead_letters: Vec<DeadLetter>,
    /// What is saved of messages that have been open for long, so that the checkpoint can pass them.
    pub stragglers: Vec<StragglerSave>,
    /// Messages that were saved as stragglers and have ended with this commit: their saved chunks go.
    pub ended_stragglers: Vec<MessageKey>,
    /// Nothing at or below this sequence is needed again once the commit is applied.
    pub checkpoint: Seq,
    /// The highest millisecond used in a position; the next owner starts above it.
    pub position_high_water: Timestamp,
}

impl Commit {
    /// Number of finished inputs in it.
    pub fn turns(&self) -> usize {
        self.messages.len() + self.dead_letters.len()
    }

    /// Approximate size in bytes of what is written.
    pub fn size(&self) -> usize {
        self.messages.iter().map(Message::size).sum::<usize>()
            + self.dead_letters.iter().map(DeadLetter::size).sum::<usize>()
            + self
                .stragglers
                .iter()
                .flat_map(|save| &save.chunks)
                .map(|chunk| chunk.size() + 64)
                .sum::<usize>()
    }
}

/// A part of an open message that is saved: the chunks accepted since the last save, in the order of arrival.
///
/// Ages and not instants are kept, so that clocks of different machines do not matter.
#[derive(Debug, Clone, PartialEq)]
pub struct StragglerSave {
    /// Which message.
    pub key: MessageKey,
    /// Its attempt; saved chunks of lower attempts go.
    pub attempt: u32,
    /// Who speaks.
    pub role: Role,
    /// The first entry of the message, for the dead letter that it may become.
    pub first_seq: Seq,
    /// For how long it has been open, ms.
    pub open_ms: i64,
    /// For how long the oldest gap has been open, ms; `None` without a gap.
    pub gap_ms: Option<i64>,
    /// For how long no chunk has come, ms.
    pub idle_ms: i64,
    /// Chunks accepted since the last save.
    pub chunks: Vec<Arc<Chunk>>,
}

/// A straggler as the store gives it back: all chunks of the highest attempt, in the order they were saved.
pub type Straggler = StragglerSave;

/// What a new owner starts from.
#[derive(Debug, Clone, PartialEq)]
pub struct Takeover {
    /// The partition.
    pub partition: PartitionId,
    /// The epoch of the new lease.
    pub epoch: u64,
    /// Everything up to here has been used.
    pub checkpoint: Seq,
    /// See [`Commit::position_high_water`].
    pub position_high_water: Timestamp,
    /// Messages that are open and saved.
    pub stragglers: Vec<Straggler>,
}

/// What the store knows of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// Neither persisted nor failed.
    Absent,
    /// Persisted, or failed and kept as a dead letter.
    Ended,
    /// Its thread does not exist, and chunks may not create threads.
    NoThread,
}
