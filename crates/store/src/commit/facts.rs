//! Facts found by memory tasks, as arrays.

use model::TaskKind;
use partition::{NotedFacts, TurnWrite};

use super::columns::{agent_bucket, bucket_of, column, numbered, smallint, storable};
use super::submission::Submission;
use crate::statement::Statement;

/// Maximum number of facts per scope; the oldest are deleted.
pub const MOST_OF_SCOPE: i64 = 1_000;

/// True if the turn has found any facts.
pub(super) fn has_facts(write: &TurnWrite) -> bool {
    matches!(write.noted_facts(), Ok(Some(noted)) if !noted.facts.is_empty())
}

struct FactRow<'a> {
    number: i64,
    write: &'a TurnWrite,
    noted: &'a NotedFacts,
    at: usize,
}

/// Parameters of `8_facts.sql`.
pub(super) fn facts(statement: Statement, group: &[Submission<'_>]) -> Statement {
    let noted: Vec<(i64, &TurnWrite, NotedFacts)> = numbered(group, |commit| &commit.turns)
        .filter_map(|(number, write)| Some((number, write, write.noted_facts().ok()??)))
        .collect();
    let rows: Vec<FactRow<'_>> = noted
        .iter()
        .flat_map(|(number, write, noted)| {
            (0..noted.facts.len()).map(move |at| FactRow { number: *number, write, noted, at })
        })
        .collect();
    let queue = |row: &FactRow<'_>| row.noted.agent.queue_of(TaskKind::Memory);
    statement
        .bind(column(&rows, |row| row.number))
        .bind(column(&rows, |row| agent_bucket(&queue(row))))
        .bind(column(&rows, |row| queue(row).as_str().to_owned()))
        .bind(column(&rows, |row| row.write.turn.as_str()))
        .bind(column(&rows, |row| row.noted.agent.as_str()))
        .bind(column(&rows, |row| row.noted.thread.as_str()))
        .bind(column(&rows, |row| bucket_of(&row.noted.thread)))
        .bind(column(&rows, |row| row.noted.answer.as_str()))
        .bind(column(&rows, |row| smallint(row.at as u16)))
        .bind(column(&rows, |row| storable(&row.noted.facts[row.at].text)))
        .bind(column(&rows, |row| row.noted.facts[row.at].kind.as_str()))
        .bind(column(&rows, |row| row.noted.facts[row.at].confidence))
        .bind(column(&rows, |row| row.noted.facts[row.at].supersedes.join(" ")))
        .bind(MOST_OF_SCOPE)
}
