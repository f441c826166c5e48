//! Finds where batches begin in a thread without batches.

use std::collections::{BTreeMap, BTreeSet};

use model::{BatchType, Position, Role};

use crate::Item;

/// A batch under construction.
struct OpenBatch {
    id: Position,
    next: i32,
    /// Number of calls without a result.
    open: usize,
    stage: BatchStage,
}

#[derive(PartialEq, Eq)]
enum BatchStage {
    /// The batch has only inputs.
    Asked,
    /// The batch ends with calls or results.
    Working,
    /// The batch ends with a final text.
    Answered,
}

/// Assigns batch, number and type to each message. Returns the indices of results without a call.
///
/// An input begins a batch if the previous one is answered or was left in the middle of its calls.
/// Consecutive inputs form one batch. Assistant messages belong to the batch before them. A result
/// belongs to the newest batch in which its call is open, however late it arrives.
pub(super) fn detect(items: &mut [Item]) -> Vec<usize> {
    let mut batches: Vec<OpenBatch> = Vec::new();
    // For each call id, the batches that wait for its result; the newest is last.
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
    /// Appends the message to the batch. Returns the calls that now wait for a result.
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
            // Instructions in the middle of a turn do not change its state.
            Role::User | Role::System => Vec::new(),
        }
    }
}

/// Sets the types according to the first message: the input of a person, or a message of the
/// system.
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
