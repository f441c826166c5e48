//! Timers as arrays.

use partition::{ArmedTimer, FailedTurn, TimerWrite};

use super::coalesce;
use super::columns::{agent_bucket, bucket_of, column, folded_of, numbered, object, smallint, storable};
use super::submission::Submission;
use crate::statement::Statement;

/// Parameters of `8_timers.sql`.
pub(super) fn timers(statement: Statement, group: &[Submission<'_>]) -> Statement {
    answered(changed(armed(statement, group), group), group)
}

/// Timers to arm: parameters `$1` to `$9`.
fn armed(statement: Statement, group: &[Submission<'_>]) -> Statement {
    let arm = |(number, write): (i64, &'_ TimerWrite)| match write {
        TimerWrite::Arm(armed) => Some((number, armed.clone())),
        _ => None,
    };
    let rows: Vec<(i64, ArmedTimer)> = numbered(group, |commit| &commit.timers).filter_map(arm).collect();
    statement
        .bind(column(&rows, |(number, _)| *number))
        .bind(column(&rows, |(_, armed)| smallint(armed.id.bucket().get())))
        .bind(column(&rows, |(_, armed)| armed.id.as_str().to_owned()))
        .bind(column(&rows, |(_, armed)| armed.id.kind().name()))
        .bind(column(&rows, |(_, armed)| armed.thread.as_ref().map(|thread| thread.as_str().to_owned())))
        .bind(column(&rows, |(_, armed)| armed.agent.as_str().to_owned()))
        .bind(column(&rows, |(_, armed)| agent_bucket(&armed.agent)))
        .bind(column(&rows, |(_, armed)| armed.wait_ms))
        .bind(column(&rows, |(_, armed)| object(&armed.body)))
}

/// A timer and its new state.
struct TimerChange<'a> {
    number: i64,
    write: &'a TimerWrite,
    state: &'static str,
    by: Option<String>,
    turn: Option<&'a str>,
    due_ms: Option<i64>,
}

/// Timers to change: parameters `$10` to `$16`.
fn changed(statement: Statement, group: &[Submission<'_>]) -> Statement {
    let rows: Vec<TimerChange<'_>> = numbered(group, |commit| &commit.timers).filter_map(change).collect();
    statement
        .bind(column(&rows, |row| row.number))
        .bind(column(&rows, |row| smallint(row.write.id().bucket().get())))
        .bind(column(&rows, |row| row.write.id().as_str()))
        .bind(column(&rows, |row| row.state))
        .bind(column(&rows, |row| row.by.clone()))
        .bind(column(&rows, |row| row.turn))
        .bind(column(&rows, |row| row.due_ms))
}

/// Threads in which a turn of a person fails: parameters `$17` to `$19`.
fn answered(statement: Statement, group: &[Submission<'_>]) -> Statement {
    let failed = folded_of(group, coalesce::failed_turns);
    let rows: Vec<(i64, &FailedTurn)> =
        failed.into_iter().filter(|(_, failed)| !failed.opened.origin.is_synthetic()).collect();
    statement
        .bind(column(&rows, |(number, _)| *number))
        .bind(column(&rows, |(_, failed)| bucket_of(&failed.opened.thread)))
        .bind(column(&rows, |(_, failed)| failed.opened.thread.as_str().to_owned()))
}

fn change((number, write): (i64, &TimerWrite)) -> Option<TimerChange<'_>> {
    let plain = TimerChange { number, write, state: "pending", by: None, turn: None, due_ms: None };
    Some(match write {
        TimerWrite::Arm(_) => return None,
        TimerWrite::Fire { turn, next, .. } => {
            let state = if next.is_some() { "pending" } else { "fired" };
            let turn = turn.as_ref().map(model::TurnId::as_str);
            TimerChange { state, turn, due_ms: next.map(|next| next.at.0), ..plain }
        }
        TimerWrite::Postpone { next, by, .. } => {
            TimerChange { by: by.as_deref().map(storable), due_ms: Some(next.at.0), ..plain }
        }
        TimerWrite::End { state, by, .. } => {
            TimerChange { state: state.name(), by: Some(storable(by)), ..plain }
        }
    })
}
