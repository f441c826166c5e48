//! Saves open messages and inputs, so that the checkpoint can pass them.
//!
//! The stream keeps what is open, and a new owner reads it again from the checkpoint on. Items are
//! saved only if that would take too long: the items that need the first half of the replay, oldest
//! first.
//!
//! A message is saved again when it has doubled, so it has few rows and each released chunk is
//! written once. A message that has not doubled but makes a replay twice as long as allowed is
//! saved again too, because the stream must not grow without bound.

use std::collections::BTreeMap;

use model::{MessageFailure, Seq};

use super::Partition;
use crate::action::Action;
use crate::commit::{Save, SavedItem};
use crate::committing::EndedInput;
use crate::messages::Slot;
use crate::open::{CHUNK_OVERHEAD, Hold, Phase};
use crate::reading::NO_SLOT;
use crate::saves::SaveUnderWay;
use crate::stream_clock::StreamClock;
use crate::turn_state::{SavedInput, TurnEnd, TurnSource};
use crate::types::OpenTurn;

/// Maximum number of messages and inputs in one save.
const SAVE_ROWS: usize = 256;

/// Replay cost of an item, in halves of the bound.
#[derive(Debug, Clone, Copy)]
struct Halves(u64);

/// Items at this cost or above are saved, once a save is due.
const HALF: Halves = Halves(1);
/// A save is due at this cost.
const ALL: Halves = Halves(2);
/// A message that has not doubled is saved at this cost.
const TWICE: Halves = Halves(4);

impl Partition {
    /// Returns the next save when a replay would take too long and none is under way.
    pub(super) fn save_if_due(&mut self) {
        if self.committing.saving.under_way.is_some() || self.committing.saving.is_resting {
            return;
        }
        let lowest = self.reading.holds.first().and_then(|&(seq, slot)| self.hold_of(seq, slot));
        let costs = |halves| lowest.is_some_and(|hold| self.costs(hold, halves));
        self.committing.saving.is_due = costs(ALL) || (self.committing.saving.is_due && costs(HALF));
        if !self.committing.saving.is_due {
            return;
        }
        let save = self.next_save();
        if save.messages.is_empty() && save.turns.is_empty() {
            self.committing.saving.is_resting = true;
            return;
        }
        self.committing.saving.under_way = Some(SaveUnderWay {
            messages: save.messages.iter().map(|part| part.key.clone()).collect(),
            turns: save.turns.iter().map(|open| open.opened.turn.clone()).collect(),
        });
        self.effects.counters.spills += (save.messages.len() + save.turns.len()) as u64;
        self.effects.push(Action::Save(save));
    }

    fn next_save(&mut self) -> Save {
        let now = self.effects.now;
        let time = self.reading.clock.now(now);
        let (mut save, mut size) = (Save::default(), 0);
        let costly: Vec<(Hold, Slot)> = self
            .reading
            .holds
            .iter()
            .filter_map(|&(seq, slot)| Some((self.hold_of(seq, slot)?, slot)))
            .take_while(|(hold, _)| self.costs(*hold, HALF))
            .collect();
        for (hold, slot) in costly {
            if size >= self.limits.save_bytes || save.messages.len() + save.turns.len() >= SAVE_ROWS {
                break;
            }
            if slot == NO_SLOT {
                let Some(open) = self.save_input(hold.seq) else { continue };
                size += open.opened.size();
                save.turns.push(open);
                continue;
            }
            let is_forced = self.costs(hold, TWICE);
            let is_behind = !self.reading.has_caught_up;
            let Some(open) = self.messages.get_mut(slot).filter(|open| open.phase == Phase::Live) else {
                continue;
            };
            if !open.has_doubled() && !is_forced {
                continue;
            }
            // Until the reader has caught up, a restored message keeps the ages that it had when it
            // was restored.
            let time = if open.is_restored && is_behind { StreamClock::START } else { time };
            let part = open.save_part(self.limits.save_bytes.saturating_sub(size), time);
            size += part.chunks.iter().map(|chunk| chunk.size() + CHUNK_OVERHEAD).sum::<usize>();
            save.messages.push(part);
        }
        save
    }

    /// The input at this entry, if its turn has not ended.
    fn save_input(&mut self, seq: Seq) -> Option<OpenTurn> {
        let now = self.effects.now;
        let turn = self.table.turns.get_mut(self.table.held.get(&seq)?)?;
        let TurnSource::Input(opened) = &turn.source else { return None };
        if turn.has_ended() {
            return None;
        }
        turn.input.saved = SavedInput::BeingSaved;
        Some(OpenTurn { opened: (**opened).clone(), seq, age_ms: now.since_ms(turn.times.came_at) })
    }

    /// Called when the save under way is stored: the stream need not keep its entries any more.
    /// Items that the store refused fail now, because they could not be stored at their end either.
    pub(super) fn saved(&mut self, refused: Vec<(SavedItem, String)>) {
        let Some(SaveUnderWay { messages, turns }) = self.committing.saving.under_way.take() else { return };
        let mut refused: BTreeMap<SavedItem, String> = refused.into_iter().collect();
        for key in messages {
            let Some(slot) = self.messages.find(&key.thread, &key.message) else { continue };
            let Some(open) = self.messages.get_mut(slot) else { continue };
            if let Some(detail) = refused.remove(&SavedItem::Message(key)) {
                open.fail_save(MessageFailure::Unstorable { detail });
                self.settle(slot);
                continue;
            }
            if let Some(hold) = open.end_save() {
                let next = open.hold;
                self.reading.holds.remove(&(hold.seq, slot));
                self.reading.holds.extend(next.map(|next| (next.seq, slot)));
            }
        }
        for id in turns {
            let Some(turn) = self.table.turns.get_mut(&id) else { continue };
            turn.input.saved = SavedInput::Yes;
            if let Some(detail) = refused.remove(&SavedItem::Turn(id.clone())) {
                if !turn.has_ended() {
                    self.end_turn(&id, TurnEnd::Failed(MessageFailure::Unstorable { detail }));
                }
                continue;
            }
            // For an ended turn the hold also covers a late chunk, until the end is stored.
            if !turn.has_ended()
                && let Some(seq) = self.table.release(&id)
            {
                self.reading.release_entry(seq);
            }
        }
    }

    /// True if the input is being saved: its commit must wait, because saved rows written after it
    /// would stay forever.
    pub(super) fn is_being_saved(&self, ended: &EndedInput) -> bool {
        let is_message = |slot: Slot| self.messages.get(slot).is_some_and(|open| open.is_being_saved());
        match ended {
            EndedInput::Message(slot) => is_message(*slot),
            EndedInput::Turn(id) => self.table.turns.get(id).is_some_and(|turn| {
                turn.input.saved == SavedInput::BeingSaved || turn.answer.slot.is_some_and(is_message)
            }),
            EndedInput::Entry { .. } => false,
        }
    }

    /// `None` for an entry that waits for a commit or a check: it will be done soon.
    pub(super) fn hold_of(&self, seq: Seq, slot: Slot) -> Option<Hold> {
        match slot {
            NO_SLOT => self.table.turns.get(self.table.held.get(&seq)?)?.input.hold,
            slot => self.messages.get(slot)?.hold,
        }
    }

    /// True if a replay from this entry costs at least this many halves of the bound.
    fn costs(&self, hold: Hold, Halves(halves): Halves) -> bool {
        let reaches = |(cost, limit): (u64, u64)| cost.saturating_mul(2) >= limit.saturating_mul(halves);
        self.replay_from(hold).into_iter().any(reaches)
    }

    /// Costs of a replay from this entry, each with its bound.
    fn replay_from(&self, hold: Hold) -> [(u64, u64); 3] {
        let limits = &self.limits;
        let command_bytes = self.commands.remembered_bytes_above(hold.seq) as u64;
        [
            // A reader that was set back may be before the entry.
            (self.reading.last_seq.0.saturating_sub(hold.seq.0), limits.replay_entries),
            (self.reading.read_bytes.saturating_sub(hold.read_bytes), limits.replay_bytes),
            (command_bytes, limits.replay_command_bytes as u64),
        ]
    }

    /// See [`Stats::replay_permille`](crate::Stats::replay_permille).
    pub(super) fn replay_permille(&self) -> u64 {
        let lowest = self.reading.holds.first().and_then(|&(seq, slot)| self.hold_of(seq, slot));
        let costs = lowest.map(|hold| self.replay_from(hold)).into_iter().flatten();
        costs.map(|(cost, limit)| cost.saturating_mul(1_000) / limit.max(1)).max().unwrap_or(0)
    }
}
