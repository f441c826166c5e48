//! Entries that the stream has lost: rows of `incidents`.

use super::columns::{bigint, smallint};
use super::rows::{Given, TableParts, row};

pub(super) const TABLE: TableParts = TableParts::new(&[NewIncidentRow::ROWS], include_str!("incidents.sql"));

row! {
    /// Sequences that the stream has skipped.
    struct NewIncidentRow<'a> as incident_rows of gaps {
        partition_id: i16,
        incarnation: &'a str,
        first_seq: i64,
        last_seq: i64,
        detail: &'a str,
    }
}

fn gaps(given: Given<'_>) -> impl Iterator<Item = NewIncidentRow<'_>> {
    let submission = given.submission;
    submission.gone.iter().map(move |gone| NewIncidentRow {
        partition_id: smallint(submission.commit.partition.0),
        incarnation: submission.incarnation,
        first_seq: bigint(gone.first.0),
        last_seq: bigint(gone.last.0),
        detail: "the stream jumped over these sequences while it was read",
    })
}
