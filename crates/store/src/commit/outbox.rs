//! What a commit publishes: rows of `outbox`.

use super::columns::smallint;
use super::rows::{Given, TableParts, row};
use crate::outbox;

pub(super) const TABLE: TableParts = TableParts::new(&[OutboxRow::ROWS], include_str!("outbox.sql"));
pub(super) const SENT: TableParts = TableParts::new(&[SentRow::ROWS], include_str!("sent.sql"));

row! {
    /// A batch to publish; its bucket is the partition.
    struct OutboxRow as outbox_rows of batches {
        bucket: i16,
        position: i64,
        entries: String,
    }
}

fn batches(given: Given<'_>) -> impl Iterator<Item = OutboxRow> {
    let commit = given.submission.commit;
    commit.outbox.iter().map(|batch| OutboxRow {
        bucket: smallint(commit.partition.0),
        position: batch.id.get(),
        entries: outbox::encoded(&batch.outgoing),
    })
}

row! {
    /// A published batch.
    struct SentRow as sent_rows of sent {
        bucket: i16,
        position: i64,
    }
}

fn sent(given: Given<'_>) -> impl Iterator<Item = SentRow> {
    let commit = given.submission.commit;
    let bucket = smallint(commit.partition.0);
    commit.sent.iter().map(move |id| SentRow { bucket, position: id.get() })
}
