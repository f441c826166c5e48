//! Reads entries of the stream.

use model::{Frame, IncomingChunk, MessageKey, Seq, ThreadId, Timestamp, TokenKeys, TurnId, TurnToken};

use super::Partition;
use crate::action::{Action, EntryBody, MachineReport, StreamEntry};
use crate::messages::Slot;
use crate::open::{ChunkOutcome, Hold, OpenMessage, Phase};
use crate::reading::EntryPlace;
use crate::types::RawPayload;

/// Reading pauses when enough inputs for this number of full commits have ended: enough to keep the
/// store busy.
const COMMITS_AHEAD: usize = 4;

impl Partition {
    /// False while reading on would be useless:
    /// * enough inputs have ended for the next commits,
    /// * new messages have to wait and no open one could make progress,
    /// * or too many refused entries are not stored yet.
    pub fn wants_entries(&self) -> bool {
        if self.committing.ended.refused_bytes > self.limits.refused_bytes || self.is_ahead() {
            return false;
        }
        // No turn starts, and so none ends, before everything has been read.
        self.reading.deferring.is_none()
            || !self.reading.has_caught_up
            || self.reading.last_seq < self.reading.begins_after
            || self.messages.iter().any(|open| open.phase != Phase::Ended)
            || self.table.active > 0
    }

    /// True if enough inputs for several commits have ended or wait for the store. All of them can
    /// be settled without reading more. Entries read meanwhile would fill the memory until messages
    /// have to wait in the stream and are read again.
    pub(super) fn is_ahead(&self) -> bool {
        let in_flight = self.committing.in_flight.as_ref();
        let count = self.messages.look_ups.under_way
            + self.committing.ended.queue.len()
            + in_flight.map_or(0, |commit| commit.ended.len());
        let bytes = self.committing.ended.bytes + in_flight.map_or(0, |commit| commit.bytes);
        count >= COMMITS_AHEAD * self.limits.commit_turns || bytes >= COMMITS_AHEAD * self.limits.commit_bytes
    }

    /// True while new messages wait in the stream: the driver sends
    /// [`crate::Input::Room`] when there is room.
    pub fn is_deferring(&self) -> bool {
        self.reading.deferring.is_some()
    }

    pub(super) fn read(&mut self, entries: Vec<StreamEntry>, mut room: usize) {
        let now = self.effects.now;
        for entry in entries {
            // A reader that lost its place may deliver entries again.
            if entry.seq <= self.reading.last_seq {
                continue;
            }
            if entry.seq != self.reading.last_seq.next() {
                let (first, last) = (self.reading.last_seq.next(), entry.seq.before());
                self.effects.counters.holes += last.0 - first.0 + 1;
                self.effects.push(Action::Report(MachineReport::Hole { first, last }));
            }
            self.reading.last_seq = entry.seq;
            if entry.seq > self.reading.highest_seq {
                self.reading.highest_seq = entry.seq;
                self.reading.read_bytes += entry.bytes as u64;
            }
            self.effects.counters.entries += 1;
            self.reading.clock.observe(entry.stored_at);
            // Another machine's clock may be ahead.
            self.reading.last_stored_at = entry.stored_at.min(now);
            match entry.body {
                EntryBody::Frame(frame) => self.frame(&frame, entry.seq, &mut room),
                EntryBody::Command(command, raw) => self.command(command, raw, entry.seq, &mut room),
                EntryBody::Refused { subject, payload, refusal, answer } => {
                    self.effects.counters.refused += 1;
                    self.effects.counters.forbidden += u64::from(refusal.is_forbidden());
                    self.reading.hold_entry(entry.seq);
                    if let Some(answer) = answer {
                        self.refuse_answer(answer, refusal.clone());
                    }
                    self.give_up(entry.seq, RawPayload { subject, payload }, refusal);
                }
            }
        }
    }

    pub(super) fn frame(&mut self, frame: &Frame, seq: Seq, room: &mut usize) {
        if !self.blocks_chunks(frame, seq) {
            self.place(frame, seq, room);
        }
    }

    /// Takes the chunks of a frame that nothing blocks.
    pub(super) fn place(&mut self, frame: &Frame, seq: Seq, room: &mut usize) {
        let (resumed, first) = self.reading.resumes_at;
        let taken = if resumed == seq { first } else { 0 };
        for (index, arrival) in frame.chunks.iter().enumerate().skip(taken) {
            let slot = match self.messages.find(&frame.thread, &arrival.message) {
                Some(slot) if self.is_of_other_role(slot, arrival) => {
                    self.effects.counters.other_roles += 1;
                    let key = MessageKey { thread: frame.thread.clone(), message: arrival.message.clone() };
                    self.effects.push(Action::Report(MachineReport::OtherRole(key)));
                    None
                }
                Some(slot) if self.is_asked(slot, frame) => Some(slot),
                Some(_) => {
                    self.reject_unauthorized(&frame.thread, arrival);
                    None
                }
                None => match TurnId::of_answer(&arrival.message) {
                    Some((turn, run)) => self.answer_slot(frame, arrival, (&turn, run), seq),
                    None if TurnId::is_reserved(&arrival.message) => {
                        self.reject_unauthorized(&frame.thread, arrival);
                        None
                    }
                    None => self.open(&frame.thread, arrival, (seq, index), room),
                },
            };
            if let Some(slot) = slot {
                let delivery = frame.token.as_ref().and_then(TurnToken::delivery);
                self.take(slot, arrival, delivery, seq);
            }
        }
    }

    /// A bare message keeps its role in all its attempts. A person's message needs a subject with
    /// its own permission, so a publisher that may only write as assistant cannot write into it.
    fn is_of_other_role(&self, slot: Slot, arrival: &IncomingChunk) -> bool {
        self.messages.get(slot).is_some_and(|open| open.turn.is_none() && open.role != arrival.role)
    }

    /// A frame may write into a turn's answer only with the turn's token.
    fn is_asked(&self, slot: Slot, frame: &Frame) -> bool {
        match self.messages.get(slot).and_then(|open| open.turn.as_ref()) {
            None => true,
            Some(turn) => frame.token.as_ref().is_some_and(|received| {
                turn.token.matches(received) || self.is_of_another_key(&frame.thread, &turn.id, received)
            }),
        }
    }

    /// True if `received` is the turn's token under another valid key: the key before a rotation,
    /// if a previous owner made the request.
    fn is_of_another_key(&self, thread: &ThreadId, turn: &TurnId, received: &TurnToken) -> bool {
        let run = self.table.turns.get(turn).map(|turn| turn.run);
        run.is_some_and(|run| self.table.token_keys.accepts(thread, turn, run, received))
    }

    /// Sets the keys of tokens. Tokens of active turns under expired keys are replaced; chunks with
    /// the old token are then refused.
    pub(super) fn set_token_keys(&mut self, keys: TokenKeys) {
        if self.table.token_keys.is_newer_than(&keys) {
            return;
        }
        self.table.token_keys = keys;
        let keys = &self.table.token_keys;
        for turn in self.table.turns.values_mut() {
            if !keys.accepts(&turn.thread, &turn.id, turn.run, &turn.token) {
                turn.token = keys.token(&turn.thread, &turn.id, turn.run);
            }
        }
        let slots: Vec<Slot> = self.messages.slots().collect();
        for slot in slots {
            let open = self.messages.get_mut(slot).and_then(|open| open.turn.as_mut());
            if let Some((open, turn)) =
                open.and_then(|open| self.table.turns.get(&open.id).map(|turn| (open, turn)))
            {
                open.token = turn.token.clone();
            }
        }
    }

    /// Opens a message; `None` if it has ended or has to wait.
    fn open(
        &mut self,
        thread: &ThreadId,
        arrival: &IncomingChunk,
        place: EntryPlace,
        room: &mut usize,
    ) -> Option<Slot> {
        let now = self.effects.now;
        let key = MessageKey { thread: thread.clone(), message: arrival.message.clone() };
        if self.messages.look_ups.ended.get(&key).is_some() {
            self.effects.counters.late += 1;
            return None;
        }
        // Once one message waits, all later new messages wait, too: when their entries are read
        // again, these messages must not be open yet.
        if self.reading.deferring.is_some() || *room == 0 {
            self.defer(place);
            return None;
        }
        *room -= 1;
        let time = self.reading.clock.now(now);
        self.messages.look_ups.wanted.push(key.clone());
        Some(self.messages.insert(OpenMessage::new(key, arrival, place.0, &self.limits, time)))
    }

    fn take(&mut self, slot: Slot, arrival: &IncomingChunk, delivery: Option<&str>, seq: Seq) {
        let now = self.effects.now;
        let (time, stored_at) = (self.reading.clock.now(now), self.reading.last_stored_at);
        let limits = self.limits;
        let Some((taken, attempt_rose)) = self.messages.account(slot, |open| {
            let attempt = open.attempt;
            (open.take(arrival, delivery, &limits, time, stored_at), open.attempt > attempt)
        }) else {
            return;
        };
        self.effects.counters.resets += u64::from(attempt_rose);
        match taken {
            ChunkOutcome::Accepted { held } => {
                self.effects.counters.chunks += 1;
                self.effects.counters.out_of_order += u64::from(held);
                if held && limits.reports_chunks {
                    let open = self.messages.get(slot);
                    self.effects.extend(open.map(|open| out_of_order(open, arrival.chunk.id, time)));
                }
                self.hold(slot, seq);
                self.messages.touched.push(slot);
                self.on_turn_chunk(slot, time);
            }
            ChunkOutcome::Duplicate => self.effects.counters.duplicates += 1,
            ChunkOutcome::Fenced => self.effects.counters.fenced += 1,
            ChunkOutcome::Late => {
                self.effects.counters.late += 1;
                // Until the end of the message is committed, another owner may have to continue it.
                self.hold(slot, seq);
            }
            ChunkOutcome::Broke => self.hold(slot, seq),
            ChunkOutcome::Conflict { kept, dropped } => {
                self.effects.counters.conflicts += 1;
                let Some(open) = self.messages.get(slot) else { return };
                let (key, chunk_id) = (open.key.clone(), arrival.chunk.id);
                self.effects.push(Action::Report(MachineReport::Conflict { key, chunk_id, kept, dropped }));
            }
        }
        if matches!(taken, ChunkOutcome::Accepted { held: false } | ChunkOutcome::Broke) {
            self.settle(slot);
        }
    }

    /// Holds the entry until the message is saved or has ended.
    fn hold(&mut self, slot: Slot, seq: Seq) {
        let hold = self.hold_at(seq);
        if self.messages.get_mut(slot).is_some_and(|open| open.hold(hold)) {
            self.reading.holds.insert((seq, slot));
        }
    }

    /// The bytes read before an entry are not known if the entry is read again. They are at most
    /// the bytes before the next held entry above it.
    pub(super) fn hold_at(&self, seq: Seq) -> Hold {
        let mut above = self.reading.holds.range((seq.next(), Slot::MIN)..);
        let above = match seq < self.reading.highest_seq {
            true => above.find_map(|(seq, slot)| self.hold_of(*seq, *slot)),
            false => None,
        };
        Hold {
            seq,
            read_bytes: above
                .map_or(self.reading.read_bytes, |above| above.read_bytes.min(self.reading.read_bytes)),
        }
    }
}

/// Reports a chunk out of order, for a log that shows it.
fn out_of_order(open: &OpenMessage, chunk_id: u32, time: Timestamp) -> Action {
    let (key, buffer) = (open.key.clone(), open.buffer_state(time));
    Action::Report(MachineReport::OutOfOrder { key, chunk_id, buffer })
}
