//! What is compared: what was published, what is stored, what clients saw.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use model::{Chunk, MessageId, MessageKey, Metadata, PartitionId, Role, ThreadId};

/// Everything that is compared.
#[derive(Debug, Clone, Default)]
pub struct Evidence {
    /// What may be expected.
    pub rules: Rules,
    /// What the stream holds, in the order of the stream for each partition.
    pub ledger: Vec<Publish>,
    /// The stored messages, for each thread in the order of their commits.
    pub messages: Vec<MessageRow>,
    /// The stored dead letters.
    pub dead_letters: Vec<DeadLetterRow>,
    /// Messages whose ends clients are sent, with their positions; empty when they are unknown.
    pub ends: Vec<(MessageKey, i64)>,
    /// What clients saw.
    pub transcripts: Vec<Transcript>,
    /// Every epoch in the order in which it was granted.
    pub grants: Vec<(PartitionId, u64)>,
}

/// What may be expected of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Every process had the time to finish: what has not ended is lost.
    pub is_settled: bool,
    /// A message whose gaps were never open for longer, ms, may not fail for a gap.
    pub gap_safe_ms: i64,
    /// A message that was never silent for longer, ms, may not fail as stalled.
    pub stall_safe_ms: i64,
    /// Chunk ids from this number on are too many.
    pub chunks_per_message: u32,
    /// Threads that do not exist and may not be created by chunks.
    pub missing_threads: BTreeSet<ThreadId>,
    /// Messages that the store refuses to look up.
    pub refused_messages: BTreeSet<MessageKey>,
    /// The store of these went back in time: what clients and others saw of them may have been undone and done again.
    pub stepped_back: BTreeSet<PartitionId>,
    /// The streams of these have lost entries.
    pub parted: BTreeSet<PartitionId>,
    /// Messages whose chunks were lost before they were stored: they may fail, be incomplete, or not be there.
    pub lost: BTreeSet<MessageKey>,
    /// These threads were erased at some time: what was published for them need not end.
    pub erased: BTreeSet<ThreadId>,
    /// Batches that were deleted because they were old: a turn that was to go on with one is a batch of its own.
    pub retired: BTreeSet<(ThreadId, i64)>,
    /// A gateway was given a cut of these threads that left out open messages: it may start one of them again.
    pub left_out: BTreeSet<ThreadId>,
    /// Payloads that cannot be decoded, and that went with them.
    pub erased_garbage: BTreeSet<Bytes>,
}

impl Rules {
    /// The store or the stream of the partition is not what it was: what was seen of it may not be so any more.
    pub fn went_back(&self, partition: PartitionId) -> bool {
        self.stepped_back.contains(&partition) || self.parted.contains(&partition)
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            is_settled: true,
            gap_safe_ms: 15_000,
            stall_safe_ms: 150_000,
            chunks_per_message: 10_000,
            missing_threads: BTreeSet::new(),
            refused_messages: BTreeSet::new(),
            stepped_back: BTreeSet::new(),
            parted: BTreeSet::new(),
            lost: BTreeSet::new(),
            erased: BTreeSet::new(),
            retired: BTreeSet::new(),
            left_out: BTreeSet::new(),
            erased_garbage: BTreeSet::new(),
        }
    }
}

/// One thing that the stream holds. A frame of several chunks is several of these with one sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Publish {
    /// The partition.
    pub partition: PartitionId,
    /// Its sequence in the stream.
    pub seq: u64,
    /// When the stream stored it, ms.
    pub at_ms: i64,
    /// What it is.
    pub body: Published,
}

/// See [`Publish`].
#[derive(Debug, Clone, PartialEq)]
pub enum Published {
    /// A chunk.
    Chunk {
        /// Its message.
        key: MessageKey,
        /// Its attempt.
        attempt: u32,
        /// The chunk.
        chunk: Arc<Chunk>,
    },
    /// What cannot be decoded.
    Garbage(Bytes),
}

/// A row of the messages.
#[derive(Debug, Clone, PartialEq)]
pub struct MessageRow {
    /// Thread and message.
    pub key: MessageKey,
    /// Its position.
    pub position: i64,
    /// The position of its predecessor in the thread.
    pub parent: Option<i64>,
    /// Its number in the thread.
    pub number: i64,
    /// Who speaks.
    pub role: Role,
    /// Its text.
    pub content: String,
    /// Its metadata.
    pub metadata: Metadata,
    /// The attempt that produced it.
    pub attempt: u32,
}

/// A row of the dead letters.
#[derive(Debug, Clone, PartialEq)]
pub enum DeadLetterRow {
    /// Of an entry that could not be read.
    Entry {
        /// The partition.
        partition: PartitionId,
        /// Its sequence in the stream.
        seq: u64,
        /// Its payload.
        payload: Bytes,
    },
    /// Of a message that failed.
    Message {
        /// Thread and message.
        key: MessageKey,
        /// The attempt that failed.
        attempt: u32,
        /// [`model::MessageFailure::code`].
        code: String,
        /// The chunks that are kept.
        chunks: Vec<Arc<Chunk>>,
    },
}

/// What one client saw of one thread. A connection that resumed where an earlier one was cut belongs to the same
/// transcript, after a [`SeenEvent::Cut`]; one that began anew is a transcript of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct Transcript {
    /// Names the client in a violation.
    pub client: String,
    /// The thread.
    pub thread: ThreadId,
    /// All ends above this position have to be sent, and none at or below; `None` when it is unknown.
    pub since: Option<i64>,
    /// In order.
    pub seen: Vec<SeenEvent>,
    /// It was connected at the end, so it must have seen the end of whatever it saw the beginning of.
    pub is_connected: bool,
}

impl Transcript {
    /// Restarts that took back an end which the client had been shown.
    pub(crate) fn restarts_of_ends(&self) -> u64 {
        let (mut last, mut restarts) = (0, 0);
        for seen in &self.seen {
            match seen {
                SeenEvent::Complete { position, .. } | SeenEvent::Failed { position, .. } => {
                    last = position.unwrap_or(last);
                }
                SeenEvent::Restart { after } => {
                    restarts += u64::from(*after < last);
                    last = last.min(*after);
                }
                _ => {}
            }
        }
        restarts
    }
}

/// One thing that a client saw.
#[derive(Debug, Clone, PartialEq)]
pub enum SeenEvent {
    /// A chunk.
    Chunk {
        /// The message.
        message: MessageId,
        /// Its attempt.
        attempt: u32,
        /// The chunk.
        chunk: Arc<Chunk>,
    },
    /// The text of the message starts again.
    Reset {
        /// The message.
        message: MessageId,
        /// The new attempt.
        attempt: u32,
    },
    /// What was lacking of a text, a call or a result, from the store.
    Rest {
        /// The message.
        message: MessageId,
        /// All of it as one chunk.
        chunk: Arc<Chunk>,
    },
    /// The message is complete.
    Complete {
        /// The message.
        message: MessageId,
        /// Its position, if the client was sent it.
        position: Option<i64>,
    },
    /// The message has failed.
    Failed {
        /// The message.
        message: MessageId,
        /// Its place among the ends of the thread, if the client was sent it.
        position: Option<i64>,
    },
    /// An event had the id of an earlier one.
    RepeatedId {
        /// The id.
        id: String,
    },
    /// What the client has after this position, and all that is open, does not exist any more.
    Restart {
        /// The position.
        after: i64,
    },
    /// The connection was cut without a terminal.
    Cut,
}
