//! Threads as JSON Lines: one header, one line per thread, message and compaction, one trailer with counts and a digest.
//!
//! ```text
//! {"antiphon_export":2}
//! {"thread":{"thread_id":"t1",…}}
//! {"message":{"position":"2124241668164038656","message_id":"m1","batch_id":"2124241668164038656","number":1,…}}
//! {"numbers":{"last_number":4}}
//! {"compaction":{"id":"…","through":"…",…}}
//! {"follow_up":{"follow_up_id":"…","status":"fired",…}}
//! {"reasoning_session":{"session_id":"s1",…}}
//! {"reasoning_message":{"number":1,…}}
//! {"trailer":{"threads":1,"batches":1,"messages":1,"compactions":1,"sha256":"…"}}
//! ```
//!
//! The messages of a batch stand together, batches by position, so that [`ExportReader`] has no more than one batch in memory and
//! gives out whole batches only: a file that was cut leaves nothing half behind. Everything has its id and its place in the file, so
//! importing twice writes nothing twice.

mod line;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

use std::fmt;

use model::{AgentId, BusyPolicy, MessageId, Position, ThreadId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use reader::{Cursor, ExportReader, ImportLimits, InvalidBatches};
pub use writer::ExportWriter;

use crate::{Compaction, IncompleteReason, Item};

/// The version of the format.
pub const VERSION: u64 = 2;
/// Versions that can be read. In the first, messages had no numbers.
const READABLE: [u64; 2] = [1, VERSION];

/// What is known of a thread besides its messages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExportedThread {
    /// The thread.
    pub thread_id: ThreadId,
    /// Whose workflow answers in it, where that is not the agent of the thread's own name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    /// What a second input does to it, where its client has said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_policy: Option<BusyPolicy>,
    /// As it was given.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

/// A row of a reasoning session, as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningRow {
    /// The session's own; what follows belongs to it.
    Session,
    /// A compression.
    Layer,
    /// A named layer.
    Checkpoint,
    /// A message.
    Message,
}

/// How much there is in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ExportCounts {
    /// Threads.
    pub threads: u64,
    /// Batches.
    pub batches: u64,
    /// Messages.
    pub messages: u64,
    /// Compactions.
    pub compactions: u64,
    /// Reasoning sessions.
    #[serde(default, skip_serializing_if = "is_none")]
    pub reasoning_sessions: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_none(count: &u64) -> bool {
    *count == 0
}

/// What a [`ExportReader`] gives out.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// A thread begins.
    Thread(ExportedThread),
    /// A whole batch.
    Batch {
        /// Its thread.
        thread: ThreadId,
        /// All of its messages, by number.
        items: Vec<Item>,
        /// Where to go on when this batch was stored and the rest was not.
        cursor: Cursor,
    },
    /// A batch that is not as it should be and is given out all the same.
    Note {
        /// The batch.
        batch: Position,
        /// What is wrong with it.
        fault: FileError,
    },
    /// Numbers up to this one were given in the thread, though nothing that is left of it has the last of them.
    LastNumber {
        /// The thread.
        thread: ThreadId,
        /// The highest.
        last_number: u64,
    },
    /// A compaction of the thread.
    Compaction {
        /// Its thread.
        thread: ThreadId,
        /// What it says.
        compaction: Compaction,
    },
    /// A follow-up of the thread, as it is stored.
    FollowUp {
        /// Its thread.
        thread: ThreadId,
        /// The row.
        row: Map<String, Value>,
    },
    /// A row of a reasoning session: its own first, then those of its layers, checkpoints and messages.
    Reasoning {
        /// Of what.
        kind: ReasoningRow,
        /// Its columns.
        row: Map<String, Value>,
    },
    /// The file is complete and is as it was written.
    End(ExportCounts),
}

/// Why a file is refused, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct FileError {
    /// The line, from 1.
    pub line: u64,
    /// The message in it, if it is one.
    pub message: Option<String>,
    /// What is wrong.
    pub why: LineError,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}", self.line)?;
        if let Some(message) = &self.message {
            write!(f, ", message {message:?}")?;
        }
        write!(f, ": {}", self.why)
    }
}

/// What is wrong with a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// No export, or not from its beginning.
    #[error("the file does not begin with {{\"antiphon_export\":{VERSION}}}")]
    NoHeader,
    /// Of another version.
    #[error("the file has version {found}; this program reads versions 1 to {VERSION}")]
    Version {
        /// What it says.
        found: String,
    },
    /// No JSON, or none of the known lines.
    #[error("not a line of an export, or cut in the middle: {detail}")]
    Unreadable {
        /// The parser's words.
        detail: String,
    },
    /// Something that nothing may come after.
    #[error("there is more after the trailer")]
    AfterEnd,
    /// It stops before its trailer.
    #[error("the file ends before its trailer: it was cut")]
    Cut,
    /// A line without a thread.
    #[error("there is no thread line before it")]
    NoThread,
    /// A row of a session without one.
    #[error("there is no line of a reasoning session before it")]
    NoSession,
    /// The thread stands in the file twice.
    #[error("the thread {thread} has been before")]
    ThreadTwice {
        /// Which.
        thread: ThreadId,
    },
    /// The message stands in its thread twice.
    #[error("its id has been before in this thread")]
    IdTwice,
    /// Batches must rise.
    #[error("batch {batch} does not come after batch {before}")]
    BatchOrder {
        /// This one.
        batch: Position,
        /// The one before.
        before: Position,
    },
    /// Positions of a batch must rise, from the batch's own.
    #[error("position {position} does not come after {before}")]
    PositionOrder {
        /// This one.
        position: Position,
        /// The one before, or the batch.
        before: Position,
    },
    /// Numbers of a batch must rise with the positions.
    #[error("number {number} does not come after {before}")]
    NumberOrder {
        /// This one.
        number: i32,
        /// The one before.
        before: i32,
    },
    /// The batch is no whole, in a way that no turn that was interrupted leaves.
    #[error("the batch is damaged: {0}")]
    Damaged(IncompleteReason),
    /// Too much for one message.
    #[error("it has {found} tool calls; at most {most} are allowed")]
    TooManyCalls {
        /// It has.
        found: usize,
        /// It may have.
        most: usize,
    },
    /// Too much for one line.
    #[error("it has {found} bytes; at most {most} are allowed")]
    TooLong {
        /// It has.
        found: usize,
        /// It may have.
        most: usize,
    },
    /// Too much for one batch.
    #[error("the batch has more than {most} {what}")]
    BatchTooLarge {
        /// It may have.
        most: usize,
        /// Of what.
        what: &'static str,
    },
    /// Something that cannot be stored.
    #[error("it cannot be stored: {detail}")]
    Unstorable {
        /// Why not.
        detail: String,
    },
    /// The trailer counts otherwise.
    #[error("the trailer counts {said:?}, but the file has {found:?}")]
    Counts {
        /// In the trailer.
        said: ExportCounts,
        /// In the file.
        found: ExportCounts,
    },
    /// The digest is another.
    #[error("the digest does not match: the file was changed")]
    Digest,
    /// The cursor is not of this file.
    #[error(
        "this is not the file whose import began: batch {batch} of thread {thread} does not end in line {line}"
    )]
    OtherFile {
        /// Where the import had got to.
        thread: ThreadId,
        /// The batch.
        batch: Position,
        /// Its last line.
        line: u64,
    },
}

/// For messages in faults.
fn named(id: &MessageId) -> Option<String> {
    Some(id.as_str().to_owned())
}
