//! Marks, changes of tasks, failed turns, ends of saved turns, and acts, as arrays.

use model::{ThreadId, TurnId, TurnOpened};
use partition::{AuditWrite, FailedTask, FailedTurn};

use super::coalesce::{self, Change};
use super::columns::{agent_bucket, bucket_of, column, folded_of, integer, numbered, object, storable};
use super::submission::Submission;
use super::turns::items;
use crate::outbox::options;
use crate::row::stored_turn_origin;
use crate::statement::Statement;

/// Parameters of `7_rare_changes.sql`.
pub(super) fn rare_changes(statement: Statement, group: &[Submission<'_>]) -> Statement {
    let statement = failures(changes(marks(statement, group), group), group);
    let statement = turns(statement, &numbered(group, |commit| &commit.dropped_turns).collect::<Vec<_>>());
    let statement = turns(statement, &numbered(group, |commit| &commit.ended_turns).collect::<Vec<_>>());
    acts(statement, group)
}

/// Failure marks: parameters `$1` to `$7`.
fn marks(statement: Statement, group: &[Submission<'_>]) -> Statement {
    let rows: Vec<(i64, Option<i64>, &FailedTask)> = items(group)
        .flat_map(|(number, first, commit)| {
            coalesce::marks(commit).into_iter().map(move |mark| {
                let index = commit.agents.iter().position(|write| write.agent == mark.agent);
                (number, index.map(|index| first + index as i64), mark)
            })
        })
        .collect();
    statement
        .bind(column(&rows, |(number, _, _)| *number))
        .bind(column(&rows, |(_, _, mark)| agent_bucket(&mark.agent)))
        .bind(column(&rows, |(_, _, mark)| mark.agent.as_str()))
        .bind(column(&rows, |(_, _, mark)| mark.position.get()))
        .bind(column(&rows, |(_, _, mark)| storable(&mark.code)))
        .bind(column(&rows, |(_, _, mark)| storable(&mark.text)))
        .bind(column(&rows, |(_, item, _)| *item))
}

/// Changes of tasks: parameters `$8` to `$14`.
fn changes(statement: Statement, group: &[Submission<'_>]) -> Statement {
    let rows: Vec<(i64, Change<'_>)> = folded_of(group, coalesce::changes);
    statement
        .bind(column(&rows, |(number, _)| *number))
        .bind(column(&rows, |(_, change)| agent_bucket(change.agent)))
        .bind(column(&rows, |(_, change)| change.agent.as_str()))
        .bind(column(&rows, |(_, change)| change.old.get()))
        .bind(column(&rows, |(_, change)| change.new.map(model::Position::get)))
        .bind(column(&rows, |(_, change)| change.content))
        .bind(column(&rows, |(_, change)| change.metadata.map(object)))
}

/// Failed turns: parameters `$15` to `$28`.
fn failures(statement: Statement, group: &[Submission<'_>]) -> Statement {
    let rows: Vec<(i64, &FailedTurn)> = folded_of(group, coalesce::failed_turns);
    let inputs: Vec<(i64, &TurnOpened)> =
        rows.iter().map(|(number, failed)| (*number, &failed.opened)).collect();
    opened(statement, &inputs)
        .bind(column(&rows, |(_, failed)| storable(&failed.code)))
        .bind(column(&rows, |(_, failed)| storable(&failed.text)))
        .bind(column(&rows, |(_, failed)| failed.is_retryable))
        .bind(column(&rows, |(_, failed)| storable(&failed.partial)))
}

/// The inputs of failed turns.
fn opened(statement: Statement, rows: &[(i64, &TurnOpened)]) -> Statement {
    statement
        .bind(column(rows, |(number, _)| *number))
        .bind(column(rows, |(_, input)| bucket_of(&input.thread)))
        .bind(column(rows, |(_, input)| input.thread.as_str()))
        .bind(column(rows, |(_, input)| input.turn.as_str()))
        .bind(column(rows, |(_, input)| input.agent.as_str()))
        .bind(column(rows, |(_, input)| integer(input.run)))
        .bind(column(rows, |(_, input)| input.content.as_str()))
        .bind(column(rows, |(_, input)| object(&input.input_metadata())))
        .bind(column(rows, |(_, input)| options(&input.options)))
        .bind(column(rows, |(_, input)| stored_turn_origin(&input.origin)))
}

/// Turns to delete, failed or saved: parameters `$29` to `$32`, or `$33` to `$36`.
fn turns(statement: Statement, rows: &[(i64, &(ThreadId, TurnId))]) -> Statement {
    statement
        .bind(column(rows, |(number, _)| *number))
        .bind(column(rows, |(_, (thread, _))| bucket_of(thread)))
        .bind(column(rows, |(_, (thread, _))| thread.as_str()))
        .bind(column(rows, |(_, (_, turn))| turn.as_str()))
}

/// Entries of the audit log: parameters `$37` to `$44`.
fn acts(statement: Statement, group: &[Submission<'_>]) -> Statement {
    let rows: Vec<(i64, &AuditWrite)> = numbered(group, |commit| &commit.audit).collect();
    statement
        .bind(column(&rows, |(number, _)| *number))
        .bind(column(&rows, |(_, act)| agent_bucket(&act.subject)))
        .bind(column(&rows, |(_, act)| act.subject.as_str()))
        .bind(column(&rows, |(_, act)| act.id.as_str()))
        .bind(column(&rows, |(_, act)| storable(&act.actor)))
        .bind(column(&rows, |(_, act)| storable(&act.action)))
        .bind(column(&rows, |(_, act)| act.target.as_deref().map(storable)))
        .bind(column(&rows, |(_, act)| act.error.as_deref().map(storable)))
}
