//! Failed messages, for clients that connect later: rows of `failed_messages`.

use model::{FailedMessage, MessageFailure};
use serde_json::json;

use super::columns::{bucket, storable};
use super::rows::{Given, TableParts, row};

pub(super) const TABLE: TableParts =
    TableParts::new(&[FailedMessageRow::ROWS], include_str!("failed_messages.sql"));

row! {
    /// A failed message.
    struct FailedMessageRow<'a> as failed_message_rows of failed_messages {
        bucket: i16,
        thread_id: &'a str,
        position: i64,
        message_id: &'a str,
        attempt: i64,
        role: &'a str,
        batch_type: &'a str,
        code: &'a str,
        text: String,
        missing: String,
        is_retryable: bool,
    }
}

fn failed_messages(given: Given<'_>) -> impl Iterator<Item = FailedMessageRow<'_>> {
    given.submission.commit.failed_messages.iter().map(|failed| FailedMessageRow {
        bucket: bucket(&failed.key),
        thread_id: failed.key.thread.as_str(),
        position: failed.position.get(),
        message_id: failed.key.message.as_str(),
        attempt: i64::from(failed.attempt),
        role: failed.role.name(),
        batch_type: failed.batch_type.name(),
        code: failed.failure.code(),
        text: storable(&failed.failure.to_string()),
        missing: missing(failed),
        is_retryable: failed.failure.is_retryable(),
    })
}

fn missing(failed: &FailedMessage) -> String {
    match &failed.failure {
        MessageFailure::GapTimeout { missing } => json!(missing).to_string(),
        _ => "[]".to_owned(),
    }
}
