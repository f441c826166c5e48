//! The double of the store: rows with locks and epochs, unique keys, one transaction per commit.

mod compactions;
mod ends;
pub(crate) mod erasure;
pub(crate) mod fence;
pub(crate) mod own_work;
mod retention;
mod rows;
pub(crate) mod timer_rows;
pub(crate) mod timers;
pub(crate) mod turns;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use model::{
    Chunk, ChunkKind, Command, DeadLetter, DeadLetterSource, Frame, IncomingChunk, Mark, MessageKey,
    PartitionId, Position, Seq, ThreadId, TimerId, Timestamp, TokenKey, TurnId,
};
use partition::{Commit, EntryBody, Incident, Lookup, Save, SpilledMessage, StreamEntry, Takeover};

use crate::bug::PlantedBug;
use crate::checker::turns::{Ordered, Transition, TransitionKind, TurnPart, TurnRow, is_follow_up, part_of};
use crate::checker::{DeadLetterRow, Invariant, MessageRow, Violation};
use crate::log::{Log, START};
use turns::Tables;

/// The row of a partition.
#[derive(Debug, Default, Clone)]
pub(crate) struct Row {
    pub(crate) epoch: u64,
    pub(crate) commits: u64,
    /// Number of saves that were written.
    pub(crate) saves: u64,
    pub(crate) incarnation: Option<String>,
    pub(crate) read: Option<Mark>,
    pub(crate) owner: Option<u64>,
    pub(crate) lease_until: i64,
    pub(crate) checkpoint: u64,
    pub(crate) high_water: i64,
    pub(crate) granted_at: i64,
    /// The statement that holds the row's lock.
    pub(crate) locked_by: Option<usize>,
    /// Statements that wait for the lock.
    pub(crate) queue: VecDeque<usize>,
}

/// A lease that was just granted.
#[derive(Debug, Clone)]
pub(crate) struct Grant {
    pub(crate) epoch: u64,
    pub(crate) commits: u64,
    pub(crate) saves: u64,
    pub(crate) incarnation: Option<String>,
    pub(crate) read: Option<Mark>,
    pub(crate) checkpoint: u64,
    pub(crate) high_water: i64,
    pub(crate) granted_at: i64,
}

#[derive(Debug, Default, Clone)]
pub(crate) struct Store {
    pub(crate) rows: Vec<Row>,
    pub(crate) messages: Vec<MessageRow>,
    pub(crate) letters: Vec<DeadLetterRow>,
    pub(crate) grants: Vec<(PartitionId, u64)>,
    pub(crate) violations: Vec<Violation>,
    /// Messages that were already there when a commit brought them.
    pub(crate) key_conflicts: u64,
    /// Dead letters that a planted bug writes later.
    pub(crate) letters_outside: Vec<(PartitionId, DeadLetter)>,
    ends: BTreeMap<MessageKey, i64>,
    message_keys: BTreeSet<MessageKey>,
    letter_keys: BTreeSet<MessageKey>,
    /// Dead letters of entries, with the thread or agent in their subjects if they name one.
    entry_keys: BTreeMap<(PartitionId, u64, bytes::Bytes), Option<String>>,
    heads: BTreeMap<ThreadId, i64>,
    /// The highest number that was assigned in each thread.
    last_numbers: BTreeMap<ThreadId, i64>,
    /// Turns, tasks and agents, by partition.
    pub(crate) tables: Vec<Tables>,
    pub(crate) rows_of_turns: Vec<TurnRow>,
    pub(crate) history: Vec<Transition>,
    /// Answers that clients may see as failed.
    pub(crate) failed_answers: BTreeSet<MessageKey>,
    /// How the messages of each thread ended, as gateways read it.
    ends_of: BTreeMap<ThreadId, BTreeMap<Position, feed::EndedMessage>>,
    /// The places of messages, until they are deleted.
    kept: rows::KeptRows,
    pub(crate) timers: timer_rows::Timers,
    compactions: BTreeMap<ThreadId, Vec<rows::CompactionRow>>,
    /// Steps whose answer has not arrived yet.
    steps: BTreeMap<MessageKey, Vec<model::Message>>,
    /// Inputs that people may see, until their answers are added.
    inputs: BTreeMap<model::TurnId, model::Message>,
    /// Turns that were already in the history when a commit brought them, and stale queues.
    pub(crate) turn_conflicts: u64,
    pub(crate) commits: u64,
    /// Ended messages that belong to no turn.
    bare_ends: usize,
    /// Answers that a planted bug writes with the next commit.
    split: Vec<Vec<model::Message>>,
    spilled_messages: Vec<BTreeMap<MessageKey, (i64, SpilledMessage)>>,
    pub(crate) incidents: Vec<(PartitionId, Incident)>,
    /// True if the store went back in time: the positions of tasks then differ from those whose
    /// answers are in the streams.
    pub(crate) is_undone: bool,
    /// What commits gave to their own partitions, in the form of commands.
    pub(crate) own_work: Vec<Ordered>,
    /// Marks of erased threads; true when the erasure is complete.
    erased: BTreeMap<ThreadId, bool>,
    /// All threads that were ever marked, even if the store has gone back to before the mark:
    /// entries that arrived under the mark were dropped.
    once_erased: BTreeSet<ThreadId>,
    /// Turns of tasks that an erasure deleted, with the erased thread.
    erased_turns: BTreeMap<TurnId, ThreadId>,
    bug: Option<PlantedBug>,
}

impl Store {
    pub(crate) fn new(partitions: u16, bug: Option<PlantedBug>) -> Self {
        let rows = (0..partitions).map(|_| Row::default()).collect();
        let spilled_messages = (0..partitions).map(|_| BTreeMap::new()).collect();
        let tables = (0..partitions).map(|_| Tables::default()).collect();
        let split = (0..partitions).map(|_| Vec::new()).collect();
        Self { rows, spilled_messages, tables, split, bug, ..Self::default() }
    }

    pub(crate) fn row(&mut self, partition: PartitionId) -> &mut Row {
        &mut self.rows[usize::from(partition.0)]
    }

    /// Raises the epoch above every epoch that was ever granted, even by a store that has gone back
    /// in time since. `now_us` is the database's clock.
    pub(crate) fn grant(
        &mut self,
        partition: PartitionId,
        owner: u64,
        lease_until: i64,
        now_us: i64,
    ) -> Grant {
        let row = self.row(partition);
        row.epoch = (row.epoch + 1).max(now_us as u64);
        row.owner = Some(owner);
        row.lease_until = lease_until;
        row.granted_at = now_us / 1_000;
        row.high_water = row.high_water.max(row.granted_at);
        let grant = row.grant();
        self.grants.push((partition, grant.epoch));
        grant
    }

    pub(crate) fn is_held(&self, partition: PartitionId, owner: u64, epoch: u64) -> bool {
        let row = &self.rows[usize::from(partition.0)];
        row.owner == Some(owner) && row.epoch == epoch
    }

    pub(crate) fn has_ended(&self, key: &MessageKey) -> bool {
        self.ends.contains_key(key)
    }

    pub(crate) fn ended_messages(&self) -> usize {
        self.bare_ends
    }

    /// Looks up these messages.
    pub(crate) fn lookup(
        &self,
        keys: &[MessageKey],
        missing: &BTreeSet<ThreadId>,
        time: i64,
    ) -> Vec<(MessageKey, Lookup)> {
        let lag = if self.bug == Some(PlantedBug::NoUniqueKey) { 5_000 } else { 0 };
        let known = |key: &MessageKey| match self.ends.get(key) {
            Some(at) if at + lag <= time && self.bug != Some(PlantedBug::NoLookUp) => Lookup::Ended,
            // Nothing of erased threads is kept, not even as a dead letter.
            _ if self.is_erased(&key.thread) && self.bug != Some(PlantedBug::ErasedUnasked) => Lookup::Ended,
            _ if missing.contains(&key.thread) => Lookup::NoThread,
            _ => Lookup::Absent,
        };
        keys.iter().map(|key| (key.clone(), known(key))).collect()
    }

    /// The state that a new owner starts from: the row as of its grant, the spilled messages as of
    /// now.
    pub(crate) fn load(
        &self,
        partition: PartitionId,
        grant: &Grant,
        (window, timer_window): (usize, usize),
        time: i64,
    ) -> Takeover {
        let tables = &self.tables[usize::from(partition.0)];
        let is_planted = |bug: PlantedBug| self.bug == Some(bug);
        let saved = &self.spilled_messages[usize::from(partition.0)];
        let aged = |(saved_at, save): &(i64, SpilledMessage)| {
            let age = time - saved_at;
            SpilledMessage {
                open_ms: save.open_ms + age,
                gap_ms: save.gap_ms.map(|gap| gap + age),
                idle_ms: save.idle_ms + age,
                earlier_calls: match is_planted(PlantedBug::EarlierCallsLost) {
                    true => Vec::new(),
                    false => save.earlier_calls.clone(),
                },
                ..save.clone()
            }
        };
        let high_water = if self.bug == Some(PlantedBug::NoHighWater) { 0 } else { grant.high_water };
        let (checkpoint, high_water) = (Seq(grant.checkpoint), Timestamp(high_water));
        let granted_at = Timestamp(grant.granted_at);
        Takeover {
            spilled_messages: saved
                .values()
                .filter(|(_, save)| !self.is_erased(&save.key.thread))
                .map(aged)
                .collect(),
            agents: tables.saved_agents(START + time, window, self.bug),
            open_turns: match is_planted(PlantedBug::OpenTurnsLost) {
                true => Vec::new(),
                false => {
                    let saved = tables.saved_inputs().into_iter();
                    saved.filter(|open| !self.is_erased(&open.opened.thread)).collect()
                }
            },
            outbox: match is_planted(PlantedBug::OutboxForgotten) {
                true => Vec::new(),
                false => tables.outbox.values().cloned().collect(),
            },
            timers: self.timer_page(partition, None, timer_window, time),
            ..Takeover::bare(partition, grant.epoch, checkpoint, high_water, granted_at, token_key())
        }
    }

    /// Applies a whole commit. `skew` is the error of the clock by which backoffs are written, for
    /// a planted bug. True if a queue was further ahead than its owner knew.
    pub(crate) fn apply(&mut self, commit: &Commit, log: &Log, time: i64, skew: i64) -> bool {
        let partition = commit.partition;
        self.commits += 1;
        let (tables, erased) = (&mut self.tables[usize::from(partition.0)], &self.erased);
        let is_erased = |thread: &ThreadId| erased.contains_key(thread);
        self.own_work.extend(own_work::of_commit(commit, time, is_erased));
        let applied = tables.apply(commit, START + time, skew, self.bug, is_erased);
        self.turn_conflicts += u64::from(applied.is_stale);
        for key in applied.failed {
            self.end(&key, time);
            self.failed_answers.insert(key);
        }
        let (at_ms, number) = (time, self.commits);
        self.history.extend(applied.happened.into_iter().map(at_database).map(|what| Transition {
            at_ms,
            partition,
            number,
            what,
        }));
        self.insert_messages(commit, &applied.turns, time);
        self.apply_timers(commit, time);
        self.keep_failures(commit);
        for letter in &commit.dead_letters {
            if self.bug == Some(PlantedBug::DeadLetterOutside) {
                self.letters_outside.push((partition, letter.clone()));
            } else {
                self.insert_letter(partition, letter, time);
            }
        }
        let spilled_messages = &mut self.spilled_messages[usize::from(partition.0)];
        if self.bug != Some(PlantedBug::SpillsStay) {
            let stays = |key: &MessageKey| {
                self.bug == Some(PlantedBug::SavedAnswersStay) && part_of(&key.message).is_some()
            };
            spilled_messages.retain(|key, _| !commit.ended_spills.contains(key) || stays(key));
        }
        self.check_saved(partition);
        self.check_stopped(commit);
        self.check_erased(false);
        let row = self.row(partition);
        let passed = row.checkpoint + 1..=commit.checkpoint.0;
        (row.checkpoint, row.high_water) = (commit.checkpoint.0, commit.position_high_water.0);
        self.check_passed(partition, passed, log);
        applied.is_stale
    }

    /// Saves open messages and inputs, independently of commits. Returns the number of saves of the
    /// partition, including this one.
    pub(crate) fn save(&mut self, partition: PartitionId, save: &Save, time: i64) -> u64 {
        let spilled_messages = &mut self.spilled_messages[usize::from(partition.0)];
        for part in &save.messages {
            save_part(spilled_messages, part, self.bug, time);
        }
        self.tables[usize::from(partition.0)].save_inputs(&save.turns);
        self.check_saved(partition);
        let row = self.row(partition);
        row.saves += 1;
        row.saves
    }

    /// Inserts messages without a turn, and those of new turns, in the order of their positions.
    fn insert_messages(&mut self, commit: &Commit, turns: &[usize], time: i64) {
        let number = usize::from(commit.partition.0);
        let mut messages: Vec<(model::Message, bool)> =
            std::mem::take(&mut self.split[number]).into_iter().map(|message| (message, true)).collect();
        messages.extend(commit.messages.iter().map(|message| (message.clone(), false)));
        for write in turns.iter().filter_map(|index| commit.turns.get(*index)) {
            if self.bug == Some(PlantedBug::TaskWithoutTurn) && write.agent.is_some() {
                continue;
            }
            let mut own = write.messages.clone();
            if self.bug == Some(PlantedBug::TurnSplit) {
                self.split[number].extend(own.split_off(1));
            }
            messages.extend(own.into_iter().map(|message| (message, true)));
        }
        messages.sort_by_key(|(message, _)| message.placement.position);
        let of_turns = || messages.iter().filter(|(_, is_of_turn)| *is_of_turn).map(|(message, _)| message);
        let mut rows: Vec<TurnRow> = of_turns().map(|message| turn_row(message, self.commits)).collect();
        let positions: Vec<i64> = of_turns().map(|message| message.placement.position.get()).collect();
        self.number_on(&mut rows, &positions);
        let mut rows = rows.into_iter();
        for (message, is_of_turn) in &messages {
            let row = if *is_of_turn { rows.next() } else { None };
            self.insert_message(message, row.as_ref(), time);
            self.rows_of_turns.extend(row);
        }
    }

    fn insert_message(&mut self, message: &model::Message, row: Option<&TurnRow>, time: i64) {
        if !self.message_keys.insert(message.key.clone()) {
            self.key_conflicts += 1;
            if self.bug != Some(PlantedBug::NoUniqueKey) {
                return;
            }
        }
        self.keep(message, row, time);
        let position = message.placement.position.get();
        let head = self.heads.get(&message.key.thread).copied();
        self.heads.insert(message.key.thread.clone(), head.unwrap_or(i64::MIN).max(position));
        let number = self.next_number(&message.key.thread);
        self.messages.push(MessageRow {
            key: message.key.clone(),
            position,
            parent: head,
            number,
            role: message.role,
            content: message.content.clone(),
            metadata: message.metadata.clone(),
            attempt: message.attempt,
        });
        // Clients are shown messages without a turn, and answers.
        if !matches!(part_of(&message.key.message), Some((_, TurnPart::Input | TurnPart::Step(_)))) {
            self.end(&message.key, time);
        }
        self.add_end(message);
    }

    fn next_number(&mut self, thread: &ThreadId) -> i64 {
        let last = self.last_numbers.entry(thread.clone()).or_default();
        *last += 1;
        match self.bug {
            // The count already includes the message itself.
            Some(PlantedBug::NumberIsCount) => {
                self.kept.get(thread).map_or(1, |rows| i64::try_from(rows.len()).unwrap_or(i64::MAX))
            }
            _ => *last,
        }
    }

    pub(crate) fn insert_letter(&mut self, partition: PartitionId, letter: &DeadLetter, time: i64) {
        match &letter.source {
            DeadLetterSource::Entry { payload, subject, .. } => {
                let seq = letter.seq.0;
                let (key, owner) = ((partition, seq, payload.clone()), subject.split('.').nth(2));
                if self.entry_keys.insert(key, owner.map(str::to_owned)).is_none() {
                    let payload = payload.clone();
                    self.letters.push(DeadLetterRow::Entry { partition, seq, payload });
                }
            }
            DeadLetterSource::Message { key, attempt, chunks, failure } => {
                if self.letter_keys.insert(key.clone()) {
                    self.letters.push(DeadLetterRow::Message {
                        key: key.clone(),
                        attempt: *attempt,
                        code: failure.code().to_owned(),
                        chunks: chunks.clone(),
                    });
                    self.end(key, time);
                }
            }
        }
    }

    fn end(&mut self, key: &MessageKey, time: i64) {
        if self.ends.insert(key.clone(), time).is_none() && part_of(&key.message).is_none() {
            self.bare_ends += 1;
        }
    }

    /// Checks that no saved parts of ended messages and turns are left.
    fn check_saved(&mut self, partition: PartitionId) {
        let number = usize::from(partition.0);
        // Owners do not load saved parts of erased threads; these are deleted with the rest.
        let messages = self.spilled_messages[number]
            .keys()
            .filter(|key| self.has_ended(key) && !self.is_erased(&key.thread));
        let messages = messages.map(|key| format!("what was saved of {key}"));
        let inputs = self.tables[number].saved_and_over().filter(|(thread, _)| !self.is_erased(thread));
        let inputs = inputs.map(|(_, turn)| format!("the saved input of {turn}"));
        let left: Vec<String> = messages.chain(inputs).collect();
        for subject in left {
            self.violations.push(Violation::new(Invariant::SavedRows, subject, "gone with the end", "there"));
        }
    }

    fn check_stopped(&mut self, commit: &Commit) {
        for (turn, outgoing) in turns::sent_by_stopped(commit) {
            self.violations.push(Violation::new(Invariant::AfterStop, turn, "its end alone", outgoing));
        }
    }

    /// Checks invariant I5 for the entries that the checkpoint has just passed.
    fn check_passed(&mut self, partition: PartitionId, passed: std::ops::RangeInclusive<u64>, log: &Log) {
        let (first, last) = passed.into_inner();
        if first > last {
            return;
        }
        for entry in log.read(first, last) {
            let Some(missing) = self.lacks(partition, &entry) else { continue };
            let subject = format!("entry {} of partition {partition}", entry.seq);
            let seen = format!("a checkpoint at {last}");
            self.violations.push(Violation::new(
                Invariant::Checkpoint,
                subject,
                format!("{missing} kept"),
                seen,
            ));
        }
    }

    /// Names what the store lacks of an entry, if anything.
    pub(crate) fn lacks(&self, partition: PartitionId, entry: &StreamEntry) -> Option<String> {
        if self.needs_nothing_of(entry) {
            return None;
        }
        match &entry.body {
            EntryBody::Command(_, raw)
                if self.entry_keys.contains_key(&(partition, entry.seq.0, raw.payload.clone())) =>
            {
                None
            }
            EntryBody::Command(command, _) if self.keeps_order(partition, command) => None,
            EntryBody::Command(command, _) => Some(format!("{command:?}")),
            EntryBody::Refused { payload, .. } => {
                let is_kept = self.entry_keys.contains_key(&(partition, entry.seq.0, payload.clone()));
                (!is_kept).then(|| "its dead letter".to_owned())
            }
            EntryBody::Frame(frame) => {
                let lost =
                    frame.chunks.iter().find(|arrival| !self.keeps_chunk(partition, frame, arrival))?;
                Some(format!("chunk {} of {}/{}", lost.chunk.id, frame.thread, lost.message))
            }
        }
    }

    fn keeps_order(&self, partition: PartitionId, command: &Command) -> bool {
        let tables = &self.tables[usize::from(partition.0)];
        match command {
            // The retried run has not failed in this store, or not yet: it is in progress again.
            Command::Turn(opened) if self.is_undone && opened.run > 0 => true,
            Command::Turn(opened) => tables.keeps_input(&opened.thread, &opened.turn, opened.run),
            Command::Task(task) => tables.knows_task(&task.agent, &task.id),
            Command::DelayedTask(delayed) => {
                let task = &delayed.task;
                tables.timers.contains_key(&TimerId::of_task(&task.agent, &task.id))
                    || tables.knows_task(&task.agent, &task.id)
            }
            Command::Control(control) => {
                tables.audit.contains_key(&(control.subject.clone(), control.id.clone()))
            }
        }
    }

    /// True if a commit opened the turn, and nothing is stored of its answer because the store has
    /// gone back to before that commit. If the turn is opened again, it is requested again.
    fn is_unopened(&self, partition: PartitionId, thread: &ThreadId, turn: &TurnId) -> bool {
        let is_open = || {
            let key = (thread.clone(), turn.clone());
            self.tables[usize::from(partition.0)].open_turns.contains_key(&key)
        };
        (is_follow_up(turn) || turn.as_str().contains("-h"))
            && (is_open() || !self.own_work.iter().any(|own| own_work::is_of(&own.command, turn)))
    }

    fn keeps_chunk(&self, partition: PartitionId, frame: &Frame, arrival: &IncomingChunk) -> bool {
        let key = MessageKey { thread: frame.thread.clone(), message: arrival.message.clone() };
        if let Some((turn, run)) = TurnId::of_answer(&arrival.message) {
            if self.erased_turns.contains_key(&turn) {
                return true;
            }
            let token = token_key().token(&frame.thread, &turn, run);
            let is_asked = frame.token.as_ref().is_some_and(|received| token.matches(received));
            let tables = &self.tables[usize::from(partition.0)];
            let is_answered_again = self.is_undone && (run > 0 || tables.will_answer(&turn));
            let is_unopened = self.is_undone && self.is_unopened(partition, &frame.thread, &turn);
            if !is_asked || is_answered_again || is_unopened || tables.run_is_over(&frame.thread, &turn, run)
            {
                return true;
            }
        }
        self.is_kept(partition, &key, arrival.attempt, &arrival.chunk)
    }

    /// True if the chunk is not needed again: its message has ended, or the chunk or a higher
    /// attempt is saved. A final chunk is not a repetition of a chunk that is not final; it
    /// contradicts it.
    fn is_kept(&self, partition: PartitionId, key: &MessageKey, attempt: u32, chunk: &Chunk) -> bool {
        let saved = self.spilled_messages[usize::from(partition.0)].get(key);
        let is_saved = |save: &SpilledMessage| {
            save.attempt > attempt
                || is_whole(save)
                || (save.attempt == attempt
                    && save
                        .chunks
                        .iter()
                        .any(|saved| saved.id == chunk.id && saved.is_final >= chunk.is_final))
        };
        self.has_ended(key) || saved.is_some_and(|(_, save)| is_saved(save))
    }
}

/// True if no later chunk counts: all chunks up to the final one or up to an error are there.
fn is_whole(save: &SpilledMessage) -> bool {
    let mut ends = save.chunks.iter().filter(|chunk| chunk.is_final || chunk.kind == ChunkKind::Error);
    ends.any(|last| (0..=last.id).all(|id| save.chunks.iter().any(|chunk| chunk.id == id)))
}

/// Converts to the time of the simulation, like everything else that is compared.
fn at_database(what: TransitionKind) -> TransitionKind {
    match what {
        TransitionKind::Agent { agent, mut row, wait_ms } => {
            row.next_run_at = row.next_run_at.map(|at| at - START);
            TransitionKind::Agent { agent, row, wait_ms }
        }
        what => what,
    }
}

fn turn_row(message: &model::Message, commit: u64) -> TurnRow {
    let calls = message.tool_calls.as_ref().and_then(|calls| calls.as_array());
    let id = |call: &serde_json::Value| call["id"].as_str().unwrap_or_default().to_owned();
    TurnRow {
        key: message.key.clone(),
        commit,
        batch_id: message.placement.batch_id.get(),
        sequence_num: message.placement.sequence_num,
        batch_type: message.placement.batch_type,
        calls: calls.into_iter().flatten().map(id).collect(),
        answers: message.tool_call_id.clone(),
    }
}

/// The key of this world's turn tokens.
pub(crate) fn token_key() -> TokenKey {
    TokenKey::new(&[7; 32]).unwrap_or_else(|_| unreachable!("32 bytes are a key"))
}

impl Row {
    pub(crate) fn grant(&self) -> Grant {
        let (incarnation, checkpoint) = (self.incarnation.clone(), self.checkpoint);
        let Self { epoch, commits, saves, read, high_water, granted_at, .. } = *self;
        Grant { epoch, commits, saves, incarnation, read, checkpoint, high_water, granted_at }
    }
}

/// Adds parts of the same attempt, and drops those of lower attempts, as the store's statement
/// does.
fn save_part(
    spilled_messages: &mut BTreeMap<MessageKey, (i64, SpilledMessage)>,
    part: &SpilledMessage,
    bug: Option<PlantedBug>,
    time: i64,
) {
    let mut chunks: Vec<Arc<Chunk>> = Vec::new();
    if let Some((_, before)) = spilled_messages.get(&part.key)
        && before.attempt == part.attempt
        && bug != Some(PlantedBug::SavesReplace)
    {
        chunks.clone_from(&before.chunks);
    }
    chunks.retain(|kept| part.chunks.iter().all(|chunk| chunk.id != kept.id));
    chunks.extend(part.chunks.iter().cloned());
    let whole = SpilledMessage { first_chunk: 0, chunks, ..part.clone() };
    spilled_messages.insert(part.key.clone(), (time, whole));
}
