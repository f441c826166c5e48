//! Statements in the scope of a tenant. This is the only module that opens a transaction around
//! another statement.
//!
//! It runs them in their own task ([`crate::connect::run_uncancelled`]), so that a dropped future
//! cannot leave the transaction open.

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row};

use crate::config::TenantScope;
use crate::statement::Statement;

/// The outcome of a statement and the state of its session.
pub(crate) enum SessionState {
    /// The session is unchanged.
    Clean(Result<Vec<PgRow>, sqlx::Error>),
    /// The tenant is marked as erased: the statement was not run, and the session is unchanged.
    TenantErased,
    /// The transaction may still be open.
    Unknown(sqlx::Error),
}

/// Runs one statement in the scope of a tenant, unless the tenant is marked as erased. The setting
/// is local to the transaction, because the pool gives the session to the next statement.
pub(crate) async fn in_tenant_transaction(
    connection: &mut PgConnection,
    statement: Statement,
    scope: &TenantScope,
) -> SessionState {
    // Tenant names use an alphabet that needs no quoting.
    let begin = match scope {
        TenantScope::Tenant(_) => {
            format!("BEGIN; SELECT antiphon_enter_tenant('{}') AS is_there", scope.setting())
        }
        TenantScope::All | TenantScope::Installation | TenantScope::Nothing => {
            format!(
                "BEGIN; SELECT set_config('antiphon.tenant', '{}', true) IS NOT NULL AS is_there",
                scope.setting()
            )
        }
    };
    let entered = sqlx::raw_sql(AssertSqlSafe(begin)).fetch_one(&mut *connection).await;
    let is_there: bool = match entered.and_then(|row| row.try_get("is_there")) {
        Ok(is_there) => is_there,
        Err(error) => return SessionState::Unknown(error),
    };
    if !is_there {
        return match sqlx::raw_sql("ROLLBACK").execute(&mut *connection).await {
            Ok(_) => SessionState::TenantErased,
            Err(error) => SessionState::Unknown(error),
        };
    }
    let rows = statement.fetch_all(&mut *connection).await;
    let end = if rows.is_ok() { "COMMIT" } else { "ROLLBACK" };
    match (sqlx::raw_sql(end).execute(&mut *connection).await, rows) {
        (Ok(_), rows) => SessionState::Clean(rows),
        (Err(_), Err(error)) | (Err(error), Ok(_)) => SessionState::Unknown(error),
    }
}
