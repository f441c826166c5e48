//! Queues of agents and finished turns as arrays.

use model::ThreadId;
use partition::{AgentWrite, BackoffChange, Commit, TurnWrite};

use super::columns::{agent_bucket, bucket_of, column, integer, numbered, storable};
use super::submission::Submission;
use crate::statement::Statement;

/// Parameters of `2_turns.sql`.
pub(super) fn turns(statement: Statement, group: &[Submission<'_>]) -> Statement {
    finished(queues(statement, group), group)
}

/// Queues of agents: parameters `$1` to `$12`.
fn queues(statement: Statement, group: &[Submission<'_>]) -> Statement {
    let rows: Vec<(i64, &AgentWrite)> = numbered(group, |commit| &commit.agents).collect();
    let error = |write: &AgentWrite, part: fn(&(String, String)) -> &String| {
        write.error.as_ref().map(|error| storable(part(error)))
    };
    statement
        .bind(column(&rows, |(number, _)| *number))
        .bind(column(&rows, |(_, write)| agent_bucket(&write.agent)))
        .bind(column(&rows, |(_, write)| write.agent.as_str()))
        .bind(column(&rows, |(_, write)| write.guard.get()))
        .bind(column(&rows, |(_, write)| write.head.get()))
        .bind(column(&rows, |(_, write)| integer(write.run)))
        .bind(column(&rows, |(_, write)| integer(write.failures)))
        .bind(column(&rows, |(_, write)| wait(write.wait).0))
        .bind(column(&rows, |(_, write)| wait(write.wait).1))
        .bind(column(&rows, |(_, write)| write.paused))
        .bind(column(&rows, |(_, write)| error(write, |(code, _)| code)))
        .bind(column(&rows, |(_, write)| error(write, |(_, text)| text)))
}

fn wait(wait: BackoffChange) -> (&'static str, i64) {
    match wait {
        BackoffChange::Keep => ("keep", 0),
        BackoffChange::Clear => ("clear", 0),
        BackoffChange::Start(ms) => ("start", ms),
    }
}

/// Finished turns: parameters `$13` to `$20`.
fn finished(statement: Statement, group: &[Submission<'_>]) -> Statement {
    let rows: Vec<Finished<'_>> =
        items(group).flat_map(|(number, first, commit)| finished_of(number, first, commit)).collect();
    statement
        .bind(column(&rows, |row| row.number))
        .bind(column(&rows, |row| row.bucket))
        .bind(column(&rows, |row| row.write.turn.as_str()))
        .bind(column(&rows, |row| row.thread))
        .bind(column(&rows, |row| row.write.messages.first().map(|message| message.key.message.as_str())))
        .bind(column(&rows, |row| row.write.messages.last().map(|message| message.key.message.as_str())))
        .bind(column(&rows, |row| row.item))
        .bind(column(&rows, |row| row.write.ends_failed.is_some()))
}

struct Finished<'a> {
    number: i64,
    write: &'a TurnWrite,
    bucket: i16,
    thread: Option<&'a str>,
    item: Option<i64>,
}

fn finished_of(number: i64, first: i64, commit: &Commit) -> impl Iterator<Item = Finished<'_>> {
    commit.turns.iter().map(move |write| {
        let thread = write.messages.first().map(|message| &message.key.thread).or(write.ends_failed.as_ref());
        // An index without an agent is a defect. Item 0 does not exist, so nothing of that turn is
        // written.
        let item = |index| if index < commit.agents.len() { first + index as i64 } else { 0 };
        Finished {
            number,
            write,
            bucket: thread.map_or(0, bucket_of),
            thread: thread.map(ThreadId::as_str),
            item: write.agent.map(item),
        }
    })
}

/// Each commit with its number and the item of its first agent, both from 1.
pub(super) fn items<'a>(group: &'a [Submission<'a>]) -> impl Iterator<Item = (i64, i64, &'a Commit)> {
    let mut next = 1;
    group.iter().zip(1_i64..).map(move |(submission, number)| {
        let first = next;
        next += submission.commit.agents.len() as i64;
        (number, first, submission.commit)
    })
}
