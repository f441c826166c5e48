//! The losses that owners have recorded.

use anyhow::Result;
use sqlx::PgConnection;
use testkit::from_row;

from_row! {
    /// A row of `incidents`.
    #[derive(Debug, Clone)]
    pub(super) struct IncidentRow {
        partition_id: i16,
        pub(super) kind: String,
        first_seq: i64,
        last_seq: Option<i64>,
    }
}

impl IncidentRow {
    /// True if the incident records that this entry may be lost.
    pub(super) fn names(&self, partition: u16, seq: u64) -> bool {
        let seq = i64::try_from(seq).unwrap_or(i64::MAX);
        self.kind != "store_stepped_back"
            && u16::try_from(self.partition_id) == Ok(partition)
            && self.first_seq <= seq
            && self.last_seq.is_none_or(|last| seq <= last)
    }
}

/// The incidents detected at or after this time, in seconds since 1970 by the database's clock.
pub(super) async fn since(connection: &mut PgConnection, since: f64) -> Result<Vec<IncidentRow>> {
    let rows = sqlx::query_as(
        "SELECT partition_id, kind, first_seq, last_seq FROM incidents WHERE detected_at >= to_timestamp($1)",
    );
    Ok(rows.bind(since).fetch_all(connection).await?)
}
