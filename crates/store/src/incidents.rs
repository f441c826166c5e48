//! Incidents for operators: data losses because a store or a stream went back in time.

use model::{Bucket, CommandId, PartitionId, Seq};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::StoreError;
use crate::row::partition_id;
use crate::row::{count, unsigned};
use crate::store::Store;

/// The actor that acknowledges incidents without a loss.
pub(crate) const BY_ITSELF: &str = "antiphon";

/// The audit subject of acknowledgements. No thread or agent can have this name.
const AUDIT_SUBJECT: &str = "incidents+fleet";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncidentRow {
    pub partition: PartitionId,
    /// The kind of the incident: [`partition::IncidentKind::name`].
    pub kind: String,
    /// The stream to which the sequences belong.
    pub incarnation: String,
    /// The first affected sequence.
    pub first: Seq,
    /// The last affected sequence; `None` when the end of the stream is unknown.
    pub last: Option<Seq>,
    /// A description for people.
    pub detail: String,
    /// Time of detection in RFC 3339 format.
    pub detected_at: String,
    /// Time and actor of the acknowledgement; `None`: not acknowledged.
    pub acknowledged: Option<(String, String)>,
}

impl Store {
    /// Lists incidents, newest first. Without `all`, lists only unacknowledged ones.
    pub async fn incidents(&self, all: bool, limit: u32) -> Result<Vec<IncidentRow>, StoreError> {
        let statement = sqlx::query(include_str!("incidents/list.sql")).bind(all).bind(i64::from(limit));
        self.rows(statement).await?.iter().map(incident).collect()
    }

    /// Acknowledges the open incidents of a partition, or of all partitions, and returns how many.
    pub async fn acknowledge_incidents(
        &self,
        partition: Option<PartitionId>,
        act: &CommandId,
        actor: &str,
    ) -> Result<u64, StoreError> {
        let statement = sqlx::query(include_str!("incidents/acknowledge.sql"))
            .bind(partition.map(|partition| partition.0 as i16))
            .bind(actor.to_owned())
            .bind(Bucket::of_key(AUDIT_SUBJECT).get() as i16)
            .bind(AUDIT_SUBJECT)
            .bind(act.to_string());
        count(&self.rows(statement).await?)
    }
}

fn incident(row: &PgRow) -> Result<IncidentRow, StoreError> {
    let last: Option<i64> = row.try_get("last_seq")?;
    let at: Option<String> = row.try_get("acknowledged_at")?;
    let by: Option<String> = row.try_get("acknowledged_by")?;
    Ok(IncidentRow {
        partition: partition_id(row)?,
        kind: row.try_get("kind")?,
        incarnation: row.try_get("incarnation")?,
        first: Seq(unsigned(row, "first_seq")?),
        last: last.map(|last| Seq(last.unsigned_abs())),
        detail: row.try_get("detail")?,
        detected_at: row.try_get("detected_at")?,
        acknowledged: at.zip(by),
    })
}
