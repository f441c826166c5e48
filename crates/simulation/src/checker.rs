//! The invariants, checked on plain data: what was published, what is stored, what clients saw.
//!
//! Entry point: [`check`]. It shares no code with what it judges, but for the nouns of `model`: the fate of a message
//! is computed anew from the order of the log. Nothing here knows the simulation; process tests use it as well.

mod fate;
mod stored;
mod transcripts;
pub mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use model::{Chunk, MessageId, MessageKey, Metadata, PartitionId, Role, ThreadId};

pub use fate::{End, Fate, fates};

/// What is always true.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Invariant {
    /// I1.
    EndsOnce,
    /// I2.
    Content,
    /// I5.
    Checkpoint,
    /// I6.
    ClientText,
    /// I8.
    OneTerminal,
    /// C17.
    NothingMissed,
    /// C13.
    EventIds,
    /// I9.
    Epochs,
    /// Positions are unique and rise in a thread; each message names its predecessor.
    Positions,
    /// A gap that nothing closes fails its message in time, whatever else flows.
    GapTimeout,
    /// A message fails only for what is in the log, or for time when it was slow.
    RightFailure,
    /// No more messages are open than there is room for.
    Room,
    /// T1.
    WholeTurn,
    /// T11.
    OneDelivery,
    /// Each run of a turn ends once, in its order, and nothing comes after a success.
    RunsOnce,
    /// T4 and T5.
    Fifo,
    /// T10.
    OneAtATime,
    /// T6.
    Backoff,
    /// A run fails only for what its workflow, a person or the store did.
    RightCause,
    /// T2, T3, T7 and T9: what was asked for ends.
    OrdersEnd,
    /// What follows a turn is published once by its id, and only when its commit has been applied.
    Outbox,
    /// An answer that is under way is not asked for again.
    OneRequest,
    /// Of a turn that was stopped nothing leaves but its end.
    AfterStop,
    /// What ends by time, and what changes hands, does so within a bound.
    InTime,
    /// What is saved of something goes with the transaction that ends it.
    SavedRows,
    /// The request of a run that its owner has ended is taken back.
    Withdrawn,
    /// What is gone on both sides is an incident.
    Named,
    /// Of what was erased nothing comes back.
    Erased,
    /// What is old goes whole, oldest first.
    Retired,
    /// What was put away is in no context, and everything else is, whole and once.
    Compacted,
    /// When the faults stop, everything ends.
    Liveness,
    /// Nothing panics.
    NoPanic,
}

impl Invariant {
    /// What it says, with its number in the reliability notes where it has one.
    pub fn statement(self) -> &'static str {
        match self {
            Self::EndsOnce => "I1 what is acknowledged ends as exactly one message or one dead letter",
            Self::Content => "I2 the content is the chunks in order",
            Self::Checkpoint => "I5 the checkpoint passes nothing that is not persisted",
            Self::ClientText => "I6 a client's text is a prefix of the persisted text, equal when complete",
            Self::OneTerminal => "I8 a connection sees at most one terminal of a message, and the right one",
            Self::NothingMissed => "C17 a client is told of every end after it came, once, in their order",
            Self::EventIds => "C13 an event id is unique for ever",
            Self::Epochs => "I9 epochs strictly rise",
            Self::Positions => "positions are unique and rise in a thread, parents link",
            Self::GapTimeout => "a gap that nothing closes fails its message in time",
            Self::RightFailure => "a message fails only for its own faults",
            Self::Room => "no more messages are open than there is room for",
            Self::WholeTurn => "T1 a turn's messages are written whole, in one transaction, in their places",
            Self::OneDelivery => "T11 an answer is the chunks of one delivery of one run, in order",
            Self::RunsOnce => "each run of a turn ends once, in its order, and nothing comes after a success",
            Self::Fifo => {
                "T4 an agent's tasks run strictly in their order, and are completed with their turns"
            }
            Self::OneAtATime => "T10 a thread has one turn at a time",
            Self::Backoff => "T6 a failure is a backoff by the database's clock, and nothing else is",
            Self::RightCause => "a run fails only for what its workflow, a person or the store did",
            Self::OrdersEnd => {
                "what was asked for ends: as messages, a failure, a dead letter or a row of the audit"
            }
            Self::Outbox => "what follows a turn is published once by its id, and only after its commit",
            Self::OneRequest => "an answer that is under way is not asked for again",
            Self::AfterStop => "of a turn that was stopped nothing leaves but its end",
            Self::InTime => "deadlines, stalls and takeovers come within a bound",
            Self::SavedRows => "what is saved of something goes with the transaction that ends it",
            Self::Withdrawn => "the request of a run that its owner has ended is taken back",
            Self::Named => "what neither the stream nor the store has any more is named by an incident",
            Self::Erased => "of a thread that was erased nothing is asked for, and nothing is stored again",
            Self::Retired => "old batches are deleted whole, the oldest first, and none that goes on",
            Self::Compacted => "contexts have whole batches once, and none that was put away",
            Self::Liveness => "when the faults stop, everything ends",
            Self::NoPanic => "nothing panics",
        }
    }
}

/// An invariant that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub invariant: Invariant,
    /// Of which message, entry or connection.
    pub subject: String,
    /// What should be.
    pub expected: String,
    /// What is.
    pub seen: String,
}

impl Violation {
    /// Puts one together.
    pub fn new(
        invariant: Invariant,
        subject: impl ToString,
        expected: impl Into<String>,
        seen: impl Into<String>,
    ) -> Self {
        Self { invariant, subject: subject.to_string(), expected: expected.into(), seen: seen.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { invariant, subject, expected, seen } = self;
        write!(f, "{}: {subject}: expected {expected}; seen {seen}", invariant.statement())
    }
}

/// Everything that is compared.
#[derive(Debug, Clone, Default)]
pub struct Evidence {
    /// What may be expected.
    pub rules: Rules,
    /// What the stream holds, in the order of the stream for each partition.
    pub ledger: Vec<Publish>,
    /// The stored messages, for each thread in the order of their commits.
    pub messages: Vec<StoredMessage>,
    /// The stored dead letters.
    pub dead_letters: Vec<StoredDeadLetter>,
    /// How the messages of all threads ended that clients are told of, with their places; empty when nobody knows.
    pub ends: Vec<(MessageKey, i64)>,
    /// What clients saw.
    pub transcripts: Vec<Transcript>,
    /// Every epoch in the order in which it was granted.
    pub grants: Vec<(PartitionId, u64)>,
}

/// What may be expected of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Everybody had the time to finish: what has not ended is lost.
    pub is_settled: bool,
    /// A message whose gaps were never open for longer, ms, may not fail for a gap.
    pub gap_safe_ms: i64,
    /// A message that was never silent for longer, ms, may not fail as stalled.
    pub stall_safe_ms: i64,
    /// Chunk ids from this number on are too many.
    pub chunks_per_message: u32,
    /// Threads that do not exist and may not be created by chunks.
    pub missing_threads: BTreeSet<ThreadId>,
    /// The store of these went back in time: what clients and others saw of them may have been undone and done again.
    pub stepped_back: BTreeSet<PartitionId>,
    /// The streams of these have lost entries.
    pub parted: BTreeSet<PartitionId>,
    /// Messages whose chunks were lost before they were stored: they may fail, be incomplete, or not be there.
    pub lost: BTreeSet<MessageKey>,
    /// Somebody erased these threads at some time: what was published for them need not end.
    pub erased: BTreeSet<ThreadId>,
    /// Batches that were deleted because they were old: a turn that was to go on with one is a batch of its own.
    pub retired: BTreeSet<(ThreadId, i64)>,
    /// Payloads that nobody can read, and that went with them.
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
            stepped_back: BTreeSet::new(),
            parted: BTreeSet::new(),
            lost: BTreeSet::new(),
            erased: BTreeSet::new(),
            retired: BTreeSet::new(),
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
    /// What nobody can read.
    Garbage(Bytes),
}

/// A row of the messages.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredMessage {
    /// Thread and message.
    pub key: MessageKey,
    /// Its position.
    pub position: i64,
    /// The position of its predecessor in the thread.
    pub parent: Option<i64>,
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
pub enum StoredDeadLetter {
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
        /// [`model::Failure::code`].
        code: String,
        /// The chunks that are kept.
        chunks: Vec<Arc<Chunk>>,
    },
}

/// What one client saw of one thread. A connection that resumed where an earlier one was cut belongs to the same
/// transcript, after a [`Seen::Cut`]; one that began anew is a transcript of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct Transcript {
    /// Names the client in a violation.
    pub client: String,
    /// The thread.
    pub thread: ThreadId,
    /// All ends above this position have to be told, and none at or below; `None` when nobody knows.
    pub since: Option<i64>,
    /// In order.
    pub seen: Vec<Seen>,
    /// It was connected at the end, so it must have seen the end of whatever it saw the beginning of.
    pub is_connected: bool,
}

/// One thing that a client saw.
#[derive(Debug, Clone, PartialEq)]
pub enum Seen {
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
        /// Its position, if the client was told.
        position: Option<i64>,
    },
    /// The message has failed.
    Failed {
        /// The message.
        message: MessageId,
        /// Its place among the ends of the thread, if the client was told.
        position: Option<i64>,
    },
    /// An event had the id of an earlier one.
    RepeatedId {
        /// The id.
        id: String,
    },
    /// The client had to begin anew: what it had was ahead of all that exists.
    Restart,
    /// The connection was cut without a terminal.
    Cut,
}

/// Checks every invariant of messages that the evidence can show. An empty answer means that all of them hold.
///
/// The messages of turns count for the order of the thread only; [`turns::check`] judges them.
pub fn check(evidence: &Evidence) -> Vec<Violation> {
    check_with(evidence, &BTreeSet::new(), &BTreeSet::new())
}

/// As [`check`], where orders may have become dead letters, and answers of turns may have failed.
pub fn check_with(
    evidence: &Evidence,
    commands: &BTreeSet<(PartitionId, u64)>,
    failed: &BTreeSet<MessageKey>,
) -> Vec<Violation> {
    let fates = fates(&evidence.ledger, &evidence.rules);
    let mut violations = Vec::new();
    stored::check(evidence, commands, &fates, &mut violations);
    check_epochs(&evidence.grants, &mut violations);
    let ends = transcripts::Ends::of(evidence, failed);
    for transcript in &evidence.transcripts {
        transcripts::check(transcript, &evidence.rules, &ends, &fates, &mut violations);
    }
    violations
}

fn check_epochs(grants: &[(PartitionId, u64)], violations: &mut Vec<Violation>) {
    let mut last: BTreeMap<PartitionId, u64> = BTreeMap::new();
    for &(partition, epoch) in grants {
        if let Some(before) = last.insert(partition, epoch).filter(|before| *before >= epoch) {
            let (expected, seen) = (format!("an epoch above {before}"), format!("a grant of {epoch}"));
            violations.push(Violation::new(
                Invariant::Epochs,
                format!("partition {partition}"),
                expected,
                seen,
            ));
        }
    }
}

#[cfg(test)]
mod tests;
