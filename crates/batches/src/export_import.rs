//! Threads as JSON Lines: a header, a line for each thread, message and compaction, and a trailer
//! with counts and a digest.
//!
//! ```text
//! {"antiphon_export":2}
//! {"thread":{"thread_id":"t1",…}}
//! {"message":{"position":"2124241668164038656","message_id":"m1","batch_id":"2124241668164038656","number":1,…}}
//! {"numbers":{"last_number":4}}
//! {"compaction":{"id":"…","through":"…",…}}
//! {"follow_up":{"follow_up_id":"…","status":"fired",…}}
//! {"feedback":{"message_id":"…","score":1.0,…}}
//! {"reasoning_session":{"session_id":"s1",…}}
//! {"reasoning_message":{"number":1,…}}
//! {"trailer":{"threads":1,"batches":1,"messages":1,"compactions":1,"sha256":"…"}}
//! ```
//!
//! The messages of a batch are adjacent, and batches are ordered by position. So [`ExportReader`]
//! holds at most one batch in memory and returns only whole batches: a truncated file leaves no
//! partial one. Everything has an id and a place in the file, so importing twice writes nothing
//! twice.

mod line;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

use std::fmt;

use model::{AgentId, BusyPolicy, MessageId, Position, ThreadId, ThreadTitle};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use reader::{Cursor, ExportReader, ImportLimits, InvalidBatches};
pub use writer::ExportWriter;

use crate::{Compaction, IncompleteReason, Item};

/// Version of the format that is written.
pub const VERSION: u64 = 2;
/// Versions that can be read. In version 1, messages have no numbers.
const READABLE: [u64; 2] = [1, VERSION];

/// A thread without its messages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExportedThread {
    pub thread_id: ThreadId,
    /// The agent whose workflow answers in the thread; `None`: the agent with the thread's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    /// The policy for a second input while a turn runs; `None`: the client set none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_policy: Option<BusyPolicy>,
    /// The client's metadata.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// A title that a client or the workflow has set. The one that the first message makes is made
    /// again where the thread is imported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<ThreadTitle>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub archived: bool,
}

/// The kind of a stored row of a reasoning session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningRow {
    /// The row of the session itself; the following rows belong to it.
    Session,
    Layer,
    /// A named layer.
    Checkpoint,
    Message,
}

/// Number of items in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ExportCounts {
    pub threads: u64,
    pub batches: u64,
    pub messages: u64,
    pub compactions: u64,
    #[serde(default, skip_serializing_if = "is_none")]
    pub reasoning_sessions: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_none(count: &u64) -> bool {
    *count == 0
}

/// An item that [`ExportReader`] returns.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// A thread begins.
    Thread(ExportedThread),
    /// A whole batch.
    Batch {
        thread: ThreadId,
        /// All messages of the batch, by number.
        items: Vec<Item>,
        /// The point from which to resume if this batch was stored and the rest was not.
        cursor: Cursor,
    },
    /// A batch that is returned although it is damaged.
    Note {
        batch: Position,
        /// The defect of the batch.
        fault: FileError,
    },
    /// The thread has assigned numbers up to this one, although no remaining message has it.
    LastNumber {
        thread: ThreadId,
        /// The highest assigned number.
        last_number: u64,
    },
    /// A compaction of the thread.
    Compaction { thread: ThreadId, compaction: Compaction },
    /// A follow-up of the thread, as stored.
    FollowUp {
        thread: ThreadId,
        /// The columns of the row.
        row: Map<String, Value>,
    },
    /// Feedback on a message of the thread, as stored.
    Feedback {
        thread: ThreadId,
        /// The columns of the row.
        row: Map<String, Value>,
    },
    /// A row of a reasoning session: the session row first, then its layers, checkpoints and
    /// messages.
    Reasoning {
        kind: ReasoningRow,
        /// The columns of the row.
        row: Map<String, Value>,
    },
    /// The file is complete and unchanged.
    End(ExportCounts),
}

/// The reason why a file is refused, and the place of the error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct FileError {
    /// Line number, from 1.
    pub line: u64,
    /// Id of the message in the line, if it is a message.
    pub message: Option<String>,
    /// The reason why the line is refused.
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

/// The reason why a line is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// The file is not an export, or does not start at its beginning.
    #[error("the file does not begin with {{\"antiphon_export\":{VERSION}}}")]
    NoHeader,
    /// The version is not supported.
    #[error("the file has version {found}; this program reads versions 1 to {VERSION}")]
    Version {
        /// The version in the file.
        found: String,
    },
    /// The line is not JSON or not a known line.
    #[error("not a line of an export, or cut in the middle: {detail}")]
    Unreadable {
        /// The parser's message.
        detail: String,
    },
    /// The line follows the trailer.
    #[error("there is more after the trailer")]
    AfterEnd,
    /// The file ends before its trailer.
    #[error("the file ends before its trailer: it was cut")]
    Cut,
    /// The line does not belong to a thread.
    #[error("there is no thread line before it")]
    NoThread,
    /// The row does not belong to a session.
    #[error("there is no line of a reasoning session before it")]
    NoSession,
    /// The file has the thread twice.
    #[error("the thread {thread} has been before")]
    ThreadTwice { thread: ThreadId },
    /// The thread has a message with this id twice.
    #[error("its id has been before in this thread")]
    IdTwice,
    /// Batches must have ascending positions.
    #[error("batch {batch} does not come after batch {before}")]
    BatchOrder {
        batch: Position,
        /// Position of the preceding batch.
        before: Position,
    },
    /// Positions in a batch must ascend, starting with the position of the batch.
    #[error("position {position} does not come after {before}")]
    PositionOrder {
        position: Position,
        /// The preceding position, or the position of the batch.
        before: Position,
    },
    /// Numbers in a batch must ascend with the positions.
    #[error("number {number} does not come after {before}")]
    NumberOrder {
        number: i32,
        /// The preceding number.
        before: i32,
    },
    /// The batch is damaged in a way that no interrupted turn leaves.
    #[error("the batch is damaged: {0}")]
    Damaged(IncompleteReason),
    /// The message has too many calls.
    #[error("it has {found} tool calls; at most {most} are allowed")]
    TooManyCalls {
        /// Number of calls.
        found: usize,
        /// Maximum number of calls.
        most: usize,
    },
    /// The line is too long.
    #[error("it has {found} bytes; at most {most} are allowed")]
    TooLong {
        /// Length in bytes.
        found: usize,
        /// Maximum length in bytes.
        most: usize,
    },
    /// The batch is too large.
    #[error("the batch has more than {most} {what}")]
    BatchTooLarge {
        /// The exceeded maximum.
        most: usize,
        /// The unit of the maximum.
        what: &'static str,
    },
    /// A value cannot be stored.
    #[error("it cannot be stored: {detail}")]
    Unstorable { detail: String },
    /// The counts in the trailer differ from those of the file.
    #[error("the trailer counts {said:?}, but the file has {found:?}")]
    Counts {
        /// The counts in the trailer.
        said: ExportCounts,
        /// The counts of the file.
        found: ExportCounts,
    },
    /// The digest in the trailer differs from that of the file.
    #[error("the digest does not match: the file was changed")]
    Digest,
    /// The cursor does not belong to this file.
    #[error(
        "this is not the file whose import began: batch {batch} of thread {thread} does not end in line {line}"
    )]
    OtherFile {
        /// Thread of the cursor.
        thread: ThreadId,
        /// Batch of the cursor.
        batch: Position,
        /// Last line of that batch.
        line: u64,
    },
}

/// The message id in the form that errors need.
fn named(id: &MessageId) -> Option<String> {
    Some(id.as_str().to_owned())
}
