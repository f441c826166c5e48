//! Writes threads as JSON Lines.
//!
//! In nearly every thread the batches follow each other, and messages are read in order. Where
//! batches interleave, or data is damaged, the rest is assembled batch by batch.

use batches::export_import::{ExportCounts, ExportWriter, ExportedThread, ReasoningRow};
use batches::{Batch, BatchState, IncompleteReason, Item};
use model::{Position, ReasoningSessionId, ThreadId, TitleSource};
use store::{FeedbackRow, Store, StoreError};
use tokio::task::JoinHandle;

use crate::batch_pages::{self, BatchPages};
use crate::thread_pages::{ExportScope, PAGE, ThreadPages};
use crate::{feedback_line, follow_up_line};

/// Takes the lines of an export.
pub trait ExportSink: Send {
    /// Ends the export.
    type Error: From<StoreError> + Send;

    /// Takes whole lines, and waits while the receiver is slow.
    fn write(&mut self, lines: String) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Shows what was written so far.
    fn show(&mut self, _counts: ExportCounts) {}
}

/// How an export is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportOptions {
    /// Maximum number and size in bytes of messages that are read at once. A single message may be
    /// larger.
    pub page_messages: u32,
    pub page_bytes: u64,
    /// Whether the reasoning sessions of the threads are written.
    pub has_sessions: bool,
}

impl Default for ExportOptions {
    fn default() -> Self {
        Self { page_messages: 2_000, page_bytes: 8 << 20, has_sessions: true }
    }
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    pub counts: ExportCounts,
    /// Damage that an import refuses, with its thread.
    pub damaged: Vec<(ThreadId, String)>,
}

/// Writes all of a scope, from the header to the trailer. Each thread is written as it is at that
/// time; a named thread that does not exist is left out.
///
/// # Errors
/// The store cannot be read, or the sink takes nothing more.
pub async fn export<S: ExportSink>(
    store: &Store,
    scope: &ExportScope,
    options: ExportOptions,
    sink: &mut S,
) -> Result<Exported, S::Error> {
    let writer = ExportWriter::new();
    let mut exporter = Exporter { store, options, writer, sink, damaged: Vec::new(), last_number: 0 };
    exporter.sink.write(exporter.writer.header()).await?;
    let mut threads = ThreadPages::new(store, scope);
    loop {
        let page = threads.next().await?;
        if page.is_empty() {
            break;
        }
        for thread in &page {
            exporter.thread(thread).await?;
        }
    }
    if options.has_sessions {
        exporter.sessions(scope).await?;
    }
    let (counts, damaged) = (exporter.writer.counts(), exporter.damaged);
    exporter.sink.write(exporter.writer.trailer()).await?;
    Ok(Exported { counts, damaged })
}

struct Exporter<'a, S> {
    store: &'a Store,
    options: ExportOptions,
    writer: ExportWriter,
    sink: &'a mut S,
    damaged: Vec<(ThreadId, String)>,
    /// Highest message number of the thread that was written.
    last_number: u64,
}

impl<S: ExportSink> Exporter<'_, S> {
    /// Exports one thread as it is now; later messages are left out.
    async fn thread(&mut self, id: &ThreadId) -> Result<(), S::Error> {
        // Read before the head, so that no compaction covers messages that are not exported.
        let compactions = self.store.compactions(id).await?;
        let Some(row) = self.store.thread(id).await? else { return Ok(()) };
        let metadata = row.named.metadata.as_map().cloned().unwrap_or_default();
        let listing = row.listing.as_ref();
        let title = listing.and_then(|listing| listing.title.clone());
        let thread = ExportedThread {
            title: title.filter(|title| title.by != TitleSource::Input),
            archived: listing.is_some_and(|listing| listing.is_archived),
            thread_id: id.clone(),
            agent_id: row.named.agent.clone(),
            busy_policy: row.named.policy,
            metadata,
        };
        let lines = self.writer.thread(thread);
        self.sink.write(lines).await?;
        self.last_number = 0;
        if let Some(head) = row.head {
            self.batches(id, head).await?;
        }
        if row.last_number > self.last_number {
            let lines = self.writer.last_number(row.last_number);
            self.sink.write(lines).await?;
        }
        // A compaction that waits for its summary has no effect yet, and its task is not exported.
        for one in compactions.into_iter().filter(|one| !one.is_pending) {
            let lines = self.writer.compaction(one.compaction);
            self.sink.write(lines).await?;
        }
        self.follow_ups(id).await?;
        self.feedback(id).await
    }

    async fn feedback(&mut self, id: &ThreadId) -> Result<(), S::Error> {
        let mut after = None;
        loop {
            let rows = self.store.feedback_of_thread(id, after.as_ref(), PAGE).await?;
            for row in &rows {
                let lines = self.writer.feedback(feedback_line::written(row));
                self.sink.write(lines).await?;
            }
            after = rows.last().map(FeedbackRow::cursor);
            if after.is_none() {
                return Ok(());
            }
        }
    }

    async fn follow_ups(&mut self, id: &ThreadId) -> Result<(), S::Error> {
        let mut before = None;
        loop {
            let rows = self.store.follow_ups(id, before.as_ref(), PAGE).await?;
            for row in &rows {
                let lines = self.writer.follow_up(follow_up_line::written(row));
                self.sink.write(lines).await?;
            }
            before = rows.last().map(|row| row.timer.clone());
            if before.is_none() {
                return Ok(());
            }
        }
    }

    /// Exports the reasoning sessions that were made from these threads, or all of the scope.
    async fn sessions(&mut self, scope: &ExportScope) -> Result<(), S::Error> {
        let threads = match scope {
            ExportScope::Threads(threads) => Some(threads.as_slice()),
            ExportScope::Tenant(_) | ExportScope::All => None,
        };
        let mut after = None;
        loop {
            let ids = self.store.reasoning_ids(threads, after.as_ref(), PAGE).await?;
            let is_in_scope = |id: &&ReasoningSessionId| match scope {
                // Without row-level security the sessions of all tenants are listed.
                ExportScope::Tenant(tenant) => id.tenant() == *tenant,
                ExportScope::Threads(_) | ExportScope::All => true,
            };
            for id in ids.iter().filter(is_in_scope) {
                self.session(id).await?;
            }
            after = ids.last().cloned();
            if after.is_none() {
                return Ok(());
            }
        }
    }

    async fn session(&mut self, id: &ReasoningSessionId) -> Result<(), S::Error> {
        let Some(rows) = self.store.reasoning_rows(id).await? else { return Ok(()) };
        let lines = self.writer.reasoning(ReasoningRow::Session, rows.session);
        self.sink.write(lines).await?;
        for layer in rows.layers {
            let lines = self.writer.reasoning(ReasoningRow::Layer, layer);
            self.sink.write(lines).await?;
        }
        for checkpoint in rows.checkpoints {
            let lines = self.writer.reasoning(ReasoningRow::Checkpoint, checkpoint);
            self.sink.write(lines).await?;
        }
        let mut after = 0;
        loop {
            let page = self.store.reasoning_message_rows(id, after, rows.last_number).await?;
            let Some(last) = page.last().and_then(|row| row["number"].as_u64()) else { return Ok(()) };
            after = last;
            for row in page {
                let lines = self.writer.reasoning(ReasoningRow::Message, row);
                self.sink.write(lines).await?;
            }
        }
    }

    /// Exports batches while they follow each other. The next messages are read while the current
    /// ones are written.
    async fn export_in_order(&mut self, id: &ThreadId, head: Position) -> Result<Reached, S::Error> {
        let mut done = None;
        let mut open: Vec<Item> = Vec::new();
        let mut page = self.reading(id, None, head);
        loop {
            let items = page.await.map_err(|error| StoreError::Row(error.to_string()))??;
            let Some(last) = items.last().map(|item| item.position) else { break };
            page = self.reading(id, Some(last), head);
            for item in items {
                let goes_on = open.last().is_some_and(|last| last.batch_id == item.batch_id);
                if !goes_on {
                    done = self.whole(id, &mut open).await?.or(done);
                    if item.batch_id != item.position {
                        page.abort();
                        return Ok(Reached::Interleaved(done));
                    }
                }
                open.push(item);
            }
            self.show();
        }
        self.whole(id, &mut open).await?;
        Ok(Reached::End)
    }

    /// Writes the batch of these messages, and returns where it ends.
    async fn whole(&mut self, id: &ThreadId, open: &mut Vec<Item>) -> Result<Option<Position>, S::Error> {
        let last = open.last().map(|item| item.position);
        for batch in batches::group(std::mem::take(open)) {
            self.batch(id, &batch).await?;
        }
        Ok(last)
    }

    async fn batch(&mut self, id: &ThreadId, batch: &Batch) -> Result<(), S::Error> {
        if let Some(why) = damage(batch) {
            self.damaged.push((id.clone(), format!("batch {}: {why}", batch.id())));
        }
        let highest = batch.items().iter().filter_map(|item| item.number).max().unwrap_or(0);
        self.last_number = self.last_number.max(highest);
        let lines = self.writer.batch(batch);
        self.sink.write(lines).await
    }

    /// Reads messages in a separate task, so that the previous ones are written meanwhile.
    fn reading(
        &self,
        thread: &ThreadId,
        after: Option<Position>,
        head: Position,
    ) -> JoinHandle<Result<Vec<Item>, StoreError>> {
        let (store, thread) = (self.store.clone(), thread.clone());
        let ExportOptions { page_messages, page_bytes, .. } = self.options;
        runtime::spawn_named("export", async move {
            let page = store.messages_range(&thread, after, head, page_messages, page_bytes).await?;
            Ok(page.into_iter().map(Item::from).collect())
        })
    }

    fn show(&mut self) {
        self.sink.show(self.writer.counts());
    }

    async fn batches(&mut self, id: &ThreadId, head: Position) -> Result<(), S::Error> {
        let after = match self.store.has_out_of_range(id).await? {
            true => None,
            false => match self.export_in_order(id, head).await? {
                Reached::End => return Ok(()),
                Reached::Interleaved(after) => after,
            },
        };
        let (before, mut there, mut last) = (self.writer.counts().messages, 0, after);
        let mut pages = BatchPages::new(self.store, id, head, after);
        while let Some(page) = pages.next().await? {
            there += page.messages;
            let items = batch_pages::read(self.store, id, &page.starts, &page.headless, head).await?;
            for batch in batches::group(items) {
                if last.is_some_and(|last| batch.id() <= last) {
                    self.damaged
                        .push((id.clone(), format!("batch {} has lost its first message", batch.id())));
                    continue;
                }
                last = Some(batch.id());
                self.batch(id, &batch).await?;
            }
            self.show();
        }
        let written = self.writer.counts().messages - before;
        if written != there {
            let what = format!("{written} of its {there} messages belong to batches as they are stored");
            self.damaged.push((id.clone(), what));
        }
        Ok(())
    }
}

/// How far batches follow each other.
enum Reached {
    End,
    /// The batches follow each other up to this position; the rest has to be assembled.
    Interleaved(Option<Position>),
}

/// Damage that no turn leaves behind.
fn damage(batch: &Batch) -> Option<String> {
    match batch.state() {
        BatchState::Incomplete(
            why @ (IncompleteReason::OrphanResult { .. }
            | IncompleteReason::Doubled { .. }
            | IncompleteReason::Hole { .. }),
        ) => Some(why.to_string()),
        _ if !batch.items().is_sorted_by_key(|item| item.position) => {
            Some("its numbers do not follow its positions".to_owned())
        }
        _ => None,
    }
}
