//! Reads an export line by line.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use model::{Position, ThreadId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::line::{HeaderLine, Line, MAX_NUMBER, MessageLine, Numbers, Trailer};
use super::writer::hex;
use super::{ExportCounts, FileError, LineError, READABLE, ReasoningRow, Record, named};
use crate::{Batch, BatchState, IncompleteReason, Item};

/// Number of ids that are remembered to detect duplicates. Beyond this number, the store detects
/// them.
const MOST_IDS: usize = 1 << 20;

/// Limits on one line and one batch, so that memory use is bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImportLimits {
    /// Maximum bytes of a line.
    pub line_bytes: usize,
    /// Maximum calls of a message.
    pub calls: usize,
    /// Maximum messages of a batch.
    pub batch_messages: usize,
    /// Maximum bytes of a batch's lines.
    pub batch_bytes: usize,
    /// How damaged batches are handled.
    pub invalid_batches: InvalidBatches,
}

impl Default for ImportLimits {
    fn default() -> Self {
        Self {
            line_bytes: 32 << 20,
            calls: 4_096,
            batch_messages: 100_000,
            batch_bytes: 256 << 20,
            invalid_batches: InvalidBatches::Refuse,
        }
    }
}

/// How to handle a batch that no turn leaves, with results without calls, or missing or doubled
/// numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InvalidBatches {
    /// The import stops at such a batch.
    #[default]
    Refuse,
    /// The batch is imported unchanged, with a note; contexts never include it.
    Keep,
}

/// The last whole batch that was imported from a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    pub thread: ThreadId,
    pub batch: Position,
    /// Its last line, from 1.
    pub line: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadStage {
    Begin,
    Body,
    End,
}

/// Reads an export: pass the lines in order, then call [`ExportReader::finish`].
///
/// After an error it accepts no more lines. All batches returned before the error are whole. An
/// import of the corrected file can resume from the cursor of the last one.
#[derive(Debug)]
pub struct ExportReader {
    limits: ImportLimits,
    /// Items up to this cursor are not returned a second time.
    resume: Option<Cursor>,
    is_past: bool,
    /// The first error; the reader accepts no more lines after it.
    failed: Option<FileError>,
    stage: ReadStage,
    line: u64,
    digest: Sha256,
    counts: ExportCounts,
    threads: HashSet<u64>,
    thread: Option<ThreadId>,
    ids: HashSet<u64>,
    last_batch: Option<Position>,
    /// The batch being read, with the line number of each message.
    open: Vec<(u64, Item)>,
    open_bytes: usize,
}

impl ExportReader {
    /// Starts a new import.
    pub fn new(limits: ImportLimits) -> Self {
        Self {
            limits,
            resume: None,
            is_past: false,
            failed: None,
            stage: ReadStage::Begin,
            line: 0,
            digest: Sha256::new(),
            counts: ExportCounts::default(),
            threads: HashSet::new(),
            thread: None,
            ids: HashSet::new(),
            last_batch: None,
            open: Vec::new(),
            open_bytes: 0,
        }
    }

    /// Resumes an import. The whole file is read and checked again, but only items after the cursor
    /// are returned.
    pub fn resume(limits: ImportLimits, cursor: Cursor) -> Self {
        Self { resume: Some(cursor), ..Self::new(limits) }
    }

    /// The counts so far, to show progress.
    pub fn counts(&self) -> ExportCounts {
        self.counts
    }

    /// Takes the next line, with or without its line end.
    ///
    /// # Errors
    /// The line is invalid; neither the line nor its batch is returned.
    pub fn line(&mut self, line: &str) -> Result<Vec<Record>, FileError> {
        if let Some(fault) = &self.failed {
            return Err(fault.clone());
        }
        self.line += 1;
        let taken = self.take(line.strip_suffix('\n').unwrap_or(line));
        self.failed = taken.as_ref().err().cloned();
        taken
    }

    fn take(&mut self, line: &str) -> Result<Vec<Record>, FileError> {
        match self.stage {
            ReadStage::End if line.trim().is_empty() => Ok(Vec::new()),
            ReadStage::End => Err(self.fault(LineError::AfterEnd)),
            _ if line.len() > self.limits.line_bytes => {
                let broken = LineError::TooLong { found: line.len(), most: self.limits.line_bytes };
                Err(self.fault(broken))
            }
            ReadStage::Begin => self.header(line),
            ReadStage::Body => self.body(line),
        }
    }

    /// Ends the input.
    ///
    /// # Errors
    /// The trailer is missing.
    pub fn finish(self) -> Result<ExportCounts, FileError> {
        match self.stage {
            ReadStage::End => Ok(self.counts),
            ReadStage::Begin | ReadStage::Body => {
                Err(FileError { line: self.line, message: None, why: LineError::Cut })
            }
        }
    }

    fn fault(&self, why: LineError) -> FileError {
        FileError { line: self.line, message: None, why }
    }

    fn unstorable(&self, detail: &str) -> FileError {
        self.fault(LineError::Unstorable { detail: detail.to_owned() })
    }

    fn header(&mut self, line: &str) -> Result<Vec<Record>, FileError> {
        let header: HeaderLine = serde_json::from_str(line).map_err(|_| self.fault(LineError::NoHeader))?;
        if !READABLE.iter().any(|version| header.antiphon_export == *version) {
            return Err(self.fault(LineError::Version { found: header.antiphon_export.to_string() }));
        }
        self.stage = ReadStage::Body;
        self.hash(line);
        Ok(Vec::new())
    }

    fn hash(&mut self, line: &str) {
        self.digest.update(line);
        self.digest.update("\n");
    }

    fn body(&mut self, line: &str) -> Result<Vec<Record>, FileError> {
        let parsed: Line = serde_json::from_str(line)
            .map_err(|error| self.fault(LineError::Unreadable { detail: error.to_string() }))?;
        let mut records = Vec::new();
        match parsed {
            Line::Message(message) => {
                self.message(*message, line.len(), &mut records)?;
                self.hash(line);
            }
            Line::Thread(thread) => {
                self.close(&mut records)?;
                self.hash(line);
                let is_new = self.threads.len() >= MOST_IDS || self.threads.insert(digest(&thread.thread_id));
                if !is_new {
                    return Err(self.fault(LineError::ThreadTwice { thread: thread.thread_id }));
                }
                self.thread = Some(thread.thread_id.clone());
                self.ids.clear();
                self.last_batch = None;
                self.counts.threads += 1;
                self.give(Record::Thread(thread), &mut records)?;
            }
            Line::Numbers(Numbers { last_number }) => {
                if !(1..=MAX_NUMBER).contains(&last_number) {
                    return Err(self.unstorable("its last_number is not from 1 to 2147483647"));
                }
                self.close(&mut records)?;
                self.hash(line);
                let thread = self.thread.clone().ok_or_else(|| self.fault(LineError::NoThread))?;
                self.give(Record::LastNumber { thread, last_number }, &mut records)?;
            }
            Line::Compaction(compaction) => {
                if compaction.summary.as_deref().is_some_and(|summary| summary.contains('\0')) {
                    return Err(self.unstorable("its summary holds a NUL character"));
                }
                self.close(&mut records)?;
                self.hash(line);
                let thread = self.thread.clone().ok_or_else(|| self.fault(LineError::NoThread))?;
                self.counts.compactions += 1;
                self.give(Record::Compaction { thread, compaction: *compaction }, &mut records)?;
            }
            Line::FollowUp(row) => {
                let thread = self.beside_messages(line, &mut records)?;
                self.give(Record::FollowUp { thread, row }, &mut records)?;
            }
            Line::Feedback(row) => {
                let thread = self.beside_messages(line, &mut records)?;
                self.give(Record::Feedback { thread, row }, &mut records)?;
            }
            Line::ReasoningSession(row) => self.reasoning(line, ReasoningRow::Session, row, &mut records)?,
            Line::ReasoningLayer(row) => self.reasoning(line, ReasoningRow::Layer, row, &mut records)?,
            Line::ReasoningCheckpoint(row) => {
                self.reasoning(line, ReasoningRow::Checkpoint, row, &mut records)?
            }
            Line::ReasoningMessage(row) => self.reasoning(line, ReasoningRow::Message, row, &mut records)?,
            Line::Trailer(trailer) => {
                self.close(&mut records)?;
                self.trailer(&trailer)?;
                records.push(Record::End(self.counts));
            }
        }
        Ok(records)
    }

    /// Ends the batch before a line of the thread that is no message, and returns the thread.
    fn beside_messages(&mut self, line: &str, records: &mut Vec<Record>) -> Result<ThreadId, FileError> {
        self.close(records)?;
        self.hash(line);
        self.thread.clone().ok_or_else(|| self.fault(LineError::NoThread))
    }

    fn reasoning(
        &mut self,
        line: &str,
        kind: ReasoningRow,
        row: Map<String, Value>,
        records: &mut Vec<Record>,
    ) -> Result<(), FileError> {
        self.close(records)?;
        self.hash(line);
        if kind == ReasoningRow::Session {
            self.counts.reasoning_sessions += 1;
        } else if self.counts.reasoning_sessions == 0 {
            return Err(self.fault(LineError::NoSession));
        }
        if line.contains("\\u0000") {
            return Err(self.unstorable("it holds a NUL character"));
        }
        self.give(Record::Reasoning { kind, row }, records)
    }

    fn message(
        &mut self,
        line: MessageLine,
        bytes: usize,
        records: &mut Vec<Record>,
    ) -> Result<(), FileError> {
        let id = line.message_id.clone();
        let fault = |line: u64, why| FileError { line, message: Some(id.clone()), why };
        let number = self.line;
        if self.thread.is_none() {
            return Err(fault(number, LineError::NoThread));
        }
        let (found, most) = (line.calls(), self.limits.calls);
        if found > most {
            return Err(fault(number, LineError::TooManyCalls { found, most }));
        }
        let item = line.into_item().map_err(|why| fault(number, why))?;
        if self.ids.len() < MOST_IDS && !self.ids.insert(digest(&item.message_id)) {
            return Err(fault(number, LineError::IdTwice));
        }
        if self.open.last().is_some_and(|(_, last)| last.batch_id != item.batch_id) {
            self.close(records)?;
        }
        self.in_order(&item).map_err(|why| fault(number, why))?;
        self.open_bytes += bytes;
        let (most_messages, most_bytes) = (self.limits.batch_messages, self.limits.batch_bytes);
        if self.open.len() >= most_messages {
            return Err(fault(number, LineError::BatchTooLarge { most: most_messages, what: "messages" }));
        }
        if self.open_bytes > most_bytes {
            return Err(fault(number, LineError::BatchTooLarge { most: most_bytes, what: "bytes" }));
        }
        self.open.push((number, item));
        Ok(())
    }

    fn in_order(&self, item: &Item) -> Result<(), LineError> {
        let (position, batch) = (item.position, item.batch_id);
        match (self.open.last(), self.last_batch) {
            (Some((_, last)), _) if position <= last.position => {
                Err(LineError::PositionOrder { position, before: last.position })
            }
            (Some((_, last)), _) if item.sequence_num < last.sequence_num => {
                Err(LineError::NumberOrder { number: item.sequence_num, before: last.sequence_num })
            }
            (None, Some(before)) if batch <= before => Err(LineError::BatchOrder { batch, before }),
            (None, _) if position < batch => Err(LineError::PositionOrder { position, before: batch }),
            _ => Ok(()),
        }
    }

    /// Ends the open batch, because another item begins.
    fn close(&mut self, records: &mut Vec<Record>) -> Result<(), FileError> {
        self.open_bytes = 0;
        let (lines, items): (Vec<u64>, Vec<Item>) = std::mem::take(&mut self.open).into_iter().unzip();
        let (Some(last_line), Some(first), Some(thread)) = (lines.last(), items.first(), self.thread.clone())
        else {
            return Ok(());
        };
        let batch = first.batch_id;
        self.counts.batches += 1;
        self.counts.messages += items.len() as u64;
        self.last_batch = Some(batch);
        let cursor = Cursor { thread: thread.clone(), batch, line: *last_line };
        let damaged = damage(&lines, &items);
        match (damaged, self.limits.invalid_batches) {
            (Some(fault), InvalidBatches::Refuse) => return Err(fault),
            (Some(fault), InvalidBatches::Keep) => {
                let is_after = self.resume.as_ref().is_none_or(|resume| cursor.line > resume.line);
                records.extend(is_after.then_some(Record::Note { batch, fault }));
            }
            (None, _) => {}
        }
        match &self.resume {
            Some(resume) if cursor.line < resume.line => return Ok(()),
            Some(resume) if cursor == *resume => {
                self.is_past = true;
                return Ok(());
            }
            Some(_) | None => self.past()?,
        }
        records.push(Record::Batch { thread, items, cursor });
        Ok(())
    }

    /// True if all items from here on are new.
    ///
    /// # Errors
    /// The cursor's batch does not end where the cursor says.
    fn past(&self) -> Result<(), FileError> {
        match &self.resume {
            Some(Cursor { thread, batch, line }) if !self.is_past => {
                let (thread, batch, line) = (thread.clone(), *batch, *line);
                Err(self.fault(LineError::OtherFile { thread, batch, line }))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn give(&self, record: Record, records: &mut Vec<Record>) -> Result<(), FileError> {
        if self.resume.as_ref().is_some_and(|resume| self.line < resume.line) {
            return Ok(());
        }
        self.past()?;
        records.push(record);
        Ok(())
    }

    fn trailer(&mut self, trailer: &Trailer) -> Result<(), FileError> {
        if trailer.counts != self.counts {
            return Err(self.fault(LineError::Counts { said: trailer.counts, found: self.counts }));
        }
        if trailer.sha256 != hex(&std::mem::take(&mut self.digest).finalize()) {
            return Err(self.fault(LineError::Digest));
        }
        self.past()?;
        self.stage = ReadStage::End;
        Ok(())
    }
}

/// Damage that no interrupted turn leaves behind.
fn damage(lines: &[u64], items: &[Item]) -> Option<FileError> {
    let first = items.first()?;
    let batch = Batch::new(first.batch_id, items.iter().cloned().map(Into::into).collect());
    let BatchState::Incomplete(why) = batch.state() else { return None };
    let at = match &why {
        IncompleteReason::OrphanResult { .. } => {
            crate::Pairing::of(items).orphans().first().copied().unwrap_or_default()
        }
        IncompleteReason::Doubled { number } => {
            items.iter().rposition(|item| item.sequence_num == *number).unwrap_or_default()
        }
        IncompleteReason::Hole { missing } => {
            items.iter().position(|item| item.sequence_num > *missing).unwrap_or_default()
        }
        _ => return None,
    };
    let message = items.get(at).and_then(|item| named(&item.message_id));
    Some(FileError {
        line: lines.get(at).copied().unwrap_or_default(),
        message,
        why: LineError::Damaged(why),
    })
}

fn digest(id: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}
