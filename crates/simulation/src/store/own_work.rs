//! What commits give to their own partitions: continuations, follow-ups, tasks of timers.

use model::{Command, PartitionId, Task, TaskOrigin, ThreadId, TurnId};
use partition::Commit;

use super::{DELAYED, Store};
use crate::checker::turns::{Ordered, is_follow_up};

/// True if a commit opened the turn, and nothing is stored of its answer because the store has gone
/// back to before that commit. If the turn is opened again, it is requested again.
pub(super) fn is_unopened(store: &Store, partition: PartitionId, thread: &ThreadId, turn: &TurnId) -> bool {
    let is_open = || {
        let key = (thread.clone(), turn.clone());
        store.tables[usize::from(partition.0)].open_turns.contains_key(&key)
    };
    (is_follow_up(turn) || turn.as_str().contains("-h"))
        && (is_open() || !store.own_work.iter().any(|own| is_of(&own.command, turn)))
}

/// Inputs and tasks that the commit gives to its own partition, as commands at the place 0.
pub(super) fn of_commit(commit: &Commit, at_ms: i64, is_erased: impl Fn(&ThreadId) -> bool) -> Vec<Ordered> {
    let inputs = commit.opened.iter().map(|open| &open.opened).filter(|opened| !is_erased(&opened.thread));
    let inputs = inputs.map(|opened| Command::Turn(Box::new(opened.clone())));
    let tasks = commit.tasks.iter().map(|write| &write.queued.task);
    let tasks = tasks.filter(|task| is_own(task) && !is_erased(&task.agent.thread()));
    let partition = commit.partition;
    let ordered = |command| Ordered { partition, seq: 0, at_ms, payload: bytes::Bytes::new(), command };
    inputs.chain(tasks.map(|task| Command::Task(task.clone()))).map(ordered).collect()
}

/// True if the command opens the turn.
fn is_of(command: &Command, turn: &TurnId) -> bool {
    matches!(command, Command::Turn(opened) if opened.turn == *turn)
}

/// True for tasks that no publisher sends: continuations, and tasks of schedules and of timers.
fn is_own(task: &Task) -> bool {
    task.origin.continues().is_some()
        || matches!(task.origin, TaskOrigin::Scheduled { .. })
        || task.id.as_str().starts_with(DELAYED)
}
