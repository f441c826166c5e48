//! Combines several changes of the same row in one commit.
//!
//! The parts of one statement do not see each other's rows, and only one of them may change a row.
//! Between two commits an operator may change a task twice, and a turn may fail and be dropped.

use std::collections::{HashMap, HashSet};

use model::{AgentId, Metadata, Position, TaskId, ThreadId, TurnId};
use partition::{Commit, FailedTask, FailedTurn, TaskChange, TaskWrite};

/// All changes of one stored task.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Change<'a> {
    pub(super) agent: &'a AgentId,
    /// The stored position.
    pub(super) old: Position,
    /// The new position; `None`: the task is deleted.
    pub(super) new: Option<Position>,
    pub(super) content: Option<&'a str>,
    pub(super) metadata: Option<&'a Metadata>,
}

/// The changes of tasks, one per task, in the order of the first change.
pub(super) fn changes(commit: &Commit) -> Vec<Change<'_>> {
    let mut changes: Vec<Change<'_>> = Vec::new();
    for change in &commit.task_changes {
        let (agent, position) = match change {
            TaskChange::Requeue { agent, from, .. } => (agent, *from),
            TaskChange::Remove { agent, position } | TaskChange::Edit { agent, position, .. } => {
                (agent, *position)
            }
        };
        // Two acts that were checked together both name the task by the position it had then.
        let is_it = |known: &Change<'_>| known.old == position || known.new == Some(position);
        let known = changes.iter().position(|known| known.agent == agent && is_it(known));
        let at = known.unwrap_or_else(|| {
            changes.push(Change { agent, old: position, new: Some(position), content: None, metadata: None });
            changes.len() - 1
        });
        if let Some(folded) = changes.get_mut(at) {
            folded.add(change);
        }
    }
    changes
}

impl<'a> Change<'a> {
    fn add(&mut self, change: &'a TaskChange) {
        match change {
            TaskChange::Requeue { to, .. } => self.new = self.new.map(|_| *to),
            // A task that was removed stays removed.
            TaskChange::Remove { .. } => self.new = None,
            TaskChange::Edit { edit, .. } => {
                self.content = edit.content.as_deref().or(self.content);
                self.metadata = edit.metadata.as_ref().or(self.metadata);
            }
        }
    }
}

/// For each id, the first task that has it.
pub(super) fn tasks(commit: &Commit) -> Vec<&TaskWrite> {
    let mut seen: HashSet<(&AgentId, &TaskId)> = HashSet::new();
    let mut first = Vec::with_capacity(commit.tasks.len());
    for write in &commit.tasks {
        if seen.insert((&write.queued.task.agent, &write.queued.task.id)) {
            first.push(write);
        }
    }
    first
}

/// The failure marks, except those that an operator has lifted since. Only marked tasks are
/// requeued or removed, so each such change lifts a mark.
pub(super) fn marks(commit: &Commit) -> Vec<&FailedTask> {
    let lifts = |change: &TaskChange, mark: &FailedTask| match change {
        TaskChange::Requeue { agent, from: position, .. } | TaskChange::Remove { agent, position } => {
            *agent == mark.agent && *position == mark.position
        }
        TaskChange::Edit { .. } => false,
    };
    let stays = |mark: &&FailedTask| !commit.task_changes.iter().any(|change| lifts(change, mark));
    commit.failed_tasks.iter().filter(stays).collect()
}

/// The last failure of each turn, without turns that have since succeeded or been dropped.
pub(super) fn failed_turns(commit: &Commit) -> Vec<&FailedTurn> {
    let gone: HashSet<(&ThreadId, &TurnId)> = commit
        .dropped_turns
        .iter()
        .map(|(thread, turn)| (thread, turn))
        .chain(commit.turns.iter().filter_map(|write| Some((write.ends_failed.as_ref()?, &write.turn))))
        .collect();
    last_of_each(&commit.failed_turns, |failed| (&failed.opened.thread, &failed.opened.turn), &gone)
}

fn last_of_each<'a, T>(
    items: &'a [T],
    key: fn(&T) -> (&ThreadId, &TurnId),
    gone: &HashSet<(&ThreadId, &TurnId)>,
) -> Vec<&'a T> {
    let last: HashMap<_, _> = items.iter().enumerate().map(|(at, item)| (key(item), at)).collect();
    let stays = |(at, item): &(usize, &'a T)| last.get(&key(item)) == Some(at) && !gone.contains(&key(item));
    items.iter().enumerate().filter(stays).map(|(_, item)| item).collect()
}
