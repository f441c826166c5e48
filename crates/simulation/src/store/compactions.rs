//! The double of compactions: the messages of a thread as contexts are built from them, and the
//! compactions.

use batches::Item;
use batches::compaction::{self, Compaction};
use model::{Message, Position, ThreadId, Timestamp};

use super::Store;
use super::rows::CompactionRow;
use crate::bug::PlantedBug;
use crate::checker::turns::TurnRow;
use crate::log::START;

/// A message as it was written, under the batch that the store assigned to it.
pub(super) fn item_of(message: &Message, row: Option<&TurnRow>, time: i64) -> Item {
    let place = &message.placement;
    let (batch, sequence_num, batch_type) = row.map_or((place.position.get(), 0, place.batch_type), |row| {
        (row.batch_id, row.sequence_num, row.batch_type)
    });
    Item {
        position: place.position,
        message_id: message.key.message.clone(),
        batch_id: Position::from_stored(batch),
        number: None,
        sequence_num,
        batch_type,
        role: message.role,
        content: message.content.clone(),
        tool_calls: message.tool_calls.clone(),
        tool_call_id: message.tool_call_id.clone(),
        metadata: message.metadata.clone(),
        token_count: message.token_count.map(i64::unsigned_abs),
        created_at: Timestamp(START + time),
        started_at: None,
    }
}

impl Store {
    /// The messages of a thread, oldest first.
    pub(crate) fn items(&self, thread: &ThreadId) -> Vec<Item> {
        self.kept
            .get(thread)
            .into_iter()
            .flat_map(|rows| rows.values())
            .map(|kept| kept.item.clone())
            .collect()
    }

    pub(crate) fn compactions(&self, thread: &ThreadId) -> &[CompactionRow] {
        self.compactions.get(thread).map_or(&[], Vec::as_slice)
    }

    /// The compaction that applies to the next context.
    pub(crate) fn live_compaction(&self, thread: &ThreadId) -> Option<Compaction> {
        let written = self.compactions(thread).iter().filter(|row| !row.is_pending);
        let written: Vec<Compaction> = written.map(|row| row.compaction.clone()).collect();
        compaction::live(&written).cloned()
    }

    /// Writes a compaction if the thread exists and is not erased, its predecessor is still the
    /// newest, and the message before its id exists.
    pub(crate) fn add_compaction(
        &mut self,
        thread: &ThreadId,
        mut compaction: Compaction,
        is_pending: bool,
    ) -> bool {
        let knows_erased = self.bug != Some(PlantedBug::CompactedErased);
        let Some(head) = self.heads.get(thread).copied().or((!knows_erased).then_some(0)) else {
            return false;
        };
        if self.is_erased(thread) && knows_erased {
            return false;
        }
        let newest = compaction.id.get() - 1;
        if !self.kept.get(thread).is_some_and(|rows| rows.contains_key(&newest)) && knows_erased {
            return false;
        }
        let rows = self.compactions.entry(thread.clone()).or_default();
        let mut counting = rows.iter().map(|row| &row.compaction).filter(|one| one.undone_at.is_none());
        let is_next = match compaction.previous {
            None => counting.next().is_none(),
            Some(previous) => counting.map(|one| one.id).max() == Some(previous),
        };
        let is_there = rows.iter().any(|row| row.compaction.id == compaction.id);
        if is_there || (!is_next && self.bug != Some(PlantedBug::CompactedBlind)) {
            return false;
        }
        compaction.counts_from = compaction.id.max(Position::from_stored(head + 1));
        rows.push(CompactionRow { compaction, is_pending });
        true
    }

    /// Settles a compaction: the summary was written or never will be. Without a summary the
    /// compaction never takes effect.
    pub(crate) fn settle_compaction(
        &mut self,
        thread: &ThreadId,
        id: Position,
        summary: Option<String>,
    ) -> bool {
        let head = self.heads.get(thread).copied();
        let rows = self.compactions.get_mut(thread).into_iter().flatten();
        let mut pending = rows.filter(|row| row.compaction.id == id && row.is_pending);
        let (Some(row), Some(head)) = (pending.next(), head) else { return false };
        row.is_pending = false;
        row.compaction.counts_from = row.compaction.counts_from.max(Position::from_stored(head + 1));
        if summary.is_none() {
            row.compaction.undone_at = Some(id);
        }
        row.compaction.summary = summary;
        true
    }

    /// Undoes the newest compaction in effect, and those that were planned after it.
    pub(crate) fn undo_compaction(&mut self, thread: &ThreadId) -> bool {
        let Some(newest) = self.live_compaction(thread).map(|live| live.id) else { return false };
        let head = self.heads.get(thread).copied().unwrap_or(0);
        for row in self.compactions.get_mut(thread).into_iter().flatten() {
            if row.compaction.id >= newest && row.compaction.undone_at.is_none() {
                row.compaction.undone_at = Some(Position::from_stored(newest.get().max(head) + 1));
                row.is_pending = false;
            }
        }
        true
    }
}
