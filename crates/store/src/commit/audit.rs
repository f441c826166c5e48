//! Acts of operators and clients: rows of `audit_log`.

use super::columns::{agent_bucket, storable};
use super::rows::{Given, TableParts, row};

pub(super) const TABLE: TableParts = TableParts::new(&[AuditRow::ROWS], include_str!("audit.sql"));

row! {
    /// A control command and its outcome.
    struct AuditRow<'a> as audit_rows of acts {
        bucket: i16,
        subject_id: &'a str,
        command_id: &'a str,
        actor: String,
        action: String,
        target: Option<String>,
        error: Option<String>,
    }
}

fn acts(given: Given<'_>) -> impl Iterator<Item = AuditRow<'_>> {
    given.submission.commit.audit.iter().map(|act| AuditRow {
        bucket: agent_bucket(&act.subject),
        subject_id: act.subject.as_str(),
        command_id: act.id.as_str(),
        actor: storable(&act.actor),
        action: storable(&act.action),
        target: act.target.as_deref().map(storable),
        error: act.error.as_deref().map(storable),
    })
}
