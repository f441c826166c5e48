//! The part of the model that turns, tasks and queues change.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use model::{Message, TurnId};
use partition::{AgentWrite, BackoffChange, Commit, OpenTurn, TaskWrite};
use serde_json::{Value, json};

#[derive(Default, Clone)]
struct Agent {
    head: i64,
    run: u32,
    failures: u32,
    waits: bool,
    paused: bool,
    error: Option<String>,
}

/// All maps are keyed by agent or thread, and by the id or position of the item.
#[derive(Default)]
pub(super) struct Queues {
    agents: BTreeMap<String, Agent>,
    /// Id and content of a task.
    pub(super) tasks: BTreeMap<(String, i64), (String, String)>,
    ids: BTreeMap<(String, String), i64>,
    pub(super) marks: BTreeMap<(String, i64), String>,
    failed: BTreeMap<(String, String), u32>,
    open: BTreeMap<(String, String), (u32, u64)>,
    outbox: BTreeMap<(u16, i64), usize>,
    audit: BTreeSet<(String, String)>,
}

impl Queues {
    /// Moves the heads of the commit's queues, and returns for each whether it was moved.
    pub(super) fn move_heads(&mut self, commit: &Commit) -> Vec<bool> {
        commit.agents.iter().map(|write| self.move_head(write)).collect()
    }

    fn move_head(&mut self, write: &AgentWrite) -> bool {
        let id = write.agent.to_string();
        let mut agent = self.agents.get(&id).cloned().unwrap_or_default();
        if agent.head >= write.guard.get() {
            return false;
        }
        agent = Agent {
            head: agent.head.max(write.head.get()),
            run: write.run,
            failures: write.failures,
            waits: match write.wait {
                BackoffChange::Keep => agent.waits,
                BackoffChange::Clear => false,
                BackoffChange::Start(_) => true,
            },
            paused: write.paused,
            error: match (&write.error, write.wait) {
                (Some((code, _)), _) => Some(code.clone()),
                (None, BackoffChange::Clear) => None,
                (None, _) => agent.error,
            },
        };
        self.agents.insert(id, agent);
        true
    }

    /// The messages of the turns that are written.
    pub(super) fn begun<'a>(commit: &'a Commit, won: &[bool]) -> Vec<&'a [Message]> {
        let begins = |agent: Option<usize>| agent.is_none_or(|index| won[index]);
        commit.turns.iter().filter(|turn| begins(turn.agent)).map(|turn| turn.messages.as_slice()).collect()
    }

    /// Saves inputs. An input that is saved already keeps its place in the queue.
    pub(super) fn save(&mut self, inputs: &[OpenTurn]) {
        for open in inputs {
            let key = turn_key(open.opened.thread.as_str(), &open.opened.turn);
            self.open.entry(key).or_insert((0, open.seq.0)).0 = open.opened.run;
        }
    }

    pub(super) fn apply(&mut self, commit: &Commit, won: &[bool]) {
        self.changes(commit);
        commit.tasks.iter().for_each(|write| self.enter(write));
        for mark in &commit.failed_tasks {
            let write = commit.agents.iter().position(|write| write.agent == mark.agent);
            if write.is_none_or(|index| won[index]) {
                let key = (mark.agent.to_string(), mark.position.get());
                self.marks.entry(key).or_insert_with(|| mark.code.clone());
            }
        }
        for failed in &commit.failed_turns {
            self.failed
                .insert(turn_key(failed.opened.thread.as_str(), &failed.opened.turn), failed.opened.run);
        }
        for (thread, turn) in &commit.dropped_turns {
            self.failed.remove(&turn_key(thread.as_str(), turn));
        }
        for turn in &commit.turns {
            if let Some(thread) = &turn.ends_failed {
                self.failed.remove(&turn_key(thread.as_str(), &turn.turn));
            }
        }
        for (thread, turn) in &commit.ended_turns {
            self.open.remove(&turn_key(thread.as_str(), turn));
        }
        let partition = commit.partition.0;
        for id in &commit.sent {
            self.outbox.remove(&(partition, id.get()));
        }
        if let Some(batch) = &commit.outbox {
            self.outbox.entry((partition, batch.id.get())).or_insert(batch.outgoing.len());
        }
        self.audit.extend(commit.audit.iter().map(|act| (act.subject.to_string(), act.id.to_string())));
    }

    fn enter(&mut self, write: &TaskWrite) {
        let (agent, position) = (write.queued.task.agent.to_string(), write.queued.position.get());
        self.agents.entry(agent.clone()).or_default();
        let id = write.queued.task.id.to_string();
        if let Entry::Vacant(entry) = self.ids.entry((agent.clone(), id.clone())) {
            entry.insert(position);
            self.tasks.insert((agent, position), (id, write.queued.task.content.clone()));
        }
    }

    fn changes(&mut self, commit: &Commit) {
        for change in &commit.task_changes {
            let (agent, stored) = (change.agent.to_string(), change.stored.get());
            // If the commit is applied again after a later one, its task has moved on and must not
            // change.
            let Some((id, content)) = self.tasks.remove(&(agent.clone(), stored)) else { continue };
            let content = change.edit.content.clone().unwrap_or(content);
            if change.position != Some(change.stored) {
                self.marks.remove(&(agent.clone(), stored));
            }
            let Some(position) = change.position else { continue };
            if let Some(of_id) = self.ids.get_mut(&(agent.clone(), id.clone()))
                && *of_id == stored
            {
                *of_id = position.get();
            }
            self.tasks.insert((agent, position.get()), (id, content));
        }
    }

    pub(super) fn rows(&self) -> Vec<Value> {
        let agents = self.agents.iter().map(|(id, agent)| {
            json!({"agent": id, "head": agent.head, "run": agent.run, "failures": agent.failures, "waits": agent.waits,
                   "paused": agent.paused, "error": agent.error, "has_text": agent.error.is_some(),
                   "has_time": agent.error.is_some()})
        });
        let tasks = self.tasks.iter().map(|((agent, position), (id, content))| {
            json!({"agent": agent, "position": position, "task": id, "content": content})
        });
        let ids = self
            .ids
            .iter()
            .map(|((agent, id), position)| json!({"agent": agent, "task": id, "position": position}));
        let marks = self
            .marks
            .iter()
            .map(|((agent, position), code)| json!({"agent": agent, "position": position, "code": code}));
        let failed = self
            .failed
            .iter()
            .map(|((thread, turn), run)| json!({"thread": thread, "turn": turn, "run": run}));
        let open = self.open.iter().map(
            |((thread, turn), (run, seq))| json!({"thread": thread, "turn": turn, "run": run, "seq": seq}),
        );
        let outbox = self
            .outbox
            .iter()
            .map(|((partition, id), count)| json!({"p": partition, "id": id, "count": count}));
        let audit = self.audit.iter().map(|(subject, act)| json!({"subject": subject, "act": act}));
        agents
            .chain(tasks)
            .chain(ids)
            .chain(marks)
            .chain(failed)
            .chain(open)
            .chain(outbox)
            .chain(audit)
            .collect()
    }
}

/// Queries that must return the same rows from Postgres.
pub(super) const QUERIES: [&str; 8] = [
    r#"SELECT agent_id AS agent, head_position AS head, head_run AS run, backoff_attempt_count AS failures,
              backoff_next_run_at IS NOT NULL AS waits, paused, error_code AS error, error_text IS NOT NULL AS has_text,
              error_at IS NOT NULL AS has_time
       FROM agents ORDER BY agent_id COLLATE "C""#,
    r#"SELECT agent_id AS agent, position, task_id AS task, content FROM tasks ORDER BY agent_id COLLATE "C", position"#,
    r#"SELECT agent_id AS agent, task_id AS task, position FROM task_ids
       ORDER BY agent_id COLLATE "C", task_id COLLATE "C""#,
    r#"SELECT agent_id AS agent, position, code FROM failed_tasks ORDER BY agent_id COLLATE "C", position"#,
    r#"SELECT thread_id AS thread, turn_id AS turn, run FROM failed_turns
       ORDER BY thread_id COLLATE "C", turn_id COLLATE "C""#,
    r#"SELECT thread_id AS thread, turn_id AS turn, run, stream_seq AS seq FROM spilled_turns
       ORDER BY thread_id COLLATE "C", turn_id COLLATE "C""#,
    "SELECT bucket AS p, position AS id, jsonb_array_length(entries) AS count FROM outbox ORDER BY 1, 2",
    r#"SELECT subject_id AS subject, command_id AS act FROM audit_log ORDER BY subject_id COLLATE "C", command_id COLLATE "C""#,
];

fn turn_key(thread: &str, turn: &TurnId) -> (String, String) {
    (thread.to_owned(), turn.to_string())
}
