//! Who did what.

use model::{ActId, Bucket, Timestamp};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::at;
use crate::row::parsed;
use crate::{Store, StoreError};

/// An act as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRow {
    /// Its id.
    pub act: ActId,
    /// Who did it.
    pub actor: String,
    /// [`model::ActKind::name`], `retry_turn` or `put_settings`.
    pub what: String,
    /// The task or turn that it was about.
    pub target: Option<String>,
    /// `None`: done. Else why not, for people.
    pub refused: Option<String>,
    /// When it was written, by the database's clock.
    pub at: Timestamp,
}

impl Store {
    /// What became of an act on an agent or a thread; `None` when it has not been done yet.
    pub async fn act(&self, subject: &str, act: &ActId) -> Result<Option<AuditRow>, StoreError> {
        let statement = sqlx::query(
            "SELECT *, (extract(epoch FROM at) * 1000)::bigint AS at_ms FROM audit
             WHERE bucket = $1 AND subject_id = $2 AND act_id = $3",
        )
        .bind(Bucket::of_key(subject).get() as i16)
        .bind(subject.to_owned())
        .bind(act.to_string());
        self.rows(statement).await?.first().map(audit_row).transpose()
    }

    /// At most `limit` acts on an agent or a thread, the newest first; with `before`, those before that act.
    pub async fn acts(
        &self,
        subject: &str,
        before: Option<&ActId>,
        limit: u32,
    ) -> Result<Vec<AuditRow>, StoreError> {
        let statement = sqlx::query(include_str!("audit/page.sql"))
            .bind(Bucket::of_key(subject).get() as i16)
            .bind(subject.to_owned())
            .bind(before.map(ActId::to_string))
            .bind(i64::from(limit));
        self.rows(statement).await?.iter().map(audit_row).collect()
    }
}

fn audit_row(row: &PgRow) -> Result<AuditRow, StoreError> {
    Ok(AuditRow {
        act: parsed(row, "act_id", ActId::parse)?,
        actor: row.try_get("actor")?,
        what: row.try_get("what")?,
        target: row.try_get("target")?,
        refused: row.try_get("refused")?,
        at: at(row, "at_ms")?,
    })
}
