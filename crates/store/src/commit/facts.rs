//! Facts found by memory tasks: rows of `facts`.

use model::TaskKind;
use partition::TurnWrite;

use super::columns::{agent_bucket, bucket_of, smallint, storable};
use super::rows::{Given, TableParts, row};

pub(super) const TABLE: TableParts = TableParts::new(&[FactRow::ROWS], include_str!("facts.sql"));

/// Maximum number of facts per scope; the oldest are deleted.
pub const MOST_OF_SCOPE: i64 = 1_000;

row! {
    /// A fact. `queue` is the thread of the turn, `thread_id` the one that the fact is about.
    struct FactRow<'a> as fact_rows of facts {
        bucket: i16,
        queue: String,
        turn_id: &'a str,
        agent_id: String,
        thread_id: String,
        thread_bucket: i16,
        answer: String,
        /// Number of the fact in its turn.
        ordinal: i16,
        text: String,
        kind: String,
        confidence: f32,
        /// Space-separated ids of facts.
        supersedes: String,
        kept_per_scope: i64,
    }
}

fn facts(given: Given<'_>) -> impl Iterator<Item = FactRow<'_>> {
    given.submission.commit.turns.iter().flat_map(facts_of)
}

fn facts_of(write: &TurnWrite) -> Vec<FactRow<'_>> {
    let Ok(Some(noted)) = write.noted_facts() else { return Vec::new() };
    let queue = noted.agent.queue_of(TaskKind::Memory);
    let numbered = noted.facts.iter().zip(0..);
    let rows = numbered.map(|(fact, ordinal)| FactRow {
        bucket: agent_bucket(&queue),
        queue: queue.as_str().to_owned(),
        turn_id: write.turn.as_str(),
        agent_id: noted.agent.as_str().to_owned(),
        thread_id: noted.thread.as_str().to_owned(),
        thread_bucket: bucket_of(&noted.thread),
        answer: noted.answer.as_str().to_owned(),
        ordinal: smallint(ordinal),
        text: storable(&fact.text),
        kind: fact.kind.as_str().to_owned(),
        confidence: fact.confidence,
        supersedes: fact.supersedes.join(" "),
        kept_per_scope: MOST_OF_SCOPE,
    });
    rows.collect()
}
