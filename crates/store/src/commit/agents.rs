//! Queues of agents: rows of `agents`.

use partition::BackoffChange;

use super::columns::{agent_bucket, integer, storable};
use super::rows::{Given, Rows, TableParts, row};

pub(super) const QUEUES: Rows = AgentQueueRow::ROWS;
pub(super) const TABLE: TableParts = TableParts::new(&[QUEUES], include_str!("agents.sql"));

row! {
    /// The queue of an agent.
    struct AgentQueueRow<'a> as agent_rows of queues {
        /// [`Given::item`] of the index in the commit. Rows that depend on this one name it.
        item: i64,
        bucket: i16,
        agent_id: &'a str,
        guard: i64,
        head: i64,
        run: i32,
        failures: i32,
        /// `keep`, `clear` or `start`.
        wait: &'a str,
        wait_ms: i64,
        paused: bool,
        error_code: Option<String>,
        error_text: Option<String>,
    }
}

fn queues(given: Given<'_>) -> impl Iterator<Item = AgentQueueRow<'_>> {
    given.submission.commit.agents.iter().enumerate().map(move |(index, write)| {
        let (wait, wait_ms) = match write.wait {
            BackoffChange::Keep => ("keep", 0),
            BackoffChange::Clear => ("clear", 0),
            BackoffChange::Start(ms) => ("start", ms),
        };
        AgentQueueRow {
            item: given.item(index),
            bucket: agent_bucket(&write.agent),
            agent_id: write.agent.as_str(),
            guard: write.guard.get(),
            head: write.head.get(),
            run: integer(write.run),
            failures: integer(write.failures),
            wait,
            wait_ms,
            paused: write.paused,
            error_code: write.error.as_ref().map(|(code, _)| storable(code)),
            error_text: write.error.as_ref().map(|(_, text)| storable(text)),
        }
    })
}
