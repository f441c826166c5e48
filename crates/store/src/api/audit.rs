//! The audit log: outcomes of control commands, and actions of gateways and operators.

use model::{Bucket, CommandId, Timestamp};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::timestamp;
use crate::error::StoreError;
use crate::row::parse_column;
use crate::store::Store;

/// A control command in the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRow {
    pub command_id: CommandId,
    /// The user or system that gave the command.
    pub actor: String,
    /// The name of the action: [`model::ControlKind::name`], or another such as `retry_turn` or
    /// `put_settings`.
    pub action: String,
    /// The task or turn that the command is about.
    pub target: Option<String>,
    /// Further details: for a key, what it grants.
    pub detail: Option<String>,
    /// Reason for people why the command was rejected; `None`: it was carried out.
    pub error: Option<String>,
    /// Time of the entry by the database clock.
    pub created_at: Timestamp,
}

impl Store {
    /// Reads the outcome of a control command to an agent or a thread; `None` while it has no
    /// outcome.
    pub async fn control_outcome(
        &self,
        subject: &str,
        act: &CommandId,
    ) -> Result<Option<AuditRow>, StoreError> {
        let statement = sqlx::query(
            "SELECT *, (extract(epoch FROM created_at) * 1000)::bigint AS created_ms FROM audit_log
             WHERE bucket = $1 AND subject_id = $2 AND command_id = $3",
        )
        .bind(Bucket::of_key(subject).get() as i16)
        .bind(subject.to_owned())
        .bind(act.to_string());
        self.rows(statement).await?.first().map(audit_row).transpose()
    }

    /// Logs an action that no partition owner carries out, in the audit log of an agent or a
    /// thread.
    pub async fn log_act(
        &self,
        subject: &str,
        command: &CommandId,
        actor: &str,
        action: &str,
        target: &str,
        detail: &str,
    ) -> Result<(), StoreError> {
        let statement = sqlx::query(
            "INSERT INTO audit_log (bucket, subject_id, command_id, actor, action, target, detail)
             VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (bucket, subject_id, command_id) DO NOTHING",
        )
        .bind(Bucket::of_key(subject).get() as i16)
        .bind(subject.to_owned())
        .bind(command.to_string())
        .bind(actor.to_owned())
        .bind(action.to_owned())
        .bind(target.to_owned())
        .bind(detail.to_owned());
        self.rows(statement).await.map(drop)
    }

    /// Lists at most `limit` control commands to an agent or a thread, newest first. With `before`,
    /// lists those older than that command.
    pub async fn control_log(
        &self,
        subject: &str,
        before: Option<&CommandId>,
        limit: u32,
    ) -> Result<Vec<AuditRow>, StoreError> {
        let statement = sqlx::query(include_str!("audit/page.sql"))
            .bind(Bucket::of_key(subject).get() as i16)
            .bind(subject.to_owned())
            .bind(before.map(CommandId::to_string))
            .bind(i64::from(limit));
        self.rows(statement).await?.iter().map(audit_row).collect()
    }
}

fn audit_row(row: &PgRow) -> Result<AuditRow, StoreError> {
    Ok(AuditRow {
        command_id: parse_column(row, "command_id", CommandId::parse)?,
        actor: row.try_get("actor")?,
        action: row.try_get("action")?,
        target: row.try_get("target")?,
        detail: row.try_get("detail")?,
        error: row.try_get("error")?,
        created_at: timestamp(row, "created_ms")?,
    })
}
