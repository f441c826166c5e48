//! Where batches begin in a thread that knows none.

use std::collections::{BTreeMap, BTreeSet};

use model::{BatchType, Position, Role};

use crate::Item;

/// A batch as it grows.
struct OpenBatch {
    id: Position,
    next: i32,
    /// Calls that have no result yet.
    open: usize,
    stage: BatchStage,
}

#[derive(PartialEq, Eq)]
enum BatchStage {
    /// Inputs only.
    Asked,
    /// Calls or results were last.
    Working,
    /// A final text was last.
    Answered,
}

/// Gives each message its batch, number and type; returns the indices of results that answer no call.
///
/// An input begins a batch when the one before has its answer, or was left in the middle of its calls; inputs in a row are one
/// batch. What the assistant says belongs to the batch before. A result goes to the newest batch with its call open, however late
/// it is.
pub(super) fn detect(items: &mut [Item]) -> Vec<usize> {
    let mut batches: Vec<OpenBatch> = Vec::new();
    // By call, the batches that wait for its result, the newest last.
    let mut waiting: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    let mut current: Option<usize> = None;
    let mut orphans = Vec::new();
    for (index, item) in items.iter_mut().enumerate() {
        let place = match item.role {
            Role::Tool => item.tool_call_id.as_ref().and_then(|id| waiting.get_mut(id)?.pop()),
            Role::User => current.filter(|at| batches[*at].stage == BatchStage::Asked),
            Role::System => current.filter(|at| batches[*at].stage != BatchStage::Answered),
            Role::Assistant => current,
        };
        let at = place.unwrap_or_else(|| {
            batches.push(OpenBatch { id: item.position, next: 0, open: 0, stage: BatchStage::Asked });
            batches.len() - 1
        });
        match item.role {
            Role::Tool if place.is_none() => orphans.push(index),
            Role::Tool => {}
            Role::User | Role::System | Role::Assistant => current = Some(at),
        }
        if let Some(batch) = batches.get_mut(at) {
            for id in batch.take(item) {
                waiting.entry(id).or_default().push(at);
            }
        }
    }
    set_types(items);
    orphans
}

impl OpenBatch {
    /// Takes the message as its next one; returns the calls that wait for a result now.
    fn take(&mut self, item: &mut Item) -> Vec<String> {
        item.batch_id = self.id;
        item.sequence_num = self.next;
        self.next += 1;
        match item.role {
            Role::Tool => {
                self.open = self.open.saturating_sub(1);
                self.stage = BatchStage::Working;
                Vec::new()
            }
            Role::Assistant => {
                let calls = item.calls();
                let unanswered = calls.iter().filter(|call| call.result.is_none());
                let ids: Vec<String> = unanswered.map(|call| call.id.to_owned()).collect();
                self.open += ids.len();
                self.stage = if self.open == 0 { BatchStage::Answered } else { BatchStage::Working };
                ids
            }
            // Instructions in the middle of the work leave it where it is.
            Role::User | Role::System => Vec::new(),
        }
    }
}

/// By who spoke first: a person asked, or the system began by itself.
fn set_types(items: &mut [Item]) {
    let mut asked: BTreeSet<Position> = BTreeSet::new();
    let mut begun: BTreeSet<Position> = BTreeSet::new();
    for item in items.iter().filter(|item| item.role != Role::System) {
        if begun.insert(item.batch_id) && item.role == Role::User && !item.is_synthetic() {
            asked.insert(item.batch_id);
        }
    }
    for item in items {
        let is_asked = asked.contains(&item.batch_id);
        item.batch_type = if is_asked { BatchType::UserRequest } else { BatchType::SystemTrigger };
    }
}
