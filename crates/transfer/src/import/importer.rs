//! Gathers the records of a thread, and writes them in as few transactions as possible.

use std::collections::HashSet;

use batches::export_import::{Cursor, ExportedThread, Record};
use batches::{Compaction, Item};
use model::{Metadata, Position, ThreadId, ThreadTitle};
use store::{ImportAct, ImportOutcome, NewThread, Store, StoreError, ThreadImport};
use tokio::task::JoinHandle;

use super::interface::{
    ImportFault, ImportMark, ImportOptions, ImportReports, PartLimits, ReadEnd, TenantOnly,
};
use super::outcome::{self, ImportReport, ImportTotals, ItemText, ReportKind};
use super::sessions::SessionImporter;
use crate::erasure::erasure;
use crate::{feedback_line, follow_up_line};

/// Writes threads, one after the other. Callers give the records of a thread in the order of an
/// export.
#[derive(Debug)]
pub struct Importer {
    store: Store,
    part: PartLimits,
    tenant: Option<TenantOnly>,
    act: Option<ImportAct>,
    totals: ImportTotals,
    open: Option<OpenThread>,
    flight: Option<Flight>,
    /// The last thread that was looked up, and whether it was erased.
    last_source: Option<(ThreadId, bool)>,
    sessions: SessionImporter,
}

/// The thread that is being read.
#[derive(Debug)]
struct OpenThread {
    id: ThreadId,
    /// The rest of its records is not imported.
    is_left_out: bool,
    /// What of it was stored.
    stored: StoredParts,
    gathered: Gathered,
    /// Batches that are written, or being written, and extend beyond the possible beginning of the
    /// next one, with their last messages.
    beside: Vec<(Position, Position)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoredParts {
    Nothing,
    Unchanged,
    Changed,
}

/// A part of a thread that is not written yet.
#[derive(Debug, Default)]
struct Gathered {
    /// The line of the thread, if the part begins it.
    named: Option<(NewThread, u64)>,
    items: Vec<Item>,
    /// Batch ids with their last lines.
    lines: Vec<(Position, u64)>,
    last_number: Option<u64>,
    compactions: Vec<(Compaction, u64)>,
    follow_ups: Vec<store::FollowUpRow>,
    feedback: Vec<store::ImportedFeedback>,
    title: Option<ThreadTitle>,
    archived: bool,
    bytes: u64,
    cursor: Option<Cursor>,
}

/// A part that is being written while the next one is read.
#[derive(Debug)]
struct Flight {
    written: JoinHandle<Result<ImportOutcome, StoreError>>,
    lines: Vec<(Position, u64)>,
    compactions: Vec<(Position, u64)>,
    /// The line of the thread, if the part begins it.
    begins: Option<u64>,
    messages: u64,
    /// The progress of the import once this part is stored.
    mark: Option<ImportMark>,
}

/// The thread whose turn this batch of a queue's thread follows.
fn source_thread(thread: &ThreadId, items: &[Item]) -> Option<ThreadId> {
    let (kind, first) = (thread.background_kind()?, items.first()?);
    model::stored_source_thread(&thread.agent(), kind, &first.metadata)
}

impl Importer {
    pub fn new(store: &Store, options: ImportOptions) -> Self {
        let ImportOptions { part, tenant, act, .. } = options;
        Self {
            store: store.clone(),
            part,
            tenant,
            act,
            totals: ImportTotals::default(),
            open: None,
            flight: None,
            last_source: None,
            sessions: SessionImporter::default(),
        }
    }

    /// The counts so far.
    pub fn totals(&self) -> &ImportTotals {
        &self.totals
    }

    /// Continues a thread of which a part is stored.
    pub(super) async fn resume<R: ImportReports>(
        &mut self,
        reports: &mut R,
        mark: &ImportMark,
    ) -> Result<(), R::Error> {
        self.next_thread(reports, &mark.cursor.thread).await?;
        if let Some(open) = &mut self.open {
            open.beside = mark.beside.clone();
        }
        Ok(())
    }

    pub(super) async fn record<R: ImportReports>(
        &mut self,
        reports: &mut R,
        record: Record,
        line: u64,
    ) -> Result<(), ReadEnd<R::Error>> {
        match record {
            Record::Thread(thread) => return self.begin(reports, thread, line).await,
            Record::Batch { items, cursor, .. } => self.batch(reports, items, cursor).await,
            Record::Note { batch, fault } => match &self.open {
                Some(open) if !open.is_left_out => {
                    let text = format!("{fault}; batch {batch} is taken as it is");
                    let line = Some(fault.line);
                    reports.report(ImportReport::of_thread(ReportKind::Note, &open.id, line, text))
                }
                Some(_) | None => Ok(()),
            },
            Record::LastNumber { last_number, .. } => {
                if let Some(open) = &mut self.open {
                    open.gathered.last_number = Some(last_number);
                }
                Ok(())
            }
            Record::Compaction { thread, mut compaction } => {
                if thread.background_kind().is_some() {
                    // The export is from an earlier build. Such threads have no summaries now,
                    // because a summary may contain text that is left out.
                    compaction.summary = None;
                }
                self.compaction(reports, compaction, line).await
            }
            Record::FollowUp { thread, row } => {
                let row = follow_up_line::read(&thread, row).map_err(|why| ImportFault::new(line, why))?;
                return self.follow_up(reports, row, line).await;
            }
            Record::Feedback { thread, row } => {
                let row = feedback_line::read(&thread, row).map_err(|why| ImportFault::new(line, why))?;
                let bytes = row.feedback.size();
                self.make_room(reports, 1, bytes).await.map_err(ReadEnd::Other)?;
                if let Some(gathered) = self.gathered() {
                    gathered.bytes += bytes;
                    gathered.feedback.push(row);
                }
                return Ok(());
            }
            Record::Reasoning { kind, row } => {
                self.flush(reports).await.map_err(ReadEnd::Other)?;
                let Self { sessions, store, tenant, totals, .. } = self;
                return sessions.row(reports, (store, tenant.as_ref(), totals), kind, row, line).await;
            }
            Record::End(_) => {
                self.flush(reports).await.map_err(ReadEnd::Other)?;
                return self.sessions.finish(reports, &mut self.totals).await.map_err(ReadEnd::Other);
            }
        }
        .map_err(ReadEnd::Other)
    }

    /// Begins a thread, after the one before is stored.
    ///
    /// # Errors
    /// Its metadata cannot be stored, the store fails, or a report ends the import.
    pub async fn begin_thread<R: ImportReports>(
        &mut self,
        reports: &mut R,
        thread: ExportedThread,
    ) -> Result<(), R::Error> {
        self.begin(reports, thread, 0).await.map_err(|end| match end {
            ReadEnd::Fault(fault) => fault.into(),
            ReadEnd::Other(error) => error,
        })
    }

    async fn begin<R: ImportReports>(
        &mut self,
        reports: &mut R,
        thread: ExportedThread,
        line: u64,
    ) -> Result<(), ReadEnd<R::Error>> {
        let ExportedThread { thread_id, agent_id, busy_policy, metadata, title, archived } = thread;
        self.next_thread(reports, &thread_id).await.map_err(ReadEnd::Other)?;
        let metadata = Metadata::new(metadata)
            .map_err(|error| ImportFault::new(line, format!("thread {thread_id}: {error}")))?;
        if title.as_ref().is_some_and(|title| !ThreadTitle::is_valid(&title.text)) {
            let fault = format!(
                "thread {thread_id}: its title is no line of 1 to {} characters",
                ThreadTitle::MAX_LEN
            );
            return Err(ImportFault::new(line, fault).into());
        }
        let agent_tenant = agent_id.as_ref().map(model::AgentId::tenant);
        let tenants = [Some(thread_id.tenant()), agent_tenant].into_iter().flatten();
        let foreign =
            self.tenant.as_ref().and_then(|only| tenants.into_iter().find_map(|of| only.refusal(of)));
        if let Some(why) = foreign {
            return self.refuse(reports, Some(line), &"", &why).map_err(ReadEnd::Other);
        }
        if let Some(open) = &mut self.open {
            let named = NewThread { thread: thread_id, agent: agent_id, policy: busy_policy, metadata };
            open.gathered.named = Some((named, line));
            (open.gathered.title, open.gathered.archived) = (title, archived);
        }
        Ok(())
    }

    /// Records from now on belong to this thread.
    async fn next_thread<R: ImportReports>(
        &mut self,
        reports: &mut R,
        thread: &ThreadId,
    ) -> Result<(), R::Error> {
        self.flush(reports).await?;
        let is_foreign = self.tenant.as_ref().is_some_and(|only| only.refusal(thread.tenant()).is_some());
        let erasure = if is_foreign { None } else { erasure(&self.store, thread).await? };
        self.open = Some(OpenThread {
            id: thread.clone(),
            is_left_out: erasure.is_some(),
            stored: StoredParts::Nothing,
            gathered: Gathered::default(),
            beside: Vec::new(),
        });
        let Some(erasure) = erasure else { return Ok(()) };
        self.totals.left_out += 1;
        let text = format!("{erasure}, and is left out");
        reports.report(ImportReport::of_thread(ReportKind::LeftOut, thread, None, text))
    }

    /// Leaves the rest of the thread out, and reports why.
    fn refuse<R: ImportReports>(
        &mut self,
        reports: &mut R,
        line: Option<u64>,
        item: &dyn std::fmt::Display,
        why: &dyn std::fmt::Display,
    ) -> Result<(), R::Error> {
        let Some(open) = &mut self.open else { return Ok(()) };
        self.totals.refused += 1;
        open.is_left_out = true;
        let gathered = std::mem::take(&mut open.gathered);
        let from = gathered.lines.first().map(|(batch, _)| *batch);
        let from = from.filter(|_| open.stored != StoredParts::Nothing);
        reports.report(outcome::refused(&open.id, line, item, why, from))
    }

    /// Takes a whole batch of the thread.
    ///
    /// # Errors
    /// The store fails, or a report ends the import.
    pub async fn batch<R: ImportReports>(
        &mut self,
        reports: &mut R,
        items: Vec<Item>,
        cursor: Cursor,
    ) -> Result<(), R::Error> {
        if self.is_left_out() {
            return Ok(());
        }
        if let Some(source) = source_thread(&cursor.thread, &items)
            && self.is_source_erased(&source).await?
        {
            let Cursor { thread, batch, line } = &cursor;
            let text = format!(
                "thread {thread}: batch {batch} is left out: it has text of thread {source}, which was erased"
            );
            return reports.report(ImportReport::of_thread(ReportKind::Note, thread, Some(*line), text));
        }
        let bytes = items.iter().map(Item::bytes).sum();
        self.make_room(reports, items.len(), bytes).await?;
        if let Some(gathered) = self.gathered() {
            gathered.lines.push((cursor.batch, cursor.line));
            gathered.items.extend(items);
            gathered.bytes += bytes;
            gathered.cursor = Some(cursor);
        }
        Ok(())
    }

    async fn compaction<R: ImportReports>(
        &mut self,
        reports: &mut R,
        compaction: Compaction,
        line: u64,
    ) -> Result<(), R::Error> {
        let positions = compaction.kept.len() + compaction.provenance.batches.len();
        let bytes = compaction.summary.as_ref().map_or(0, String::len) + 20 * positions;
        self.make_room(reports, 0, bytes as u64).await?;
        if let Some(gathered) = self.gathered() {
            gathered.bytes += bytes as u64;
            gathered.compactions.push((compaction, line));
        }
        Ok(())
    }

    async fn follow_up<R: ImportReports>(
        &mut self,
        reports: &mut R,
        row: store::FollowUpRow,
        line: u64,
    ) -> Result<(), ReadEnd<R::Error>> {
        let foreign = self.tenant.as_ref().and_then(|only| only.refusal(row.agent.tenant()));
        if let (Some(why), false) = (foreign, self.is_left_out()) {
            let item = format!("the agent of follow-up {} of ", row.timer);
            return self.refuse(reports, Some(line), &item, &why).map_err(ReadEnd::Other);
        }
        let bytes = row.body.to_value().to_string().len() as u64;
        self.make_room(reports, 1, bytes).await.map_err(ReadEnd::Other)?;
        if let Some(gathered) = self.gathered() {
            gathered.bytes += bytes;
            gathered.follow_ups.push(row);
        }
        Ok(())
    }

    fn is_left_out(&self) -> bool {
        self.open.as_ref().is_none_or(|open| open.is_left_out)
    }

    /// The part that takes more of the thread; `None` if the rest of the thread is left out.
    fn gathered(&mut self) -> Option<&mut Gathered> {
        self.open.as_mut().filter(|open| !open.is_left_out).map(|open| &mut open.gathered)
    }

    /// Starts to write the gathered part if it would become too large.
    async fn make_room<R: ImportReports>(
        &mut self,
        reports: &mut R,
        rows: usize,
        bytes: u64,
    ) -> Result<(), R::Error> {
        let PartLimits { messages, bytes: most_bytes } = self.part;
        let is_full = self.gathered().is_some_and(|gathered| {
            let there = gathered.items.len() + gathered.follow_ups.len() + gathered.feedback.len();
            there + rows > messages || gathered.bytes + bytes > most_bytes
        });
        if is_full { self.write(reports).await } else { Ok(()) }
    }

    /// Cached, because batches with text of one thread often follow each other.
    async fn is_source_erased(&mut self, source: &ThreadId) -> Result<bool, StoreError> {
        if let Some((thread, is_erased)) = &self.last_source
            && thread == source
        {
            return Ok(*is_erased);
        }
        let is_erased = self.store.erased(source).await?.is_some_and(|erased| !erased.is_named);
        self.last_source = Some((source.clone(), is_erased));
        Ok(is_erased)
    }

    /// Writes the rest of the thread, and waits until it is stored.
    ///
    /// # Errors
    /// The store fails, or a report ends the import.
    pub async fn flush<R: ImportReports>(&mut self, reports: &mut R) -> Result<(), R::Error> {
        self.write(reports).await?;
        self.settle(reports).await?;
        if let Some(open) = self.open.take()
            && open.stored == StoredParts::Changed
        {
            self.totals.changed_threads += 1;
        }
        reports.show(&self.totals);
        Ok(())
    }

    /// Waits for the part that is being written, and leaves out what is not written yet.
    pub(super) async fn abandon<R: ImportReports>(&mut self, reports: &mut R) {
        // The import ends for another reason already.
        let _ = self.settle(reports).await;
        let Some(open) = self.open.take().filter(|open| open.stored != StoredParts::Nothing) else {
            return reports.show(&self.totals);
        };
        self.totals.changed_threads += u64::from(open.stored == StoredParts::Changed);
        let text = format!("thread {}: only a part of it was read: import all of it again", open.id);
        let _ = reports.report(ImportReport::of_thread(ReportKind::Incomplete, &open.id, None, text));
        reports.show(&self.totals);
    }

    /// Starts to write the gathered part in one transaction, after the previous part is stored.
    async fn write<R: ImportReports>(&mut self, reports: &mut R) -> Result<(), R::Error> {
        self.settle(reports).await?;
        let Some(open) = self.open.as_mut().filter(|open| !open.is_left_out) else { return Ok(()) };
        if open.gathered.is_empty() {
            return Ok(());
        }
        if let Some((line, id, position)) = open.gathered.doubled() {
            let item = format!("message {id:?} of ");
            let why = format!("its id or its position {position} has been before in this thread");
            return self.refuse(reports, line, &item, &why);
        }
        let beside = open.beside.iter().map(|(batch, _)| *batch).collect();
        let gathered = std::mem::take(&mut open.gathered);
        open.remember(&gathered.items);
        let mark = gathered.cursor.map(|cursor| ImportMark { cursor, beside: open.beside.clone() });
        let (named, begins) = gathered.named.unzip();
        let messages = gathered.items.len() as u64;
        let lines_of = |(compaction, line): &(Compaction, u64)| (compaction.id, *line);
        let compactions = gathered.compactions.iter().map(lines_of).collect();
        let import = ThreadImport {
            thread: open.id.clone(),
            named,
            items: gathered.items,
            beside,
            last_number: gathered.last_number,
            compactions: gathered.compactions.into_iter().map(|(compaction, _)| compaction).collect(),
            follow_ups: gathered.follow_ups,
            feedback: gathered.feedback,
            title: gathered.title,
            archived: gathered.archived,
        };
        // In the scope of the thread's tenant writes are refused once the tenant is erased.
        let (store, act) = (self.store.for_tenant(open.id.tenant()), self.act.clone());
        let written =
            runtime::spawn_named("import", async move { store.import_thread(&import, act.as_ref()).await });
        self.flight = Some(Flight { written, lines: gathered.lines, compactions, begins, messages, mark });
        Ok(())
    }

    /// Waits for the part that is being written.
    async fn settle<R: ImportReports>(&mut self, reports: &mut R) -> Result<(), R::Error> {
        let Some(flight) = self.flight.take() else { return Ok(()) };
        let written = flight.written.await.map_err(|error| StoreError::Row(error.to_string()))?;
        let refusal = match written {
            Ok(ImportOutcome::Stored(rows)) => {
                self.add(&flight.lines, flight.begins, flight.messages, flight.compactions.len(), rows);
                if rows.keeps_own
                    && let Some(open) = &self.open
                {
                    let text = format!(
                        "thread {} is there with another agent, policy or metadata, and keeps them",
                        open.id
                    );
                    reports.report(ImportReport::of_thread(
                        ReportKind::Note,
                        &open.id,
                        flight.begins,
                        text,
                    ))?;
                }
                reports.stored(flight.mark.as_ref())?;
                reports.show(&self.totals);
                return Ok(());
            }
            Ok(ImportOutcome::Refused(refusal)) => refusal,
            Err(error) if error.refuses_data() => {
                let line = flight.begins.or(flight.lines.first().map(|(_, line)| *line));
                return self.refuse(reports, line, &"", &format!("a value cannot be stored: {error}"));
            }
            Err(error) => return Err(error.into()),
        };
        let line_of =
            |lines: &[(Position, u64)], id| lines.iter().find(|(of, _)| *of == id).map(|(_, line)| *line);
        let line = match &refusal.item {
            store::RefusedItem::Thread => flight.begins,
            store::RefusedItem::Batch { batch, .. } => line_of(&flight.lines, *batch),
            store::RefusedItem::Compaction(id) => line_of(&flight.compactions, *id),
        };
        if let Some(open) = &mut self.open {
            // The batches after the refused one must not be written either.
            open.gathered = Gathered { lines: flight.lines, ..Gathered::default() };
        }
        self.refuse(reports, line.filter(|line| *line > 0), &ItemText(&refusal), &refusal.why)
    }

    fn add(
        &mut self,
        lines: &[(Position, u64)],
        begins: Option<u64>,
        messages: u64,
        compactions: usize,
        rows: store::ImportedRows,
    ) {
        let totals = &mut self.totals;
        totals.threads += u64::from(begins.is_some());
        totals.batches += lines.len() as u64;
        totals.messages += messages;
        totals.compactions += compactions as u64;
        totals.new_threads += u64::from(rows.is_new_thread);
        totals.new_messages += rows.messages;
        totals.new_compactions += rows.compactions;
        let is_changed = rows.is_new_thread || rows.messages > 0 || rows.compactions > 0;
        if let Some(open) = &mut self.open
            && open.stored != StoredParts::Changed
        {
            open.stored = if is_changed { StoredParts::Changed } else { StoredParts::Unchanged };
        }
    }
}

impl OpenThread {
    /// Batches come in the order of their ids. Only batches that extend beyond the newest id can
    /// overlap the next ones.
    fn remember(&mut self, items: &[Item]) {
        for item in items {
            match self.beside.last_mut().filter(|(batch, _)| *batch == item.batch_id) {
                Some((_, last)) => *last = item.position,
                None => self.beside.push((item.batch_id, item.position)),
            }
        }
        let newest = self.beside.last().map(|(batch, _)| *batch);
        self.beside.retain(|(_, last)| newest.is_some_and(|newest| *last > newest));
    }
}

impl Gathered {
    fn is_empty(&self) -> bool {
        self.named.is_none()
            && self.items.is_empty()
            && self.last_number.is_none()
            && self.compactions.is_empty()
            && self.follow_ups.is_empty()
            && self.feedback.is_empty()
    }

    /// A message whose id or position another one has: the line of its batch, its id and position.
    /// The error of the store would be less clear.
    fn doubled(&self) -> Option<(Option<u64>, String, Position)> {
        let (mut places, mut ids) = (HashSet::new(), HashSet::new());
        let mut items = self.items.iter();
        let item =
            items.find(|item| !places.insert(item.position) || !ids.insert(item.message_id.as_str()))?;
        let line = self.lines.iter().find(|(batch, _)| *batch == item.batch_id).map(|(_, line)| *line);
        Some((line.filter(|line| *line > 0), item.message_id.as_str().to_owned(), item.position))
    }
}
