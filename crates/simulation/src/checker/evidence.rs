//! The data that the checker compares: what was published, what is stored, what clients saw.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use model::{Chunk, MessageId, MessageKey, Metadata, PartitionId, Role, ThreadId};

/// All the data that the checker compares.
#[derive(Debug, Clone, Default)]
pub struct Evidence {
    pub rules: Rules,
    /// The entries of the streams, in stream order for each partition.
    pub ledger: Vec<Publish>,
    /// The stored messages, in commit order for each thread.
    pub messages: Vec<MessageRow>,
    pub dead_letters: Vec<DeadLetterRow>,
    /// Messages whose ends are sent to clients, with their positions; empty if unknown.
    pub ends: Vec<(MessageKey, i64)>,
    pub transcripts: Vec<Transcript>,
    /// Every epoch, in the order of the grants.
    pub grants: Vec<(PartitionId, u64)>,
}

/// What the checker may expect of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Every process had time to finish, so everything that has not ended is lost.
    pub is_settled: bool,
    /// A message whose gaps were never open for longer than this, ms, must not fail for a gap.
    pub gap_safe_ms: i64,
    /// A message that was never silent for longer than this, ms, must not fail as stalled.
    pub stall_safe_ms: i64,
    /// The first chunk id that is too high.
    pub chunks_per_message: u32,
    /// Threads that do not exist, and that chunks must not create.
    pub missing_threads: BTreeSet<ThreadId>,
    /// Messages whose look-up the store refuses.
    pub refused_messages: BTreeSet<MessageKey>,
    /// Partitions whose store went back in time: events that clients and others saw may have been
    /// undone and done again.
    pub stepped_back: BTreeSet<PartitionId>,
    /// Partitions whose streams have lost entries.
    pub parted: BTreeSet<PartitionId>,
    /// Messages whose chunks were lost before they were stored: they may fail, be incomplete, or be
    /// missing.
    pub lost: BTreeSet<MessageKey>,
    /// Threads that were erased at some time: messages published for them need not end.
    pub erased: BTreeSet<ThreadId>,
    /// Batches that retention deleted: a turn that was to continue one forms its own batch.
    pub retired: BTreeSet<(ThreadId, i64)>,
    /// Threads for which a gateway was given a cut without some open messages: the gateway may
    /// start one of these messages again.
    pub left_out: BTreeSet<ThreadId>,
    /// Undecodable payloads that were deleted with erased threads.
    pub erased_garbage: BTreeSet<Bytes>,
}

impl Rules {
    /// True if the store or the stream of the partition went back in time or lost entries, so that
    /// events seen before may no longer hold.
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

/// One item of a stream. A frame of several chunks is several items with one sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Publish {
    pub partition: PartitionId,
    pub seq: u64,
    /// When the stream stored it, ms.
    pub at_ms: i64,
    pub body: Published,
}

/// The content of a [`Publish`].
#[derive(Debug, Clone, PartialEq)]
pub enum Published {
    Chunk {
        key: MessageKey,
        attempt: u32,
        chunk: Arc<Chunk>,
    },
    /// A payload that cannot be decoded.
    Garbage(Bytes),
}

/// A row of the messages table.
#[derive(Debug, Clone, PartialEq)]
pub struct MessageRow {
    pub key: MessageKey,
    pub position: i64,
    /// The position of the previous message in the thread.
    pub parent: Option<i64>,
    /// Number in the thread, from 1.
    pub number: i64,
    pub role: Role,
    pub content: String,
    pub metadata: Metadata,
    /// The attempt that produced it.
    pub attempt: u32,
}

/// A row of the dead letters.
#[derive(Debug, Clone, PartialEq)]
pub enum DeadLetterRow {
    /// An entry that could not be read.
    Entry { partition: PartitionId, seq: u64, payload: Bytes },
    /// A message that failed.
    Message {
        key: MessageKey,
        attempt: u32,
        /// [`model::MessageFailure::code`].
        code: String,
        chunks: Vec<Arc<Chunk>>,
    },
}

/// Events that one client saw of one thread. A connection that resumed an earlier one belongs to
/// the same transcript, after a [`SeenEvent::Cut`]. A connection that started over has its own
/// transcript.
#[derive(Debug, Clone, PartialEq)]
pub struct Transcript {
    /// Names the client in a violation.
    pub client: String,
    pub thread: ThreadId,
    /// All ends above this position must be sent, and none at or below it; `None` if unknown.
    pub since: Option<i64>,
    pub seen: Vec<SeenEvent>,
    /// The client was connected at the end, so it must have seen the end of every message that it
    /// saw begin.
    pub is_connected: bool,
}

impl Transcript {
    /// Restarts that revoked an end that the client had been shown.
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

/// One event that a client saw.
#[derive(Debug, Clone, PartialEq)]
pub enum SeenEvent {
    Chunk {
        message: MessageId,
        attempt: u32,
        chunk: Arc<Chunk>,
    },
    /// A person's input.
    Input {
        /// Id of the input.
        input: MessageId,
    },
    /// An input leaves the thread.
    InputWithdrawn {
        /// Id of the input.
        input: MessageId,
    },
    /// The text of the message starts again.
    Reset {
        message: MessageId,
        attempt: u32,
    },
    /// The missing rest of a text, a call or a result, read from the store.
    Rest {
        message: MessageId,
        /// The rest as one chunk.
        chunk: Arc<Chunk>,
    },
    Complete {
        message: MessageId,
        /// Position of the message, if the client was sent it.
        position: Option<i64>,
    },
    Failed {
        message: MessageId,
        /// Position at which the message ended in the thread, if the client was sent it.
        position: Option<i64>,
    },
    /// An event had the id of an earlier one.
    RepeatedId {
        id: String,
    },
    /// Everything that the client has after this position, and all open messages, no longer exists.
    Restart {
        after: i64,
    },
    /// The connection was cut without a terminal.
    Cut,
}
