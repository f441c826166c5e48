//! Writes an export.

use serde::Serialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::line::{HeaderLine, Line, MessageText, Numbers, Trailer, WrittenMessage};
use super::{ExportCounts, ExportedThread, ReasoningRow, VERSION};
use crate::{Batch, Compaction};

/// Writes an export piece by piece. The caller passes the batches of a thread in the order of their
/// ids.
#[derive(Debug, Default)]
pub struct ExportWriter {
    digest: Sha256,
    counts: ExportCounts,
}

impl ExportWriter {
    /// A writer that has written nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// The counts so far.
    pub fn counts(&self) -> ExportCounts {
        self.counts
    }

    /// The header line.
    pub fn header(&mut self) -> String {
        self.written(&HeaderLine { antiphon_export: VERSION.into() })
    }

    /// The line that begins a thread.
    pub fn thread(&mut self, thread: ExportedThread) -> String {
        self.counts.threads += 1;
        self.written(&Line::Thread(thread))
    }

    /// The lines of a whole batch of the thread.
    pub fn batch(&mut self, batch: &Batch) -> String {
        self.counts.batches += 1;
        self.counts.messages += batch.items().len() as u64;
        batch
            .items()
            .iter()
            .map(|item| self.written(&WrittenMessage { message: MessageText::of(item) }))
            .collect()
    }

    /// The line with the last number that the thread has assigned.
    pub fn last_number(&mut self, last_number: u64) -> String {
        self.written(&Line::Numbers(Numbers { last_number }))
    }

    /// The line of a compaction of the thread.
    pub fn compaction(&mut self, compaction: Compaction) -> String {
        self.counts.compactions += 1;
        self.written(&Line::Compaction(Box::new(compaction)))
    }

    /// The line of a follow-up of the thread.
    pub fn follow_up(&mut self, row: Map<String, Value>) -> String {
        self.written(&Line::FollowUp(row))
    }

    /// The line of feedback on a message of the thread.
    pub fn feedback(&mut self, row: Map<String, Value>) -> String {
        self.written(&Line::Feedback(row))
    }

    /// The line of a row of a reasoning session.
    pub fn reasoning(&mut self, kind: ReasoningRow, row: Map<String, Value>) -> String {
        self.counts.reasoning_sessions += u64::from(kind == ReasoningRow::Session);
        self.written(&match kind {
            ReasoningRow::Session => Line::ReasoningSession(row),
            ReasoningRow::Layer => Line::ReasoningLayer(row),
            ReasoningRow::Checkpoint => Line::ReasoningCheckpoint(row),
            ReasoningRow::Message => Line::ReasoningMessage(row),
        })
    }

    /// The trailer line.
    pub fn trailer(self) -> String {
        let sha256 = hex(&self.digest.finalize());
        line(&Line::Trailer(Trailer { counts: self.counts, sha256 }))
    }

    fn written(&mut self, what: &impl Serialize) -> String {
        let line = line(what);
        self.digest.update(&line);
        line
    }
}

fn line(what: &impl Serialize) -> String {
    // Keys are strings and numbers are finite, so this cannot fail.
    let mut line = serde_json::to_string(what).unwrap_or_default();
    line.push('\n');
    line
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
