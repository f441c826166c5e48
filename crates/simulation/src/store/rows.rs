//! Rows of the double that several of its parts read.

use std::collections::BTreeMap;

use batches::compaction::Compaction;
use model::{MessageKey, ThreadId};

/// A row of the compactions table.
#[derive(Debug, Clone)]
pub(crate) struct CompactionRow {
    pub(crate) compaction: Compaction,
    /// Its summary is not written yet.
    pub(crate) is_pending: bool,
}

/// A row of the messages table, as retention and continuations read it.
#[derive(Debug, Clone)]
pub(super) struct KeptMessage {
    pub(super) key: MessageKey,
    pub(super) batch: i64,
    pub(super) sequence: i32,
    pub(super) bytes: u64,
    pub(super) at: i64,
    pub(super) item: batches::Item,
}

pub(super) type KeptRows = BTreeMap<ThreadId, BTreeMap<i64, KeptMessage>>;
