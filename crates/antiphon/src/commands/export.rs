//! Writes threads as JSON Lines.
//!
//! In nearly every thread the batches follow each other, and messages are read in order. Where
//! batches interleave, or data is damaged, the rest is assembled batch by batch.

use batches::export_import::{ExportWriter, ExportedThread, ReasoningRow};
use batches::{Batch, BatchState, IncompleteReason, Item};
use model::{Position, ReasoningSessionId, ThreadId};
use serde_json::json;
use store::{Store, StoreError};
use tokio::task::JoinHandle;

use super::batch_pages::{self, BatchPages};
use super::exported_follow_up;
use super::exported_threads::{ExportedThreads, MESSAGES, MESSAGES_BYTES, PAGE};
use super::output_file::OutputFile;
use super::progress::Progress;
use crate::exit::ExitError;
use crate::options::Export;
use crate::output::{self, OutputFormat};

pub(super) async fn run(store: &Store, options: &Export) -> Result<(), ExitError> {
    let mut threads = ExportedThreads::of(store, options).await?;
    let mut sink = OutputFile::open(options.output.as_deref())?;
    let mut exporter = Exporter {
        store,
        writer: ExportWriter::new(),
        progress: Progress::new(),
        damaged: Vec::new(),
        last_number: 0,
    };
    sink.write(&exporter.writer.header())?;
    loop {
        let page = threads.next().await?;
        if page.is_empty() {
            break;
        }
        for thread in &page {
            exporter.thread(thread, &mut sink).await?;
        }
    }
    exporter.sessions((!options.all).then_some(&options.threads), &mut sink).await?;
    let counts = exporter.writer.counts();
    sink.write(&exporter.writer.trailer())?;
    sink.close()?;
    exporter.progress.clear();
    if options.output.is_some() {
        let json = json!(counts);
        output::print(options.database.output.format(), &json, || output::key_value_table(&json))?;
    } else if options.database.output.format() == OutputFormat::Table {
        let said =
            format!("{} threads, {} batches, {} messages", counts.threads, counts.batches, counts.messages);
        output::eprint_line(&format!("{said}, {} compactions", counts.compactions));
    }
    complaint(&exporter.damaged)
}

/// An error that names the damage, which an import refuses.
fn complaint(damaged: &[(ThreadId, String)]) -> Result<(), ExitError> {
    let Some((thread, what)) = damaged.first() else { return Ok(()) };
    Err(ExitError::Failed(format!(
        "the file is complete, but damage is stored in {} places, first in thread {thread}: {what}; `antiphon batches check` \
         says more, and an import takes what is damaged only with --keep-invalid",
        damaged.len()
    )))
}

struct Exporter<'a> {
    store: &'a Store,
    writer: ExportWriter,
    progress: Progress,
    damaged: Vec<(ThreadId, String)>,
    /// Highest message number of the thread that was written.
    last_number: u64,
}

impl Exporter<'_> {
    /// Exports one thread as it is now; later messages are left out.
    async fn thread(&mut self, id: &ThreadId, sink: &mut OutputFile) -> Result<(), ExitError> {
        // Read before the head, so that no compaction covers messages that are not exported.
        let compactions = self.store.compactions(id).await?;
        let Some(row) = self.store.thread(id).await? else { return Ok(()) };
        let metadata = row.named.metadata.as_map().cloned().unwrap_or_default();
        let thread = ExportedThread {
            thread_id: id.clone(),
            agent_id: row.named.agent.clone(),
            busy_policy: row.named.policy,
            metadata,
        };
        sink.write(&self.writer.thread(thread))?;
        self.last_number = 0;
        if let Some(head) = row.head {
            self.batches(id, head, sink).await?;
        }
        if row.last_number > self.last_number {
            sink.write(&self.writer.last_number(row.last_number))?;
        }
        // A compaction that waits for its summary has no effect yet, and its task is not exported.
        for one in compactions.into_iter().filter(|one| !one.is_pending) {
            sink.write(&self.writer.compaction(one.compaction))?;
        }
        self.follow_ups(id, sink).await
    }

    async fn follow_ups(&mut self, id: &ThreadId, sink: &mut OutputFile) -> Result<(), ExitError> {
        let mut before = None;
        loop {
            let rows = self.store.follow_ups(id, before.as_ref(), PAGE).await?;
            for row in &rows {
                sink.write(&self.writer.follow_up(exported_follow_up::written(row)))?;
            }
            before = rows.last().map(|row| row.timer.clone());
            if before.is_none() {
                return Ok(());
            }
        }
    }

    /// Exports the reasoning sessions that were made from these threads, or all.
    async fn sessions(
        &mut self,
        threads: Option<&Vec<ThreadId>>,
        sink: &mut OutputFile,
    ) -> Result<(), ExitError> {
        let mut after = None;
        loop {
            let ids = self.store.reasoning_ids(threads.map(Vec::as_slice), after.as_ref(), PAGE).await?;
            for id in &ids {
                self.session(id, sink).await?;
            }
            after = ids.last().cloned();
            if after.is_none() {
                return Ok(());
            }
        }
    }

    async fn session(&mut self, id: &ReasoningSessionId, sink: &mut OutputFile) -> Result<(), ExitError> {
        let Some(rows) = self.store.reasoning_rows(id).await? else { return Ok(()) };
        sink.write(&self.writer.reasoning(ReasoningRow::Session, rows.session))?;
        for layer in rows.layers {
            sink.write(&self.writer.reasoning(ReasoningRow::Layer, layer))?;
        }
        for checkpoint in rows.checkpoints {
            sink.write(&self.writer.reasoning(ReasoningRow::Checkpoint, checkpoint))?;
        }
        let mut after = 0;
        loop {
            let page = self.store.reasoning_message_rows(id, after, rows.last_number).await?;
            let Some(last) = page.last().and_then(|row| row["number"].as_u64()) else { return Ok(()) };
            after = last;
            for row in page {
                sink.write(&self.writer.reasoning(ReasoningRow::Message, row))?;
            }
        }
    }

    /// Exports batches while they follow each other. The next messages are read while the current
    /// ones are written.
    async fn export_in_order(
        &mut self,
        id: &ThreadId,
        head: Position,
        sink: &mut OutputFile,
    ) -> Result<Reached, ExitError> {
        let mut done = None;
        let mut open: Vec<Item> = Vec::new();
        let mut page = reading(self.store, id, None, head);
        loop {
            let items = page.await.map_err(|error| ExitError::Failed(error.to_string()))??;
            let Some(last) = items.last().map(|item| item.position) else { break };
            page = reading(self.store, id, Some(last), head);
            for item in items {
                let goes_on = open.last().is_some_and(|last| last.batch_id == item.batch_id);
                if !goes_on {
                    done = self.whole(id, &mut open, sink)?.or(done);
                    if item.batch_id != item.position {
                        page.abort();
                        return Ok(Reached::Interleaved(done));
                    }
                }
                open.push(item);
            }
            self.show();
        }
        self.whole(id, &mut open, sink)?;
        Ok(Reached::End)
    }

    /// Writes the batch of these messages, and returns where it ends.
    fn whole(
        &mut self,
        id: &ThreadId,
        open: &mut Vec<Item>,
        sink: &mut OutputFile,
    ) -> Result<Option<Position>, ExitError> {
        let last = open.last().map(|item| item.position);
        for batch in batches::group(std::mem::take(open)) {
            self.batch(id, &batch, sink)?;
        }
        Ok(last)
    }

    fn batch(&mut self, id: &ThreadId, batch: &Batch, sink: &mut OutputFile) -> Result<(), ExitError> {
        if let Some(why) = damage(batch) {
            self.damaged.push((id.clone(), format!("batch {}: {why}", batch.id())));
        }
        let highest = batch.items().iter().filter_map(|item| item.number).max().unwrap_or(0);
        self.last_number = self.last_number.max(highest);
        sink.write(&self.writer.batch(batch))
    }

    fn show(&mut self) {
        let counts = self.writer.counts();
        self.progress.show(|| format!("{} messages of {} threads", counts.messages, counts.threads));
    }

    async fn batches(
        &mut self,
        id: &ThreadId,
        head: Position,
        sink: &mut OutputFile,
    ) -> Result<(), ExitError> {
        let after = match self.store.has_out_of_range(id).await? {
            true => None,
            false => match self.export_in_order(id, head, sink).await? {
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
                self.batch(id, &batch, sink)?;
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

/// Reads messages in a separate task, so that the previous ones are written meanwhile.
fn reading(
    store: &Store,
    thread: &ThreadId,
    after: Option<Position>,
    head: Position,
) -> JoinHandle<Result<Vec<Item>, StoreError>> {
    let (store, thread) = (store.clone(), thread.clone());
    runtime::spawn_named("export", async move {
        let page = store.messages_range(&thread, after, head, MESSAGES, MESSAGES_BYTES).await?;
        Ok(page.into_iter().map(Item::from).collect())
    })
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
