//! What an import has done, and reports about threads that it did not simply import.

use std::fmt;

use model::{Position, ThreadId};
use serde::Serialize;
use store::{ImportRefusal, RefusedItem};

/// Counts of what was read, and of what was new.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct ImportTotals {
    /// Threads that are stored now, with their batches, messages and compactions.
    pub threads: u64,
    pub batches: u64,
    pub messages: u64,
    pub compactions: u64,
    pub reasoning_sessions: u64,
    /// Threads of which something was new.
    pub changed_threads: u64,
    pub new_threads: u64,
    pub new_messages: u64,
    pub new_compactions: u64,
    pub new_reasoning_sessions: u64,
    /// Threads and sessions that were erased here, and are left out.
    pub left_out: u64,
    /// Threads and sessions that were refused.
    pub refused: u64,
}

/// The kind of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportKind {
    /// It was imported, with a difference to the file.
    Note,
    /// It was erased here, and is left out.
    LeftOut,
    /// It differs from what is stored, or cannot be stored.
    Refused,
    /// The import ended in the middle of a thread of which parts were stored.
    Incomplete,
}

/// What a report is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImportSubject {
    Thread(ThreadId),
    /// A reasoning session, as the file names it.
    Session(String),
}

/// A report about a thread or a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportReport {
    pub kind: ReportKind,
    pub subject: ImportSubject,
    /// Line number, from 1.
    pub line: Option<u64>,
    /// A sentence that names line, item and reason.
    pub text: String,
}

impl ImportReport {
    pub(super) fn of_thread(kind: ReportKind, thread: &ThreadId, line: Option<u64>, text: String) -> Self {
        Self { kind, subject: ImportSubject::Thread(thread.clone()), line, text }
    }

    pub(super) fn of_session(kind: ReportKind, id: &str, line: u64, text: String) -> Self {
        Self { kind, subject: ImportSubject::Session(id.to_owned()), line: Some(line), text }
    }
}

/// The report of a thread of which a part was refused. `from` is the first batch of the part, if
/// earlier parts are stored.
pub(super) fn refused(
    thread: &ThreadId,
    line: Option<u64>,
    item: &dyn fmt::Display,
    why: &dyn fmt::Display,
    from: Option<Position>,
) -> ImportReport {
    let place = line.map_or(String::new(), |line| format!("line {line}, "));
    let nothing = match from {
        Some(from) => format!("nothing from batch {from} on is written"),
        None => "nothing of the thread is written".to_owned(),
    };
    let text = format!("{place}{item}thread {thread}: {why}; {nothing}");
    ImportReport::of_thread(ReportKind::Refused, thread, line, text)
}

/// The refused item, as the beginning of a sentence.
pub(super) struct ItemText<'a>(pub(super) &'a ImportRefusal);

impl fmt::Display for ItemText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.item {
            RefusedItem::Thread => Ok(()),
            RefusedItem::Batch { batch, message: None } => write!(f, "batch {batch} of "),
            RefusedItem::Batch { batch, message: Some(message) } => {
                write!(f, "message {message:?}, batch {batch} of ")
            }
            RefusedItem::Compaction(id) => write!(f, "compaction {id} of "),
        }
    }
}
