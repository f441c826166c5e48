//! Marks of failed tasks: rows of `failed_tasks`.

use super::columns::{agent_bucket, storable};
use super::rows::{Given, TableParts, row};

pub(super) const TABLE: TableParts =
    TableParts::new(&[FailedTaskRow::ROWS], include_str!("failed_tasks.sql"));

row! {
    /// The mark of a task.
    struct FailedTaskRow<'a> as failed_task_rows of marks {
        bucket: i16,
        agent_id: &'a str,
        position: i64,
        code: String,
        text: String,
        /// The agent's row on which the mark depends, if this commit has one.
        item: Option<i64>,
    }
}

fn marks(given: Given<'_>) -> impl Iterator<Item = FailedTaskRow<'_>> {
    let commit = given.submission.commit;
    commit.failed_tasks.iter().map(move |mark| FailedTaskRow {
        bucket: agent_bucket(&mark.agent),
        agent_id: mark.agent.as_str(),
        position: mark.position.get(),
        code: storable(&mark.code),
        text: storable(&mark.text),
        item: commit.agents.iter().position(|write| write.agent == mark.agent).map(|index| given.item(index)),
    })
}
