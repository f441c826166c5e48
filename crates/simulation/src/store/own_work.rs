//! What commits give to their own partitions: continuations, follow-ups, tasks of timers.

use model::{Command, Task, TaskOrigin, ThreadId, TurnId};
use partition::Commit;

use crate::checker::turns::Ordered;

/// Ids of tasks that enter their queues later begin with this.
pub(crate) const DELAYED: &str = "delayed";

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
pub(super) fn is_of(command: &Command, turn: &TurnId) -> bool {
    matches!(command, Command::Turn(opened) if opened.turn == *turn)
}

/// True for tasks that no publisher sends: continuations, and tasks of schedules and of timers.
fn is_own(task: &Task) -> bool {
    task.origin.continues().is_some()
        || matches!(task.origin, TaskOrigin::Scheduled { .. })
        || task.id.as_str().starts_with(DELAYED)
}
