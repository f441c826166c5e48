//! Work that the partition gives itself: continuations, follow-ups, and tasks of schedules. It is
//! stored by the commit that decides it, and admitted when the commit is applied.

use std::collections::BTreeMap;

use model::{BusyPolicy, QueuedTask, Seq, TurnId};

use super::Partition;
use super::command_queue::TakenCommand;
use crate::commit::Commit;
use crate::types::{NewWork, OpenTurn, TaskWrite};

impl Partition {
    /// Adds work to a commit. A command that asks for the same is a duplicate from now on; if it
    /// came first, nothing is added.
    pub(super) fn add_new_work(&mut self, work: NewWork, commit: &mut Commit) {
        let now = self.effects.now;
        let (key, seq) = (work.key(), self.reading.last_seq);
        // Remembered keys are in the order of their entries.
        let remembered = self.commands.first().unwrap_or(seq);
        if self.commands.recent.get(&key).is_some() {
            return;
        }
        let (digest, position) = match work {
            NewWork::Turn(opened) => {
                if self.table.turns.contains_key(&opened.turn) {
                    return;
                }
                commit.opened.push(OpenTurn { opened: *opened, seq, age_ms: 0 });
                (0, None)
            }
            NewWork::Task(task) => {
                let position = self.committing.positions.next(task.bucket(), now);
                let digest = task.digest();
                commit.add_task(TaskWrite { seq, queued: QueuedTask { position, task }, digest });
                (digest, Some(position))
            }
        };
        self.commands.recent.insert(key, TakenCommand { seq: remembered, digest, position });
    }

    /// Queues restored continuations: those that were opened before this entry was read, or all.
    pub(super) fn queue_restored(&mut self, before: Option<Seq>) {
        while self.commands.restored.front().is_some_and(|(seq, _)| before.is_none_or(|entry| *seq < entry)) {
            let Some((_, id)) = self.commands.restored.pop_front() else { return };
            let Some(turn) = self.table.turns.get(&id).filter(|turn| !turn.has_ended()) else { continue };
            let thread = turn.thread.clone();
            let queue = self.table.thread_queues.entry(thread.clone()).or_default();
            // Its answer may have come meanwhile, which starts it or makes it the next one.
            if queue.active() != Some(&id) && queue.waiting().all(|waiting| *waiting != id) {
                queue.admit(id, BusyPolicy::Enqueue);
            }
            self.table.make_ready(&thread);
        }
    }

    /// Admits an input that a commit has stored.
    pub(super) fn admit(&mut self, open: OpenTurn) {
        self.open_turn(Box::new(open.opened), None);
    }
}

/// What remains of new work when the store has refused these turns: what they asked for is gone
/// with them.
pub(super) fn without_work_of(
    refused: &BTreeMap<TurnId, String>,
    mut tasks: Vec<QueuedTask>,
    mut opened: Vec<OpenTurn>,
) -> (Vec<QueuedTask>, Vec<OpenTurn>) {
    let is_refused = |turn: Option<&TurnId>| turn.is_some_and(|turn| refused.contains_key(turn));
    tasks.retain(|queued| !is_refused(queued.task.origin.continued_turn()));
    opened.retain(|open| !is_refused(open.opened.origin.turn()));
    (tasks, opened)
}
