//! Changes of stored tasks: rows of `tasks`, `task_ids` and `failed_tasks`.

use super::columns::{agent_bucket, object};
use super::rows::{Given, TableParts, row};

pub(super) const TABLE: TableParts =
    TableParts::new(&[TaskChangeRow::ROWS], include_str!("task_changes.sql"));

row! {
    /// All changes of one task.
    struct TaskChangeRow<'a> as task_change_rows of changes {
        bucket: i16,
        agent_id: &'a str,
        /// The stored position.
        old: i64,
        /// The new position; NULL: the task is deleted.
        new: Option<i64>,
        content: Option<&'a str>,
        metadata: Option<String>,
    }
}

fn changes(given: Given<'_>) -> impl Iterator<Item = TaskChangeRow<'_>> {
    given.submission.commit.task_changes.iter().map(|change| TaskChangeRow {
        bucket: agent_bucket(&change.agent),
        agent_id: change.agent.as_str(),
        old: change.stored.get(),
        new: change.position.map(model::Position::get),
        content: change.edit.content.as_deref(),
        metadata: change.edit.metadata.as_ref().map(object),
    })
}
