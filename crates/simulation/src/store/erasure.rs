//! The double of erasing a thread: it marks the thread and deletes the rows table by table, like
//! the statements.

use std::collections::BTreeSet;

use model::{AgentId, Command, MessageKey, PartitionId, Position, TaskKind, ThreadId, TurnId};
use partition::{CommandKey, EntryBody, Outgoing, StreamEntry};

use super::Store;
use crate::bug::PlantedBug;
use crate::checker::turns::{Transition, TransitionKind, TurnPart, part_of};
use crate::checker::{Invariant, Violation};

/// What each statement deletes, in execution order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErasedRows {
    /// The batches in which agents executed tasks that followed the thread's turns.
    BatchesOfAgents,
    OpenTurns,
    FailedTurns,
    FailedMessages,
    Spills,
    Messages,
    Tasks,
    Letters,
    Audit,
    /// Failures of the turns of follow-on tasks, and saved parts of the answers of these turns.
    FailuresOfAgents,
    SpillsOfAgents,
    TaskIdsOfAgents,
    TasksOfAgents,
    Outbox,
    Timers,
}

impl ErasedRows {
    pub(crate) const ALL: [Self; 15] = [
        Self::BatchesOfAgents,
        Self::OpenTurns,
        Self::FailedTurns,
        Self::FailedMessages,
        Self::Spills,
        Self::Messages,
        Self::Tasks,
        Self::Letters,
        Self::Audit,
        Self::FailuresOfAgents,
        Self::SpillsOfAgents,
        Self::TaskIdsOfAgents,
        Self::TasksOfAgents,
        Self::Outbox,
        Self::Timers,
    ];
}

/// A task that follows a turn of the thread: partition, agent and position.
type Following = (usize, AgentId, i64);

impl Store {
    /// Marks the thread: whatever arrives for it from now on is ignored.
    pub(crate) fn mark_erased(&mut self, thread: &ThreadId) {
        self.erased.insert(thread.clone(), false);
        self.once_erased.insert(thread.clone());
    }

    /// Notes that the erasure of the thread is complete.
    pub(crate) fn is_wholly_erased(&mut self, thread: &ThreadId) {
        self.erased.insert(thread.clone(), true);
    }

    pub(crate) fn is_erased(&self, thread: &ThreadId) -> bool {
        self.erased.contains_key(thread)
    }

    /// Whether the thread is marked, and whether its erasure is complete.
    pub(crate) fn erasure(&self, thread: &ThreadId) -> Option<bool> {
        self.erased.get(thread).copied()
    }

    /// True if a look-up reports the command as erased; control commands are still executed.
    pub(crate) fn is_order_erased(&self, key: &CommandKey) -> bool {
        match key {
            _ if self.erased.is_empty() || self.bug == Some(PlantedBug::ErasedUnasked) => false,
            CommandKey::Turn(thread, ..) => self.is_erased(thread),
            CommandKey::Task(agent, _, origin) => {
                self.is_erased(&agent.thread()) || origin.as_ref().is_some_and(|of| self.is_erased(of))
            }
            CommandKey::Control(..) => false,
        }
    }

    /// True if the entry belongs to a thread that was ever erased.
    pub(super) fn needs_nothing_of(&self, entry: &StreamEntry) -> bool {
        let is_erased = |thread: &ThreadId| self.once_erased.contains(thread);
        match &entry.body {
            _ if self.once_erased.is_empty() => false,
            EntryBody::Command(Command::Turn(opened), _) => is_erased(&opened.thread),
            EntryBody::Command(Command::Task(task), _) => {
                is_erased(&task.agent.thread()) || task.origin.source_thread().is_some_and(is_erased)
            }
            EntryBody::Command(Command::DelayedTask(delayed), _) => is_erased(&delayed.task.agent.thread()),
            EntryBody::Command(Command::Control(control), _) => is_erased(&control.subject.thread()),
            EntryBody::Frame(frame) => is_erased(&frame.thread),
            // The entry's dead letter may have been deleted after the entry was refused.
            EntryBody::Refused { subject, .. } => {
                let owner = subject.split('.').nth(2).and_then(|id| ThreadId::parse(id).ok());
                owner.is_some_and(|owner| is_erased(&owner))
            }
        }
    }

    fn following(&self, thread: &ThreadId) -> Vec<Following> {
        let mut following = Vec::new();
        for (number, tables) in self.tables.iter().enumerate() {
            for ((agent, position), task) in &tables.tasks {
                if task.origin.source_thread() == Some(thread) {
                    following.push((number, agent.clone(), *position));
                }
            }
        }
        following
    }

    /// The inputs of turns of the thread's follow-on tasks.
    fn inputs_of_agents(&self, thread: &ThreadId) -> Vec<MessageKey> {
        let is_input = |message: &&crate::checker::MessageRow| {
            matches!(part_of(&message.key.message), Some((_, TurnPart::Input)))
                && self.message_keys.contains(&message.key)
                && model::stored_source_thread(
                    &message.key.thread.agent(),
                    TaskKind::Memory,
                    &message.metadata,
                )
                .as_ref()
                    == Some(thread)
        };
        self.messages.iter().filter(is_input).map(|message| message.key.clone()).collect()
    }

    /// Deletes the rows of one table, and returns their number.
    pub(crate) fn erase_place(&mut self, thread: &ThreadId, place: ErasedRows, time: i64) -> usize {
        match place {
            ErasedRows::BatchesOfAgents => self.erase_batches_of_agents(thread),
            ErasedRows::OpenTurns => {
                self.of_tables(|tables| gone(&mut tables.open_turns, |(of, _), _| of == thread))
            }
            ErasedRows::FailedTurns => {
                self.of_tables(|tables| gone(&mut tables.failed_turns, |(of, _), _| of == thread))
            }
            ErasedRows::FailedMessages => self.erase_failures(|key| key.thread == *thread),
            ErasedRows::Spills => self.erase_saved(|key| key.thread == *thread),
            ErasedRows::Messages => {
                self.heads.remove(thread);
                self.last_numbers.remove(thread);
                self.compactions.remove(thread);
                self.erase_messages(|key| key.thread == *thread)
            }
            ErasedRows::Tasks => self.erase_own_tasks(thread, time),
            ErasedRows::Letters => self.erase_letters(thread),
            ErasedRows::Audit => self.of_tables(|tables| {
                gone(&mut tables.audit, |(subject, _), _| subject.as_str() == thread.as_str())
            }),
            ErasedRows::FailuresOfAgents => {
                let turns = self.turns_of(&self.following(thread));
                self.erase_failures(|key| is_answer_of(key, &turns))
            }
            ErasedRows::SpillsOfAgents => {
                let turns = self.turns_of(&self.following(thread));
                // The tasks of these turns are deleted later; until then the checkpoint may pass
                // their saved parts.
                self.erased_turns.extend(turns.iter().map(|turn| (turn.clone(), thread.clone())));
                self.erase_saved(|key| is_answer_of(key, &turns))
            }
            ErasedRows::TaskIdsOfAgents => self.erase_ids(thread),
            ErasedRows::TasksOfAgents if self.bug == Some(PlantedBug::ErasedInPart) => 0,
            ErasedRows::TasksOfAgents => {
                let following = self.following(thread);
                self.erase_tasks(thread, &following, time)
            }
            ErasedRows::Outbox => self.erase_outbox(thread),
            ErasedRows::Timers => self.erase_timers(thread),
        }
    }

    fn turns_of(&self, following: &[Following]) -> BTreeSet<TurnId> {
        let turn =
            |(_, agent, position): &Following| TurnId::of_task(agent, Position::from_stored(*position));
        following.iter().map(turn).collect()
    }

    fn of_tables(&mut self, erase: impl FnMut(&mut super::Tables) -> usize) -> usize {
        self.tables.iter_mut().map(erase).sum()
    }

    /// Deletes messages. For a look-up, a deleted message has not ended.
    fn erase_messages(&mut self, is_gone: impl Fn(&MessageKey) -> bool) -> usize {
        let keys: Vec<MessageKey> = self.message_keys.iter().filter(|key| is_gone(key)).cloned().collect();
        for key in &keys {
            self.forget_message(key);
            if let Some(ends) = self.ends_of.get_mut(&key.thread) {
                ends.retain(|_, ended| ended.header.message != key.message || is_failed(ended));
            }
            if let Some(rows) = self.kept.get_mut(&key.thread) {
                rows.retain(|_, kept| kept.key != *key);
            }
        }
        keys.len()
    }

    fn erase_failures(&mut self, is_gone: impl Fn(&MessageKey) -> bool) -> usize {
        let mut rows = 0;
        for (thread, ends) in &mut self.ends_of {
            let key = |ended: &feed::EndedMessage| MessageKey {
                thread: thread.clone(),
                message: ended.header.message.clone(),
            };
            let before = ends.len();
            ends.retain(|_, ended| !is_failed(ended) || !is_gone(&key(ended)));
            rows += before - ends.len();
        }
        rows
    }

    fn erase_saved(&mut self, is_gone: impl Fn(&MessageKey) -> bool) -> usize {
        self.spilled_messages.iter_mut().map(|saved| gone(saved, |key, _| is_gone(key))).sum()
    }

    fn erase_batches_of_agents(&mut self, thread: &ThreadId) -> usize {
        let inputs = self.inputs_of_agents(thread);
        let batch = |key: &MessageKey| {
            let row = self.rows_of_turns.iter().rev().find(|row| row.key == *key);
            row.map(|row| (key.thread.clone(), row.batch_id))
        };
        let batches: BTreeSet<(ThreadId, i64)> = inputs.iter().filter_map(batch).collect();
        let of_batches =
            self.rows_of_turns.iter().filter(|row| batches.contains(&(row.key.thread.clone(), row.batch_id)));
        let keys: BTreeSet<MessageKey> = of_batches.map(|row| row.key.clone()).collect();
        let turns = keys.iter().filter_map(|key| part_of(&key.message)).map(|(turn, _)| turn);
        self.erased_turns.extend(turns.map(|turn| (turn, thread.clone())));
        self.erase_messages(|key| keys.contains(key))
    }

    fn erase_own_tasks(&mut self, thread: &ThreadId, time: i64) -> usize {
        let mut own: Vec<Following> = Vec::new();
        for (number, tables) in self.tables.iter().enumerate() {
            let ours = tables.tasks.keys().filter(|(agent, _)| agent.as_str() == thread.as_str());
            own.extend(ours.map(|(agent, position)| (number, agent.clone(), *position)));
        }
        let ids = self.of_tables(|tables| {
            gone(&mut tables.task_ids, |(agent, _), _| agent.as_str() == thread.as_str())
                + tables.forget_failed(|agent, _| agent.as_str() == thread.as_str())
        });
        ids + self.erase_tasks(thread, &own, time)
    }

    fn erase_ids(&mut self, thread: &ThreadId) -> usize {
        let mut rows = 0;
        for (number, agent, position) in self.following(thread) {
            let tables = &mut self.tables[number];
            rows += gone(&mut tables.task_ids, |(of, _), (at, _)| *of == agent && *at == position);
            rows += tables.forget_failed(|of, at| *of == agent && at == position);
        }
        rows
    }

    fn erase_tasks(&mut self, thread: &ThreadId, tasks: &[Following], time: i64) -> usize {
        self.commits += 1;
        for (number, agent, position) in tasks {
            let tables = &mut self.tables[*number];
            tables.tasks.remove(&(agent.clone(), *position));
            let turn = TurnId::of_task(agent, Position::from_stored(*position));
            self.erased_turns.insert(turn, thread.clone());
            self.history.push(Transition {
                at_ms: time,
                partition: PartitionId(*number as u16),
                number: self.commits,
                what: TransitionKind::Removed { agent: agent.clone(), position: *position },
            });
        }
        tasks.len()
    }

    /// Also deletes dead letters of unusable entries whose subjects name the thread.
    fn erase_letters(&mut self, thread: &ThreadId) -> usize {
        let entries = gone(&mut self.entry_keys, |_, owner| owner.as_deref() == Some(thread.as_str()));
        let keys: Vec<MessageKey> =
            self.letter_keys.iter().filter(|key| key.thread == *thread).cloned().collect();
        for key in &keys {
            self.letter_keys.remove(key);
            self.ends.remove(key);
        }
        entries + keys.len()
    }

    /// A batch without entries stays, because its owner relies on it.
    fn erase_outbox(&mut self, thread: &ThreadId) -> usize {
        let is_of = |outgoing: &Outgoing| match outgoing {
            Outgoing::TurnEnded(ended) => ended.thread == *thread,
            Outgoing::Task(task) => {
                task.agent.as_str() == thread.as_str() || task.origin.source_thread() == Some(thread)
            }
            Outgoing::Pause(_) => false,
        };
        self.of_tables(|tables| {
            let mut rows = 0;
            for batch in tables.outbox.values_mut() {
                let before = batch.outgoing.len();
                batch.outgoing.retain(|outgoing| !is_of(outgoing));
                rows += before - batch.outgoing.len();
            }
            rows
        })
    }

    /// Checks that completely erased threads have no rows again. Audit rows of agents with the
    /// names of these threads are kept, and so are entries that cannot be read: neither are checked
    /// against the mark. `is_last`: nothing is left to do.
    pub(crate) fn check_erased(&mut self, is_last: bool) {
        let wholly: Vec<ThreadId> =
            self.erased.iter().filter(|(_, is_done)| **is_done).map(|(thread, _)| thread.clone()).collect();
        for thread in wholly {
            if let Some(left) = self.left_of(&thread, is_last) {
                self.violations.push(Violation::new(Invariant::Erased, &thread, "nothing of it", left));
            }
        }
    }

    /// A remaining row of a thread, or of work that followed its turns.
    fn left_of(&self, thread: &ThreadId, is_last: bool) -> Option<String> {
        let turns: BTreeSet<TurnId> =
            self.erased_turns.iter().filter(|(_, of)| *of == thread).map(|(turn, _)| turn.clone()).collect();
        let is_its = |key: &&MessageKey| key.thread == *thread || is_answer_of(key, &turns);
        let own = thread.as_str();
        let in_tables = |tables: &super::Tables| {
            let open = tables.open_turns.keys().find(|(of, _)| of == thread);
            let failed = tables.failed_turns.keys().find(|(of, _)| of == thread);
            let task = tables.tasks.iter().find(|((agent, _), task)| {
                agent.as_str() == own || task.origin.source_thread() == Some(thread)
            });
            let outgoing =
                tables.outbox.values().flat_map(|batch| &batch.outgoing).find(|outgoing| match outgoing {
                    Outgoing::TurnEnded(ended) => ended.thread == *thread,
                    Outgoing::Task(task) => {
                        task.agent.as_str() == own || task.origin.source_thread() == Some(thread)
                    }
                    Outgoing::Pause(_) => false,
                });
            let timer = tables.timers.iter().find(|(_, row)| row.thread.as_ref() == Some(thread));
            None.or_else(|| timer.map(|(timer, _)| format!("timer {timer}")))
                .or_else(|| open.map(|(_, turn)| format!("the saved input of {turn}")))
                .or_else(|| failed.map(|(_, turn)| format!("the failed turn {turn}")))
                .or_else(|| task.map(|((agent, at), task)| format!("task {} of {agent} at {at}", task.id)))
                .or_else(|| outgoing.map(|outgoing| format!("to be published: {outgoing:?}")))
        };
        let message = || self.message_keys.iter().find(is_its).map(|key| format!("message {key}"));
        let saved = || {
            let mut saved = self.spilled_messages.iter().flat_map(|saved| saved.keys());
            // The saved parts for a deleted task are deleted with the next commit of the owner that
            // finds them.
            saved
                .find(|key| is_its(key) && (is_last || key.thread == *thread))
                .map(|key| format!("what was saved of {key}"))
        };
        let letter = || self.letter_keys.iter().find(is_its).map(|key| format!("the dead letter of {key}"));
        // Failures of follow-on tasks of the thread's turns are found only through these tasks.
        // Failures that owners write after the tasks were deleted stay.
        let failure = || {
            let mut failures = self.ends_of.iter().flat_map(|(thread, ends)| {
                let failed = ends.values().filter(|ended| is_failed(ended));
                failed
                    .map(|ended| MessageKey { thread: thread.clone(), message: ended.header.message.clone() })
            });
            failures.find(|key| key.thread == *thread).map(|key| format!("the failure of {key}"))
        };
        self.tables
            .iter()
            .find_map(in_tables)
            .or_else(message)
            .or_else(saved)
            .or_else(letter)
            .or_else(failure)
            .or_else(|| (!self.compactions(thread).is_empty()).then(|| "a compaction".to_owned()))
    }
}

fn is_answer_of(key: &MessageKey, turns: &BTreeSet<TurnId>) -> bool {
    !turns.is_empty() && part_of(&key.message).is_some_and(|(turn, _)| turns.contains(&turn))
}

fn is_failed(ended: &feed::EndedMessage) -> bool {
    matches!(ended.how, feed::EndKind::Failed(_))
}

fn gone<K: Ord + Clone, V>(
    rows: &mut std::collections::BTreeMap<K, V>,
    mut is_gone: impl FnMut(&K, &V) -> bool,
) -> usize {
    let before = rows.len();
    rows.retain(|key, value| !is_gone(key, value));
    before - rows.len()
}
