//! Tasks that enter queues, and the outbox, as arrays.

use std::collections::HashSet;

use model::{AgentId, Position, ThreadId};
use partition::{Commit, TaskWrite};

use super::coalesce;
use super::columns::{agent_bucket, bits, column, object, smallint};
use super::submission::Submission;
use crate::outbox;
use crate::row::stored_task_origin;
use crate::statement::Statement;

/// Parameters of `5_tasks.sql`.
pub(super) fn tasks(statement: Statement, group: &[Submission<'_>]) -> Statement {
    introduced(entered(statement, group), group)
}

/// Tasks that enter queues: parameters `$1` to `$12`.
fn entered(statement: Statement, group: &[Submission<'_>]) -> Statement {
    let rows: Vec<(i64, &TaskWrite)> = group
        .iter()
        .zip(1_i64..)
        .flat_map(|(submission, number)| {
            coalesce::tasks(submission.commit).into_iter().map(move |write| (number, write))
        })
        .collect();
    statement
        .bind(column(&rows, |(number, _)| *number))
        .bind(column(&rows, |(_, write)| agent_bucket(&write.queued.task.agent)))
        .bind(column(&rows, |(_, write)| write.queued.task.agent.as_str()))
        .bind(column(&rows, |(_, write)| write.queued.position.get()))
        .bind(column(&rows, |(_, write)| write.queued.task.id.as_str()))
        .bind(column(&rows, |(_, write)| write.queued.task.kind.name()))
        .bind(column(&rows, |(_, write)| write.queued.task.content.as_str()))
        .bind(column(&rows, |(_, write)| object(&write.queued.task.task_metadata())))
        .bind(column(&rows, |(_, write)| bits(write.digest)))
        .bind(column(&rows, |(_, write)| source(write).map(|id| id.bucket().get() as i16)))
        .bind(column(&rows, |(_, write)| source(write).map(|id| id.as_str().to_owned())))
        .bind(column(&rows, |(_, write)| stored_task_origin(&write.queued.task.origin)))
}

/// The thread whose text the task carries.
fn source(write: &TaskWrite) -> Option<&ThreadId> {
    write.queued.task.origin.source_thread()
}

/// Agents of these tasks: parameters `$13` to `$15`.
fn introduced(statement: Statement, group: &[Submission<'_>]) -> Statement {
    let rows: Vec<(i64, &AgentId)> = group
        .iter()
        .zip(1_i64..)
        .flat_map(|(submission, number)| newcomers(submission.commit).map(move |agent| (number, agent)))
        .collect();
    statement
        .bind(column(&rows, |(number, _)| *number))
        .bind(column(&rows, |(_, agent)| agent_bucket(agent)))
        .bind(column(&rows, |(_, agent)| agent.as_str()))
}

/// The agents of the tasks, except agents whose rows the same statement writes anyway. Otherwise
/// one of the two writes would be lost.
fn newcomers(commit: &Commit) -> impl Iterator<Item = &AgentId> {
    let mut seen: HashSet<&AgentId> = commit.agents.iter().map(|write| &write.agent).collect();
    commit.tasks.iter().map(|write| &write.queued.task.agent).filter(move |agent| seen.insert(agent))
}

/// Parameters of `6_outbox.sql`.
pub(super) fn outbox(statement: Statement, group: &[Submission<'_>]) -> Statement {
    let sent: Vec<(i64, i16, &Position)> = group
        .iter()
        .zip(1_i64..)
        .flat_map(|(s, number)| {
            s.commit.sent.iter().map(move |id| (number, smallint(s.commit.partition.0), id))
        })
        .collect();
    let batches: Vec<_> = group
        .iter()
        .zip(1_i64..)
        .filter_map(|(s, number)| Some((number, smallint(s.commit.partition.0), s.commit.outbox.as_ref()?)))
        .collect();
    statement
        .bind(column(&sent, |(number, _, _)| *number))
        .bind(column(&sent, |(_, partition, _)| *partition))
        .bind(column(&sent, |(_, _, id)| id.get()))
        .bind(column(&batches, |(number, _, _)| *number))
        .bind(column(&batches, |(_, partition, _)| *partition))
        .bind(column(&batches, |(_, _, batch)| batch.id.get()))
        .bind(column(&batches, |(_, _, batch)| outbox::encoded(&batch.outgoing)))
}
