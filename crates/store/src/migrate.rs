//! Laying out a database.

use model::PartitionCount;
use sqlx::migrate::Migrator;
use sqlx::{Connection, PgConnection};

use crate::connect::{self, detached};
use crate::store::count_of;
use crate::{StoreConfig, StoreError};

/// Versions that are applied but unknown here are from a newer binary: rolling deployments run both for a while.
static MIGRATIONS: Migrator = {
    let mut migrations = sqlx::migrate!("../../migrations");
    migrations.ignore_missing = true;
    migrations
};

/// A database that could not be laid out.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// A migration failed, or was changed after it had been applied.
    #[error("the database could not be migrated: {0}")]
    Migration(#[from] sqlx::migrate::MigrateError),
    /// No connection, or a database with another number of partitions.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Applies the migrations that are missing and fixes the number of partitions. Safe to run twice and at the same time.
///
/// Waits for Postgres as [`crate::Store::connect`] does. It uses a connection of its own and closes it: a
/// migration that fails leaves its advisory lock to the session. That connection must not go through a pooler in
/// transaction mode.
pub async fn migrate(url: &str, count: PartitionCount) -> Result<(), MigrateError> {
    let options = connect::options(&StoreConfig::new(url))?;
    // Building an index on a large table takes as long as it takes.
    let options = options.options([("statement_timeout", "0"), ("lock_timeout", "60000")]);
    let mut connection = connect::wait(&options).await?;
    let outcome = detached(async move {
        let outcome = lay_out(&mut connection, count).await;
        connection.close().await.ok();
        outcome
    });
    outcome.await.unwrap_or(Err(MigrateError::Store(StoreError::Stopping)))
}

async fn lay_out(connection: &mut PgConnection, count: PartitionCount) -> Result<(), MigrateError> {
    MIGRATIONS.run_direct(None, connection, false).await?;
    fix_count(connection, count).await.map_err(MigrateError::from)
}

async fn fix_count(connection: &mut PgConnection, count: PartitionCount) -> Result<(), StoreError> {
    sqlx::query("INSERT INTO fleet (partitions) VALUES ($1) ON CONFLICT DO NOTHING")
        .bind(i32::from(count.get()))
        .execute(&mut *connection)
        .await?;
    let row = sqlx::query("SELECT partitions FROM fleet").fetch_one(&mut *connection).await?;
    StoreError::check_count(count_of(&row)?, count)?;
    sqlx::query(
        "INSERT INTO partitions (partition_id) SELECT generate_series(0, $1::integer - 1) ON CONFLICT DO NOTHING",
    )
    .bind(i32::from(count.get()))
    .execute(connection)
    .await?;
    Ok(())
}
