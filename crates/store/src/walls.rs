//! Statements behind a wall: the one place that opens a transaction around another statement.
//!
//! It runs in a task of its own ([`crate::connect::detached`]), so nobody can drop it half-way and leave the transaction open.

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection};

use crate::Sees;
use crate::store::Statement;

/// What became of a statement, and of the session that it ran in.
pub(crate) enum Answered {
    /// The session is as it was before.
    Whole(Result<Vec<PgRow>, sqlx::Error>),
    /// Nobody knows how the session is.
    Broken(sqlx::Error),
}

/// One statement behind a wall. The setting is the transaction's and never the session's: what a pool gives to the next must not see
/// what the last one saw.
pub(crate) async fn walled(connection: &mut PgConnection, statement: Statement, sees: &Sees) -> Answered {
    // Names of tenants are of an alphabet that needs no quoting.
    let begin = format!("BEGIN; SELECT set_config('antiphon.tenant', '{}', true)", sees.setting());
    if let Err(error) = sqlx::raw_sql(AssertSqlSafe(begin)).execute(&mut *connection).await {
        return Answered::Broken(error);
    }
    let rows = statement.fetch_all(&mut *connection).await;
    let end = if rows.is_ok() { "COMMIT" } else { "ROLLBACK" };
    match (sqlx::raw_sql(end).execute(&mut *connection).await, rows) {
        (Ok(_), rows) => Answered::Whole(rows),
        (Err(_), Err(error)) | (Err(error), Ok(_)) => Answered::Broken(error),
    }
}
