//! Generates turns, tasks and acts with few names, so that collisions are frequent.

use model::{TaskEdit, TurnId};
use partition::{BackoffChange, Commit, OpenTurn, OutboxBatch, Outgoing, TaskChange};
use rand::RngExt;

use super::{Author, Expected};
use crate::values::{
    act, agent, at, backs_off, completes, failed_turn, finishes, mark, open_turn, task, turn,
};

impl Author {
    fn name(&mut self, partition: usize) -> String {
        let number = self.random.random_range(0..self.threads[partition].len());
        self.threads[partition][number].clone()
    }

    /// One of a few open inputs, so that some are saved twice and some end.
    pub(super) fn open(&mut self, partition: usize) -> OpenTurn {
        let thread = self.name(partition);
        let turn = turn(&thread, &format!("n{}", self.random.random_range(0..4)));
        let seq = self.next().unsigned_abs();
        open_turn(&thread, &turn, self.random.random_range(0..3), seq)
    }

    fn next(&mut self) -> i64 {
        self.position += 1;
        self.position
    }

    /// One of a few turns of a thread.
    fn turn(&mut self, thread: &str) -> TurnId {
        turn(thread, &format!("n{}", self.random.random_range(0..40)))
    }

    pub(super) fn turns(&mut self, partition: usize, commit: &mut Commit) {
        for _ in 0..self.random.random_range(0..3) {
            self.of_agent(partition, commit);
        }
        for _ in 0..self.random.random_range(0..2) {
            let thread = self.name(partition);
            let turn = self.turn(&thread);
            let run = self.random.random_range(0..3);
            let mut write = finishes(&thread, &turn, run, self.next(), None);
            self.position += 4;
            write.ends_failed = self.random.random::<bool>().then(|| write.messages[0].key.thread.clone());
            if commit.turns.iter().all(|other| other.turn != turn) {
                commit.add_turn(write);
            }
        }
        for _ in 0..self.random.random_range(0..3) {
            let (name, position) = (self.name(partition), self.next());
            commit.add_task(task(&name, &format!("t{}", self.random.random_range(0..300)), position));
        }
        if self.random.random() {
            let partition_wide = self.next();
            let outgoing =
                commit.tasks.iter().map(|write| Outgoing::Task(write.queued.task.clone())).collect();
            commit.outbox = Some(OutboxBatch { id: at(partition_wide), outgoing });
            commit.sent = (0..3).map(|_| at(self.random.random_range(0..self.position))).collect();
            commit.sent.retain(|id| id.get() != partition_wide);
        }
    }

    /// Ends a task of one agent in one of the possible ways. Half of the guards are stale.
    fn of_agent(&mut self, partition: usize, commit: &mut Commit) {
        let name = self.name(partition);
        if commit.agents.iter().any(|write| write.agent.as_str() == name) {
            return;
        }
        let position = self.random.random_range(0..self.position * 2 + 2);
        let failures = self.random.random_range(0..5);
        let index = commit.agents.len();
        match self.random.random_range(0..4) {
            0 => commit.agents.push(backs_off(&name, position / 2, position, failures, 60_000)),
            1 => {
                let mut write = completes(&name, i64::MAX);
                (write.head, write.paused, write.wait) = (at(0), self.random.random(), BackoffChange::Keep);
                commit.agents.push(write);
            }
            2 => {
                commit.agents.push(completes(&name, position));
                // The mark must not be at a future position, which no task has had yet.
                commit.fail_task(mark(&name, position.min(self.position)));
            }
            _ => {
                commit.agents.push(completes(&name, position));
                let turn = TurnId::of_task(&agent(&name), at(position));
                commit.turns.push(finishes(&name, &turn, failures, self.next(), Some(index)));
                self.position += 4;
            }
        }
    }

    pub(super) fn orders(&mut self, expected: &Expected, partition: usize, commit: &mut Commit) {
        let name = self.name(partition);
        let stored: Vec<_> =
            expected.queues.tasks.keys().filter(|(agent, _)| *agent == name).map(|(_, at)| *at).collect();
        if !stored.is_empty() {
            for _ in 0..self.random.random_range(0..4) {
                let position = stored[self.random.random_range(0..stored.len())];
                self.change(&name, position, commit);
            }
        }
        for _ in 0..self.random.random_range(0..2) {
            let (thread, run) = (self.name(partition), self.random.random_range(0..3));
            let turn = self.turn(&thread);
            let failed = failed_turn(&thread, &turn, run);
            let gone = failed.opened.clone();
            commit.fail_turn(failed);
            if self.random.random_ratio(1, 3) {
                commit.dropped_turns.push((gone.thread, gone.turn));
            }
        }
        if self.random.random_ratio(1, 3) {
            let ended = self.open(partition).opened;
            commit.ended_turns.push((ended.thread, ended.turn));
        }
        let number = self.random.random_range(0..200);
        commit.audit.push(act(&name, &format!("act-{number}")));
    }

    /// One to three changes by operators of the task at `position`, one after the other.
    fn change(&mut self, name: &str, position: i64, commit: &mut Commit) {
        if commit.task_changes.iter().any(|change| change.stored == at(position)) {
            return;
        }
        let (owner, mut stands) = (agent(name), position);
        for _ in 0..self.random.random_range(1..4) {
            match self.random.random_range(0..4) {
                0 => {
                    commit.fail_task(mark(name, stands));
                    let to = self.next();
                    commit.change_task(TaskChange::requeue(owner.clone(), at(stands), at(to)));
                    stands = to;
                }
                1 => {
                    commit.change_task(TaskChange::remove(owner, at(stands)));
                    return;
                }
                2 => commit.fail_task(mark(name, stands)),
                _ => {
                    let edited = task(name, &format!("edit-{}", self.next()), stands).queued.task;
                    let edit = TaskEdit { content: Some(edited.content), metadata: Some(edited.metadata) };
                    commit.change_task(TaskChange::edit(owner.clone(), at(stands), edit));
                }
            }
        }
    }
}
