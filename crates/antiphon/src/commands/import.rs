//! Imports threads from exports, and messages of other systems.

mod cursor;
mod foreign;
mod lines;
mod sessions;

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use batches::Item;
use batches::export_import::{
    Cursor, ExportReader, ExportedThread, FileError, ImportLimits, InvalidBatches, Record,
};
use model::{Metadata, Position, ThreadId};
use serde_json::{Value, json};
use store::{CompactionImport, ImportOutcome, NewThread, Store, StoreError};
use tokio::task::JoinHandle;

use self::cursor::{CursorFile, Mark};
use self::lines::Lines;
use self::sessions::SessionImporter;
use super::lookup::erasure;
use super::progress::Progress;
use crate::exit::ExitError;
use crate::options::Import;
use crate::output::{self, eprint_line};

/// Maximum number of messages in batches that are written together.
const GROUP_MESSAGES: usize = 1_000;
/// Maximum size of batches that are written together. A larger batch is written alone.
const GROUP_BYTES: u64 = 4 << 20;

pub(super) async fn run(store: &Store, options: &Import) -> Result<(), ExitError> {
    let source = open(options.file.as_deref())?;
    let mut importer = Importer::new(store, options.resume.as_deref())?;
    let report = match options.from {
        Some(format) => Some(importer.foreign(format, options, source).await?),
        None => {
            importer.exported(source, options.keep_invalid).await?;
            None
        }
    };
    importer.progress.clear();
    let mut json = importer.totals.shown();
    if let Some(report) = &report {
        json["notes"] = json!(report.notes);
        json["left_out"] = report.left_out();
    }
    output::print(options.database.output.format(), &json, || output::key_value_table(&json))
}

/// The store in the scope of the thread's tenant: writes are refused once the tenant is erased.
fn scoped(store: &Store, thread: &ThreadId) -> Store {
    store.for_tenant(thread.tenant())
}

/// The thread whose turn this batch follows. `None`, unless the batch belongs to the thread of a
/// background queue.
fn source_thread(thread: &ThreadId, items: &[Item]) -> Option<ThreadId> {
    let (kind, first) = (thread.background_kind()?, items.first()?);
    model::stored_source_thread(&thread.agent(), kind, &first.metadata)
}

fn open(path: Option<&Path>) -> Result<Box<dyn Read + Send>, ExitError> {
    let Some(path) = path else { return Ok(Box::new(io::stdin())) };
    let file = File::open(path)
        .map_err(|error| ExitError::Failed(format!("{} cannot be read: {error}", path.display())))?;
    Ok(Box::new(file))
}

/// Counts of the items read, and of the new ones among them.
#[derive(Debug, Default)]
struct Totals {
    threads: u64,
    batches: u64,
    messages: u64,
    compactions: u64,
    new_threads: u64,
    new_messages: u64,
    new_compactions: u64,
    reasoning_sessions: u64,
    new_reasoning_sessions: u64,
}

impl Totals {
    fn shown(&self) -> Value {
        json!({
            "threads": self.threads,
            "batches": self.batches,
            "messages": self.messages,
            "compactions": self.compactions,
            "new_threads": self.new_threads,
            "new_messages": self.new_messages,
            "new_compactions": self.new_compactions,
            "reasoning_sessions": self.reasoning_sessions,
            "new_reasoning_sessions": self.new_reasoning_sessions,
        })
    }
}

/// Batches that are being written while the next ones are read.
struct Flight {
    written: JoinHandle<Result<ImportOutcome, StoreError>>,
    thread: ThreadId,
    /// Batch ids with their last lines.
    lines: Vec<(Position, u64)>,
    /// The progress of the import once these batches are stored.
    mark: Option<Mark>,
}

struct Importer<'a> {
    store: &'a Store,
    progress: Progress,
    totals: Totals,
    file: CursorFile,
    /// The thread that is being read.
    thread: Option<ThreadId>,
    /// The thread was erased here: its records in the file are left out.
    is_erased: bool,
    /// Whole batches of the thread that are not written yet.
    group: Vec<Item>,
    bytes: u64,
    /// Ids of these batches with their last lines.
    lines: Vec<(Position, u64)>,
    /// Written batches that extend beyond the possible beginning of the next one, with their last
    /// messages.
    beside: Vec<(Position, Position)>,
    flight: Option<Flight>,
    /// The last thread that was looked up, and whether it was erased.
    last_source: Option<(ThreadId, bool)>,
    sessions: SessionImporter,
}

impl<'a> Importer<'a> {
    fn new(store: &'a Store, cursor: Option<&Path>) -> Result<Self, ExitError> {
        Ok(Self {
            store,
            progress: Progress::new(),
            totals: Totals::default(),
            file: CursorFile::new(cursor),
            thread: None,
            is_erased: false,
            group: Vec::new(),
            bytes: 0,
            lines: Vec::new(),
            beside: Vec::new(),
            flight: None,
            last_source: None,
            sessions: SessionImporter::default(),
        })
    }

    async fn exported(&mut self, source: Box<dyn Read + Send>, keep: bool) -> Result<(), ExitError> {
        let invalid_batches = if keep { InvalidBatches::Keep } else { InvalidBatches::Refuse };
        let limits = ImportLimits { invalid_batches, ..ImportLimits::default() };
        let mut reader = match self.file.read()? {
            Some(saved) => {
                self.beside = saved.beside;
                self.next_thread(&saved.cursor.thread).await?;
                ExportReader::resume(limits, saved.cursor)
            }
            None => ExportReader::new(limits),
        };
        let mut lines = Lines::new(BufReader::with_capacity(1 << 20, source), limits.line_bytes);
        while let Some(line) = lines.next()? {
            match reader.line(line) {
                Ok(records) => {
                    for record in records {
                        self.record(record).await?;
                    }
                }
                Err(fault) => return Err(self.faulty(&fault).await),
            }
            let counts = reader.counts();
            self.progress.show(|| format!("{} messages of {} threads", counts.messages, counts.threads));
        }
        match reader.finish() {
            Ok(_) => self.file.remove(),
            Err(fault) => Err(self.faulty(&fault).await),
        }
    }

    /// Writes everything before the fault, so that the import of a truncated export can continue.
    async fn faulty(&mut self, fault: &FileError) -> ExitError {
        self.progress.clear();
        if let Err(stop) = self.flush().await {
            return stop;
        }
        let stored = format!("{} new messages before it are stored", self.totals.new_messages);
        ExitError::Failed(format!("{fault}; {stored}, nothing after it"))
    }

    async fn record(&mut self, record: Record) -> Result<(), ExitError> {
        match record {
            Record::Thread(thread) => {
                self.flush().await?;
                self.beside.clear();
                self.next_thread(&thread.thread_id).await?;
                if self.is_erased { Ok(()) } else { self.begin(&thread).await }
            }
            Record::Batch { .. }
            | Record::LastNumber { .. }
            | Record::Compaction { .. }
            | Record::FollowUp { .. }
                if self.is_erased =>
            {
                Ok(())
            }
            Record::Batch { items, cursor, .. } => self.batch(items, cursor).await,
            Record::Note { batch, fault } => {
                eprint_line(&format!("{fault}; batch {batch} is taken as it is"));
                Ok(())
            }
            Record::LastNumber { thread, last_number } => {
                self.flush().await?;
                Ok(scoped(self.store, &thread).raise_last_number(&thread, last_number).await?)
            }
            Record::Compaction { thread, mut compaction } => {
                self.flush().await?;
                self.totals.compactions += 1;
                let id = compaction.id;
                if thread.background_kind().is_some() {
                    // The export is from an earlier build. Such threads have no summaries now,
                    // because a summary may contain text that is left out.
                    compaction.summary = None;
                }
                let why = match scoped(self.store, &thread).import_compaction(&thread, &compaction).await? {
                    CompactionImport::Same => return Ok(()),
                    CompactionImport::Written => {
                        self.totals.new_compactions += 1;
                        return Ok(());
                    }
                    CompactionImport::Other => "it is there already in another form",
                    CompactionImport::Before => "it comes before what the thread already has",
                    CompactionImport::Erased => "the thread has been erased meanwhile",
                };
                Err(ExitError::Failed(format!("compaction {id} of thread {thread}: {why}")))
            }
            Record::FollowUp { thread, row } => {
                self.flush().await?;
                let row = transfer::read_follow_up(&thread, row).map_err(ExitError::Failed)?;
                scoped(self.store, &thread).import_follow_up(&row).await?;
                Ok(())
            }
            Record::Reasoning { kind, row } => {
                self.flush().await?;
                self.sessions.row(self.store, kind, row).await
            }
            Record::End(_) => {
                self.flush().await?;
                self.sessions.finish().await?;
                self.totals.reasoning_sessions = self.sessions.read;
                self.totals.new_reasoning_sessions = self.sessions.new;
                Ok(())
            }
        }
    }

    /// Records from now on belong to this thread.
    async fn next_thread(&mut self, thread: &ThreadId) -> Result<(), ExitError> {
        let erasure = erasure(self.store, thread).await?;
        self.thread = Some(thread.clone());
        self.is_erased = erasure.is_some();
        if let Some(erasure) = erasure {
            eprint_line(&format!("{erasure}, and is left out"));
        }
        Ok(())
    }

    async fn begin(&mut self, thread: &ExportedThread) -> Result<(), ExitError> {
        let id = &thread.thread_id;
        let metadata = Metadata::new(thread.metadata.clone())
            .map_err(|error| ExitError::Failed(format!("thread {id}: {error}")))?;
        let named = NewThread {
            thread: id.clone(),
            agent: thread.agent_id.clone(),
            policy: thread.busy_policy,
            metadata,
        };
        let is_new = scoped(self.store, id).import_thread(&named).await?;
        if !is_new {
            let row = self.store.thread(id).await?;
            let is_same = row.is_none_or(|row| row.named == named);
            if !is_same {
                eprint_line(&format!(
                    "thread {id} is there with another agent, policy or metadata, and keeps them"
                ));
            }
        }
        self.totals.threads += 1;
        self.totals.new_threads += u64::from(is_new);
        Ok(())
    }

    /// Cached, because batches with text of one thread often follow each other.
    async fn is_source_erased(&mut self, source: &ThreadId) -> Result<bool, ExitError> {
        if let Some((thread, is_erased)) = &self.last_source
            && thread == source
        {
            return Ok(*is_erased);
        }
        let is_erased = self.store.erased(source).await?.is_some_and(|erased| !erased.is_named);
        self.last_source = Some((source.clone(), is_erased));
        Ok(is_erased)
    }

    async fn batch(&mut self, items: Vec<Item>, cursor: Cursor) -> Result<(), ExitError> {
        if let Some(source) = source_thread(&cursor.thread, &items)
            && self.is_source_erased(&source).await?
        {
            eprint_line(&format!(
                "thread {}: batch {} is left out: it has text of thread {source}, which was erased",
                cursor.thread, cursor.batch
            ));
            return Ok(());
        }
        let bytes: u64 = items.iter().map(Item::bytes).sum();
        let is_full = self.group.len() + items.len() > GROUP_MESSAGES || self.bytes + bytes > GROUP_BYTES;
        if is_full {
            self.write().await?;
        }
        self.totals.batches += 1;
        self.totals.messages += items.len() as u64;
        self.bytes += bytes;
        self.lines.push((cursor.batch, cursor.line));
        self.group.extend(items);
        self.thread = Some(cursor.thread.clone());
        self.file.reached(cursor);
        Ok(())
    }

    /// Writes the gathered batches, and waits until they are stored.
    async fn flush(&mut self) -> Result<(), ExitError> {
        self.write().await?;
        self.settle().await
    }

    /// Starts to write the gathered batches in one transaction, after the previous ones are stored.
    async fn write(&mut self) -> Result<(), ExitError> {
        self.settle().await?;
        let Some(thread) = self.thread.clone().filter(|_| !self.group.is_empty()) else { return Ok(()) };
        self.distinct(&thread)?;
        let beside: Vec<Position> = self.beside.iter().map(|(batch, _)| *batch).collect();
        self.remember();
        let (items, lines) = (std::mem::take(&mut self.group), std::mem::take(&mut self.lines));
        self.bytes = 0;
        let (store, of) = (scoped(self.store, &thread), thread.clone());
        let written =
            runtime::spawn_named("import", async move { store.import_batches(&of, &items, &beside).await });
        self.flight = Some(Flight { written, thread, lines, mark: self.file.mark(&self.beside) });
        Ok(())
    }

    /// Waits for the batches that are being written.
    async fn settle(&mut self) -> Result<(), ExitError> {
        let Some(Flight { written, thread, lines, mark }) = self.flight.take() else { return Ok(()) };
        let taken = written.await.map_err(|error| ExitError::Failed(error.to_string()))??;
        let (batch, message, why) = match taken {
            ImportOutcome::Stored(new) => {
                self.totals.new_messages += new;
                return mark.map_or(Ok(()), |mark| self.file.write(&mark));
            }
            ImportOutcome::Refused { batch, message, why } => (batch, message, why),
        };
        let line = lines.iter().find(|(id, _)| *id == batch).map(|(_, line)| *line);
        let line = line.filter(|line| *line > 0).map_or(String::new(), |line| format!("line {line}, "));
        let message = message.map_or(String::new(), |message| format!("message {message:?}, "));
        let what = format!("{line}{message}batch {batch} of thread {thread}: {why}");
        let from = lines.first().map_or(batch, |(first, _)| *first);
        self.progress.clear();
        // The batches after the refused one must not be written either.
        self.group.clear();
        self.lines.clear();
        Err(ExitError::Failed(format!("{what}; nothing from batch {from} on is written")))
    }

    /// Batches come in the order of their ids. Only batches that extend beyond the newest id can
    /// overlap the next ones.
    fn remember(&mut self) {
        for item in &self.group {
            match self.beside.last_mut().filter(|(batch, _)| *batch == item.batch_id) {
                Some((_, last)) => *last = item.position,
                None => self.beside.push((item.batch_id, item.position)),
            }
        }
        let newest = self.beside.last().map(|(batch, _)| *batch);
        self.beside.retain(|(_, last)| newest.is_some_and(|newest| *last > newest));
    }

    /// Positions and ids must be unique. The error of the store would be less clear.
    fn distinct(&self, thread: &ThreadId) -> Result<(), ExitError> {
        let (mut places, mut ids) = (HashSet::new(), HashSet::new());
        let mut items = self.group.iter();
        match items.find(|item| !places.insert(item.position) || !ids.insert(item.message_id.as_str())) {
            None => Ok(()),
            Some(item) => Err(ExitError::Failed(format!(
                "message {:?} of thread {thread}: its id or its position {} has been before in this thread",
                item.message_id.as_str(),
                item.position
            ))),
        }
    }
}
