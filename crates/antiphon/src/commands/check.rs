//! Finds and repairs stored damage.

use std::collections::BTreeSet;

use batches::check::{self, Change, Defect, Finding};
use batches::{Batch, Item};
use model::{Position, ThreadId};
use serde_json::{Value, json};
use store::{RowRepair, Store};
use transfer::BatchPages;

use super::command_id::new_command_id;
use super::lookup::stored;
use crate::exit::ExitError;
use crate::options::CheckBatches;
use crate::output::{self, Table, cell};

/// Thread ids that are read at once.
const PAGE: u32 = 500;

pub(super) async fn run(store: &Store, options: &CheckBatches) -> Result<(), ExitError> {
    let mut round = CheckRound { store, options, found: Vec::new(), threads: 0, batches: 0 };
    match &options.thread {
        Some(thread) => {
            stored(store, thread).await?;
            round.thread(thread).await?;
        }
        None => {
            let mut after = None;
            loop {
                let ids = store.thread_ids(after.as_ref(), PAGE).await?;
                for id in &ids {
                    round.thread(id).await?;
                }
                after = ids.last().cloned();
                if after.is_none() {
                    break;
                }
            }
        }
    }
    round.say()
}

struct CheckRound<'a> {
    store: &'a Store,
    options: &'a CheckBatches,
    found: Vec<Value>,
    threads: u64,
    batches: u64,
}

impl CheckRound<'_> {
    async fn thread(&mut self, thread: &ThreadId) -> Result<(), ExitError> {
        let Some(row) = self.store.thread(thread).await? else { return Ok(()) };
        let Some(head) = row.head else { return Ok(()) };
        self.threads += 1;
        // Unmarked messages that are apart from their batch would look like gaps in it, so they are
        // handled first.
        let apart = self.apart(thread, head).await?;
        let mut pages = BatchPages::new(self.store, thread, head, None);
        while let Some(page) = pages.next().await? {
            let is_apart = |batch: &Position| apart.contains(batch) || page.headless.contains(batch);
            let starts: Vec<_> = page.starts.iter().copied().filter(|batch| !is_apart(batch)).collect();
            let scattered = page.starts.iter().copied().filter(is_apart);
            let scattered: Vec<_> = scattered.chain(page.headless.iter().copied()).collect();
            let items =
                transfer::read_batches(self.store, thread, &starts, &scattered, Position::MAX).await?;
            for batch in batches::group(items) {
                self.batches += 1;
                self.batch(thread, &batch).await?;
            }
        }
        self.numbers(thread, row.last_number).await
    }

    /// Checks and repairs the numbers of messages. An assigned number never changes, missing
    /// numbers are assigned, and no number is assigned twice.
    async fn numbers(&mut self, thread: &ThreadId, last_number: u64) -> Result<(), ExitError> {
        let faults = self.store.number_faults(thread, last_number, PAGE).await?;
        if self.options.repair && !faults.is_empty() {
            let highest = faults.iter().filter_map(|fault| fault.number).max();
            self.store.raise_last_number(thread, highest.unwrap_or(0)).await?;
            self.store.number_messages(thread).await?;
        }
        for fault in &faults {
            let said = match fault.number {
                None => "it has no number in the thread; it gets one".to_owned(),
                Some(number) if fault.is_twice => {
                    format!("another message of the thread has its number {number} too; both keep it")
                }
                Some(number) => format!("its number {number} was not given; it counts as given"),
            };
            let what = format!("message {}: {said}", fault.position);
            let can = !fault.is_twice;
            let is_mended = can && self.options.repair;
            self.find(thread, fault.batch_id, fault.position, &what, "thread_number", can, is_mended);
        }
        Ok(())
    }

    /// Marks messages that are apart from their batches, and returns these batches.
    async fn apart(&mut self, thread: &ThreadId, head: Position) -> Result<BTreeSet<Position>, ExitError> {
        let mut batches = BTreeSet::new();
        let mut pages = BatchPages::new(self.store, thread, head, None);
        while let Some(page) = pages.next().await? {
            for place in page.unmarked {
                batches.insert(place.batch_id);
                let there = self.store.messages_of_batch(thread, place.batch_id).await?;
                let Some(item) =
                    there.into_iter().map(Item::from).find(|item| item.position == place.position)
                else {
                    continue;
                };
                let what = format!(
                    "message {}: it stands apart from its batch and is not marked, so no reader sees it; it becomes marked",
                    place.position
                );
                let mend = RowRepair {
                    position: item.position,
                    old: change(&item),
                    new: change(&item),
                    is_apart: true,
                    said: Some((new_command_id()?, what.clone())),
                };
                let is_mended = self.repair(thread, &[mend]).await?;
                self.find(thread, place.batch_id, place.position, &what, "unmarked", true, is_mended);
            }
        }
        Ok(batches)
    }

    async fn batch(&mut self, thread: &ThreadId, batch: &Batch) -> Result<(), ExitError> {
        let mut findings = check::examine(batch);
        // A result without a call that is a separate batch already stays separate.
        findings.retain(|finding| {
            let item = batch.items().iter().find(|item| item.position == finding.message);
            finding.change.is_none() || finding.change != item.map(|item| change(item))
        });
        if findings.is_empty() {
            return Ok(());
        }
        let is_mended = self.repair(thread, &repairs(batch, &findings)?).await?;
        for finding in &findings {
            let can = finding.change.is_some();
            let (what, code) = (finding.to_string(), code(&finding.what));
            self.find(thread, batch.id(), finding.message, &what, code, can, can && is_mended);
        }
        Ok(())
    }

    /// Repairs one batch in one transaction. Returns false in a dry run, and when another writer
    /// has changed the batch meanwhile.
    async fn repair(&self, thread: &ThreadId, repairs: &[RowRepair]) -> Result<bool, ExitError> {
        if !self.options.repair || repairs.is_empty() {
            return Ok(false);
        }
        Ok(self.store.repair_messages(thread, repairs, &self.options.actor).await?)
    }

    #[allow(clippy::too_many_arguments, reason = "a row of the table")]
    fn find(
        &mut self,
        thread: &ThreadId,
        batch: Position,
        message: Position,
        what: &str,
        code: &str,
        can_be_mended: bool,
        is_mended: bool,
    ) {
        self.found.push(json!({
            "thread_id": thread.as_str(),
            "batch_id": batch,
            "position": message,
            "code": code,
            "what": what,
            "can_be_mended": can_be_mended,
            "mended": is_mended,
        }));
    }

    fn say(self) -> Result<(), ExitError> {
        let remaining = self.found.iter().filter(|finding| finding["mended"] == false).count();
        let can = self
            .found
            .iter()
            .filter(|finding| finding["mended"] == false && finding["can_be_mended"] == true);
        let can = can.count();
        let json = json!({
            "threads": self.threads,
            "batches": self.batches,
            "repair": self.options.repair,
            "findings": self.found,
            "remaining": remaining,
        });
        let table = || {
            let mut table = Table::new(["THREAD", "BATCH", "MENDED", "WHAT"]);
            for finding in json["findings"].as_array().into_iter().flatten() {
                let [thread, batch, what] = ["thread_id", "batch_id", "what"].map(|key| cell(&finding[key]));
                let mended = match (&finding["mended"], &finding["can_be_mended"]) {
                    (Value::Bool(true), _) => "yes",
                    (_, Value::Bool(true)) => "not yet",
                    _ => "impossible",
                };
                table.row([thread, batch, mended.to_owned(), what]);
            }
            table
        };
        output::print(self.options.database.output.format(), &json, table)?;
        match remaining {
            0 => Ok(()),
            _ if !self.options.repair && can > 0 => Err(ExitError::Failed(format!(
                "damage in {remaining} messages; --repair repairs {can} of them"
            ))),
            _ => Err(ExitError::Failed(format!("damage remains in {remaining} messages"))),
        }
    }
}

/// The changed messages, and the messages after one that leaves the batch, which are then apart
/// from the batch.
fn repairs(batch: &Batch, findings: &[Finding]) -> Result<Vec<RowRepair>, ExitError> {
    let leaves = |finding: &&Finding| finding.change.is_some_and(|change| change.batch_id != batch.id());
    let cut = findings.iter().filter(leaves).map(|finding| finding.message).min();
    let mut repairs = Vec::new();
    for item in batch.items() {
        let is_apart = cut.is_some_and(|cut| item.position > cut);
        let finding = findings.iter().find(|finding| finding.message == item.position);
        let changes = finding.and_then(|finding| Some((finding, finding.change?)));
        let (old, new) = (change(item), changes.map_or(change(item), |(_, change)| change));
        if changes.is_none() && !is_apart {
            continue;
        }
        let said = match changes {
            Some((finding, _)) => Some((new_command_id()?, format!("{finding}; it was {}", named(&old)))),
            None => None,
        };
        repairs.push(RowRepair { position: item.position, old, new, is_apart, said });
    }
    Ok(repairs)
}

fn named(change: &Change) -> String {
    format!("number {} of batch {}, {}", change.sequence_num, change.batch_id, change.batch_type.name())
}

fn change(item: &Item) -> Change {
    Change { batch_id: item.batch_id, sequence_num: item.sequence_num, batch_type: item.batch_type }
}

fn code(what: &Defect) -> &'static str {
    match what {
        Defect::BeginningLost => "beginning_lost",
        Defect::Number { .. } => "number",
        Defect::Orphan { .. } => "orphan_result",
        Defect::Type { .. } => "type",
    }
}
