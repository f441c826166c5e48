//! Work that the partition gives itself: continuations, follow-ups, and tasks of schedules. It is
//! stored by the commit that decides it, and admitted when the commit is applied.

use std::collections::BTreeMap;

use model::{QueuedTask, TurnId};

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
        self.commands.recent.insert(key, TakenCommand { seq, digest, position });
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
