//! Tasks that enter queues: rows of `tasks` and `task_ids`, and of `agents` for new agents.

use std::collections::HashSet;

use model::{AgentId, ThreadId};

use super::columns::{agent_bucket, bits, bucket_of, object};
use super::rows::{Given, TableParts, row};
use crate::row::stored_task_origin;

pub(super) const TABLE: TableParts = TableParts::new(&[TaskRow::ROWS], include_str!("tasks.sql"));
pub(super) const NEW_AGENTS: TableParts =
    TableParts::new(&[NewAgentRow::ROWS], include_str!("new_agents.sql"));

row! {
    /// A task that enters its queue.
    struct TaskRow<'a> as task_rows of tasks {
        bucket: i16,
        agent_id: &'a str,
        position: i64,
        task_id: &'a str,
        kind: &'a str,
        content: &'a str,
        metadata: String,
        digest: i64,
        /// The thread whose text the task carries, with its bucket.
        source_bucket: Option<i16>,
        source_id: Option<&'a str>,
        origin: Option<String>,
    }
}

fn tasks(given: Given<'_>) -> impl Iterator<Item = TaskRow<'_>> {
    given.submission.commit.tasks.iter().map(|write| {
        let (task, source) = (&write.queued.task, write.queued.task.origin.source_thread());
        TaskRow {
            bucket: agent_bucket(&task.agent),
            agent_id: task.agent.as_str(),
            position: write.queued.position.get(),
            task_id: task.id.as_str(),
            kind: task.kind.name(),
            content: task.content.as_str(),
            metadata: object(&task.task_metadata()),
            digest: bits(write.digest),
            source_bucket: source.map(bucket_of),
            source_id: source.map(ThreadId::as_str),
            origin: stored_task_origin(&task.origin),
        }
    })
}

row! {
    /// The agent of a task.
    struct NewAgentRow<'a> as new_agent_rows of new_agents {
        bucket: i16,
        agent_id: &'a str,
    }
}

/// The agents of the tasks, except agents whose rows the same statement writes anyway. Otherwise
/// one of the two writes would be lost.
fn new_agents(given: Given<'_>) -> impl Iterator<Item = NewAgentRow<'_>> {
    let commit = given.submission.commit;
    let mut seen: HashSet<&AgentId> = commit.agents.iter().map(|write| &write.agent).collect();
    let agents = commit.tasks.iter().map(|write| &write.queued.task.agent);
    let new = agents.filter(move |agent| seen.insert(agent));
    new.map(|agent| NewAgentRow { bucket: agent_bucket(agent), agent_id: agent.as_str() })
}
