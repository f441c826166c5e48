//! Lays out a database: applies migrations, fixes the number of partitions, and grants rights.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::Duration;

use model::PartitionCount;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{Connection, PgConnection, Row, SqlStr};

use crate::config::StoreConfig;
use crate::connect::{self, run_uncancelled};
use crate::error::StoreError;
use crate::error::sqlstate;
use crate::partition_change::PartitionChange;
use crate::repair::number_some;
use crate::row::count as rows_of;
use crate::store::Store;
use crate::store::count_of;

/// Version, description and SQL of each file in `migrations/`.
const FILES: &[(i64, &str, &str)] = &include!(concat!(env!("OUT_DIR"), "/migrations.rs"));

/// The pause between two attempts to get a lock.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Applied versions that are unknown here are ignored. They belong to a newer binary, because
/// rolling deployments run both for a while.
static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(|| {
    let migration = |&(version, description, sql): &(i64, &'static str, &'static str)| {
        // sqlx uses the same test.
        let no_transaction = sql.starts_with("-- no-transaction");
        let sql = SqlStr::from_static(sql);
        Migration::new(version, description.into(), MigrationType::Simple, sql, no_transaction)
    };
    let mut migrations = Migrator::with_migrations(FILES.iter().map(migration).collect());
    migrations.ignore_missing = true;
    migrations
});

/// A database could not be laid out.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// A migration failed, or was changed after it had been applied.
    #[error("the database could not be migrated: {0}")]
    Migration(#[from] sqlx::migrate::MigrateError),
    /// No connection, or a database with another number of partitions.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Applies missing migrations, fixes the number of partitions, and numbers messages without a
/// number. Safe to run repeatedly and concurrently.
///
/// Waits for Postgres like [`crate::Store::connect`]. Also waits for sessions that hold locks which
/// migrations need, without blocking other sessions for long. Uses its own connection and closes
/// it, because after a failed migration the session still holds the advisory lock.
pub async fn migrate(url: &str, count: PartitionCount) -> Result<(), MigrateError> {
    let config = StoreConfig::new(url);
    let options = connect::options(&config)?;
    // Building an index on a large table may take any time. A statement that waits for a table lock
    // blocks every later statement, so each wait is short and is repeated.
    let options = options.options([("statement_timeout", "0"), ("lock_timeout", "2000")]);
    let mut connection = connect::wait_for_server(&options, &config).await?;
    let outcome = run_uncancelled(async move {
        let outcome = lay_out(&mut connection, count).await;
        connection.close().await.ok();
        outcome
    });
    outcome.await.unwrap_or(Err(MigrateError::Store(StoreError::Stopping)))
}

/// The layout of a database compared with this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// The database has everything that this version needs.
    Enough,
    /// The database is empty.
    Nothing,
    /// This migration is missing: `antiphon migrate` of this version has not run yet.
    Lacks(i64),
    /// This migration differs from the one in this version: the database belongs to another build
    /// and cannot be used.
    Differs(i64),
}

impl Store {
    /// Compares the database with the migrations of this version. It may have more migrations, from
    /// a newer version that runs at the same time.
    pub async fn layout(&self) -> Result<Layout, StoreError> {
        let applied = self.applied_migrations().await?;
        for known in MIGRATIONS.iter() {
            match applied.get(&known.version) {
                Some(checksum) if *checksum == *known.checksum => {}
                Some(_) => return Ok(Layout::Differs(known.version)),
                None if applied.is_empty() => return Ok(Layout::Nothing),
                None => return Ok(Layout::Lacks(known.version)),
            }
        }
        Ok(Layout::Enough)
    }

    /// The newest applied migration that this version does not know; `None`: the database is not
    /// newer.
    pub async fn newest_unknown_migration(&self) -> Result<Option<i64>, StoreError> {
        let applied = self.applied_migrations().await?;
        Ok(applied.into_keys().filter(|version| !MIGRATIONS.version_exists(*version)).max())
    }

    /// Version and checksum of each applied migration; empty while the database is not laid out.
    async fn applied_migrations(&self) -> Result<HashMap<i64, Vec<u8>>, StoreError> {
        let applied = sqlx::query("SELECT version, checksum FROM _sqlx_migrations WHERE success");
        match self.rows(applied).await {
            Ok(rows) => Ok(rows
                .iter()
                .map(|row| Ok((row.try_get("version")?, row.try_get("checksum")?)))
                .collect::<Result<_, sqlx::Error>>()?),
            Err(StoreError::Statement(sqlx::Error::Database(error)))
                if sqlstate(error.as_ref()) == "42P01" =>
            {
                Ok(HashMap::new())
            }
            Err(error) => Err(error),
        }
    }
}

async fn lay_out(connection: &mut PgConnection, count: PartitionCount) -> Result<(), MigrateError> {
    let mut pause = FIRST_PAUSE;
    loop {
        match MIGRATIONS.run_direct(None, connection, false).await {
            Err(error) if is_locked(&error) => {
                let message = "a migration waits for a lock that another session holds, such as pg_dump or another migration";
                tracing::warn!(%error, again_in_s = pause.as_secs(), "{message}");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            outcome => break outcome?,
        }
    }
    // The remaining steps wait for row locks, not for table locks.
    sqlx::query("SET lock_timeout = '60s'").execute(&mut *connection).await.map_err(StoreError::from)?;
    fix_count(connection, count).await?;
    number_messages(connection).await?;
    list_threads(connection).await?;
    sqlx::raw_sql(include_str!("migrate/grants.sql")).execute(connection).await.map_err(StoreError::from)?;
    Ok(())
}

/// True if the lock timeout expired. The transaction was rolled back.
fn is_locked(error: &sqlx::migrate::MigrateError) -> bool {
    use sqlx::migrate::MigrateError::{Execute, ExecuteMigration};
    match error {
        Execute(error) | ExecuteMigration(error, _) => {
            error.as_database_error().is_some_and(|error| sqlstate(error) == "55P03")
        }
        _ => false,
    }
}

/// Assigns numbers to messages without one. Works in small parts, each a transaction, so that no
/// writer waits for long and an interruption loses no work. Existing numbers do not change.
async fn number_messages(connection: &mut PgConnection) -> Result<(), StoreError> {
    loop {
        if rows_of(&number_some(None).fetch_all(&mut *connection).await?)? == 0 {
            return Ok(());
        }
    }
}

/// Number of threads that are listed in one transaction.
const LISTED_AT_ONCE: i64 = 10_000;

/// Lists the threads that builds without a list of threads have written, in parts, and removes the
/// rows of threads that such a build has erased.
async fn list_threads(connection: &mut PgConnection) -> Result<(), StoreError> {
    let erased = "DELETE FROM thread_list AS l USING erased_threads AS e
                  WHERE e.bucket = l.bucket AND e.thread_id = l.thread_id AND e.recreated_at IS NULL";
    sqlx::query(erased).execute(&mut *connection).await?;
    let list = || sqlx::query(include_str!("migrate/list_threads.sql")).bind(LISTED_AT_ONCE);
    while list().fetch_one(&mut *connection).await?.try_get::<i64, _>("count")? > 0 {}
    Ok(())
}

async fn fix_count(connection: &mut PgConnection, count: PartitionCount) -> Result<(), StoreError> {
    sqlx::query("INSERT INTO installation (partitions) VALUES ($1) ON CONFLICT DO NOTHING")
        .bind(i32::from(count.get()))
        .execute(&mut *connection)
        .await?;
    // A migration must not make streams usable while they are being moved.
    if let Some(change) = PartitionChange::read(&mut *connection).await? {
        return Err(change.refusal());
    }
    let row = sqlx::query("SELECT partitions FROM installation").fetch_one(&mut *connection).await?;
    StoreError::check_count(count_of(&row)?, count)?;
    sqlx::query(
        "INSERT INTO partitions (partition_id) SELECT generate_series(0, $1::integer - 1) ON CONFLICT DO NOTHING",
    )
    .bind(i32::from(count.get()))
    .execute(connection)
    .await?;
    Ok(())
}
