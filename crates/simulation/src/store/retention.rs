//! The double of retention: the places of messages in their threads, and the deletion of batches.

use std::collections::BTreeMap;

use batches::retention::{BatchSize, MessageInfo};
use model::{Message, MessageKey, Position, ThreadId, Timestamp};

use super::Store;
use super::rows::KeptMessage;
use crate::bug::PlantedBug;
use crate::checker::turns::{TurnRow, part_of};
use crate::log::START;

impl Store {
    /// The threads of a partition, each with the position of its last written message.
    pub(crate) fn heads_of(&self, is_here: impl Fn(&ThreadId) -> bool) -> Vec<(ThreadId, i64)> {
        let heads = self.heads.iter().filter(|(thread, _)| is_here(thread));
        heads.map(|(thread, head)| (thread.clone(), *head)).collect()
    }

    /// The places of a thread's messages before this position, newest first.
    pub(crate) fn places(&self, thread: &ThreadId, before: Position, most: usize) -> Vec<MessageInfo> {
        let rows = self.kept.get(thread).into_iter().flat_map(|rows| rows.range(..before.get()).rev());
        let place = |(position, kept): (&i64, &KeptMessage)| MessageInfo {
            position: Position::from_stored(*position),
            batch: Position::from_stored(kept.batch),
            bytes: kept.bytes,
            at: Timestamp(START + kept.at),
        };
        rows.take(most).map(place).collect()
    }

    /// The batches of a thread.
    pub(crate) fn batches(&self, thread: &ThreadId) -> Vec<i64> {
        let mut batches: Vec<i64> =
            self.kept.get(thread).into_iter().flat_map(|rows| rows.values()).map(|kept| kept.batch).collect();
        batches.sort_unstable();
        batches.dedup();
        batches
    }

    /// Deletes all of these batches, or none if the thread's last position is no longer `head`.
    pub(crate) fn retire(&mut self, thread: &ThreadId, head: i64, batches: &[BatchSize]) -> Option<usize> {
        if self.heads.get(thread) != Some(&head) && self.bug != Some(PlantedBug::RetiredBlind) {
            return None;
        }
        let in_part = self.bug == Some(PlantedBug::RetiredInPart);
        let is_due = |position: i64, kept: &KeptMessage| {
            batches.iter().any(|batch| {
                let last = batch.last.get() - i64::from(in_part);
                kept.batch == batch.id.get() && (batch.id.get()..=last).contains(&position)
            })
        };
        let rows = self.kept.entry(thread.clone()).or_default();
        let gone: Vec<(i64, MessageKey)> = rows
            .extract_if(.., |position, kept| is_due(*position, kept))
            .map(|(position, kept)| (position, kept.key))
            .collect();
        for (position, key) in &gone {
            if let Some(ends) = self.ends_of.get_mut(thread) {
                ends.remove(&Position::from_stored(*position));
            }
            if self.bug == Some(PlantedBug::RetiredForgotten) {
                self.forget_message(key);
            }
        }
        Some(gone.len())
    }

    /// Makes look-ups no longer find that the message has ended.
    pub(super) fn forget_message(&mut self, key: &MessageKey) {
        self.message_keys.remove(key);
        self.ends.remove(key);
        self.steps.remove(key);
        if let Some((turn, _)) = part_of(&key.message) {
            let of = (key.thread.clone(), turn);
            for tables in &mut self.tables {
                tables.committed.remove(&of);
            }
        }
    }

    pub(super) fn keep(&mut self, message: &Message, row: Option<&TurnRow>, time: i64) {
        let position = message.placement.position.get();
        let bytes = message.content.len() + message.metadata.size();
        let (batch, sequence) = row.map_or((position, 0), |row| (row.batch_id, row.sequence_num));
        let kept = KeptMessage {
            key: message.key.clone(),
            batch,
            sequence,
            bytes: bytes as u64,
            at: time,
            item: super::compactions::item_of(message, row, time),
        };
        self.kept.entry(message.key.thread.clone()).or_default().insert(position, kept);
    }

    /// Numbers the messages of a turn that continues a batch, after the batch's last message. If
    /// that is unknown, the turn forms its own batch.
    pub(super) fn number_on(&self, rows: &mut [TurnRow], positions: &[i64]) {
        let mut known: BTreeMap<(ThreadId, i64), Option<i32>> = BTreeMap::new();
        let mut begins: BTreeMap<model::TurnId, i64> = BTreeMap::new();
        for (row, position) in rows.iter_mut().zip(positions) {
            if row.batch_type != model::BatchType::Continuation {
                continue;
            }
            let Some((turn, _)) = part_of(&row.key.message) else { continue };
            let batch = (row.key.thread.clone(), row.batch_id);
            let next = *known.entry(batch).or_insert_with(|| {
                let rows = self.kept.get(&row.key.thread)?.range(row.batch_id..);
                let of_batch = rows.filter(|(_, kept)| kept.batch == row.batch_id);
                of_batch.map(|(_, kept)| kept.sequence + 1).max()
            });
            match next {
                Some(next) => row.sequence_num += next,
                None => row.batch_id = *begins.entry(turn).or_insert(*position),
            }
        }
    }
}
