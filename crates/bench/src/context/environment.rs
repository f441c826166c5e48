//! The Postgres server of a run, its content, and its counters.

use anyhow::{Context as _, Result, ensure};
use devservices::{services::Postgres, tools};
use model::{Bucket, PartitionCount};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use store::{Store, StoreConfig};
use tokio::time::{Duration, sleep};

use super::{super::postgres, super::usage::Meter, threads::BenchThread, threads::agent};
use testkit::{services::TestDatabase, text};

/// Token budgets of the contexts.
pub(super) const BUDGETS: [u64; 2] = [8_000, 32_000];
/// How long a closed session may take to end.
const SESSION_END_TIMEOUT: Duration = Duration::from_secs(10);

/// A migrated database, on its own server except in tests.
pub(super) struct ContextEnvironment {
    /// Declared before its server, because the server must still run when the database is dropped.
    database: TestDatabase,
    postgres: Option<Postgres>,
    admin_url: String,
}

/// Reads of `messages` per call, according to the counters of Postgres.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reads {
    /// Rows read through indexes.
    pub(super) rows: f64,
    /// Look-ups in the primary key.
    pub(super) by_key: f64,
    /// Look-ups in other indexes, and scans of the whole table.
    pub(super) otherwise: f64,
}

impl ContextEnvironment {
    /// Starts a server whose commits reach the disk and that makes only explicit checkpoints.
    pub(super) async fn start() -> Result<Self> {
        let postgres = Postgres::start(None, &postgres::without_checkpoints(tools::postgres()?.path))?;
        let url = postgres.url();
        Self::new(Some(postgres), &url).await
    }

    /// Uses a running server.
    #[cfg(test)]
    pub(super) async fn on(admin_url: &str) -> Result<Self> {
        Self::new(None, admin_url).await
    }

    async fn new(postgres: Option<Postgres>, admin_url: &str) -> Result<Self> {
        let admin_url = admin_url.to_owned();
        let database = migrated(&admin_url).await?;
        let environment = Self { database, postgres, admin_url };
        let mut connection = environment.connection().await?;
        for budget in BUDGETS {
            let agent = agent(budget)?;
            let system = text::LICENSE.get(..600).unwrap_or_default();
            sqlx::query("INSERT INTO agent_settings (bucket, agent_id, workflow, settings) VALUES ($1, $2, 'default', $3)")
                .bind(Bucket::of_key(agent.as_str()).get() as i16)
                .bind(agent.as_str())
                .bind(serde_json::json!({"context_tokens": budget, "system": system}))
                .execute(&mut connection)
                .await?;
        }
        connection.close().await?;
        Ok(environment)
    }

    pub(super) fn url(&self) -> &str {
        self.database.url()
    }

    /// Creates another empty database on the same server, after the server has written all earlier
    /// changes.
    pub(super) async fn another(&self) -> Result<TestDatabase> {
        let database = migrated(&self.admin_url).await?;
        self.settle().await?;
        Ok(database)
    }

    pub(super) async fn connection(&self) -> Result<PgConnection> {
        PgConnection::connect(self.database.url()).await.context("connecting to Postgres")
    }

    /// The store as worker and gateway use it.
    pub(super) async fn store(&self) -> Result<Store> {
        Ok(Store::connect(&StoreConfig::new(self.database.url())).await?)
    }

    /// Begins to measure the processor time of other processes.
    pub(super) fn meter(&self) -> Meter {
        let postgres = self.postgres.as_ref().and_then(Postgres::pid);
        Meter::start(&postgres.map(|pid| ("postgres", pid)).into_iter().collect::<Vec<_>>())
    }

    /// Inserts the thread with all its messages.
    pub(super) async fn fill(&self, thread: &BenchThread) -> Result<()> {
        let mut connection = self.connection().await?;
        let written = sqlx::query(include_str!("fill.sql"))
            .bind(thread.bucket())
            .bind(thread.id.as_str())
            .bind(i64::from(thread.batches))
            .bind(thread.batch(0).get())
            .bind(thread.stride())
            .bind(thread.apart_ms())
            .bind(thread.first_at.0)
            .bind(text::LICENSE.as_bytes())
            .execute(&mut connection)
            .await?;
        ensure!(written.rows_affected() == thread.messages(), "{} rows", written.rows_affected());
        sqlx::query(
            "INSERT INTO threads (bucket, thread_id, head_position, message_count, last_number)
             SELECT bucket, thread_id, max(position), count(*), max(number) FROM messages WHERE bucket = $1 AND thread_id = $2
             GROUP BY bucket, thread_id",
        )
        .bind(thread.bucket())
        .bind(thread.id.as_str())
        .execute(&mut connection)
        .await?;
        Ok(connection.close().await?)
    }

    /// Brings tables into the state of a long-running server: with statistics, vacuumed, all on
    /// disk.
    pub(super) async fn settle(&self) -> Result<()> {
        let mut connection = self.connection().await?;
        sqlx::query("VACUUM (ANALYZE)").execute(&mut connection).await?;
        if self.postgres.is_some() {
            sqlx::query("CHECKPOINT").execute(&mut connection).await?;
        }
        Ok(connection.close().await?)
    }

    /// The average reads of `calls` calls.
    pub(super) async fn reads(&self, calls: u32, call: impl AsyncFn(&Store) -> Result<()>) -> Result<Reads> {
        let before = self.counters().await?;
        let store = self.store().await?;
        for _ in 0..calls {
            call(&store).await?;
        }
        store.close().await;
        let after = self.counters().await?;
        let each = |at: usize| (after[at] - before[at]) as f64 / f64::from(calls);
        Ok(Reads { rows: each(0), by_key: each(1), otherwise: each(2) })
    }

    /// The counters after all sessions have ended, because a session reports its reads at the
    /// latest when it ends.
    async fn counters(&self) -> Result<[i64; 3]> {
        let mut connection = self.connection().await?;
        let others = "SELECT count(*) FROM pg_stat_activity \
            WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()";
        let alone = async {
            while sqlx::query_scalar::<_, i64>(others).fetch_one(&mut connection).await? > 0 {
                sleep(Duration::from_millis(5)).await;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(SESSION_END_TIMEOUT, alone).await.context("a session does not end")??;
        let (rows, by_key, otherwise) = sqlx::query_as(
            "SELECT t.idx_tup_fetch, i.by_key, i.others + t.seq_scan
             FROM pg_stat_user_tables AS t
             CROSS JOIN LATERAL (
                 SELECT sum(idx_scan) FILTER (WHERE indexrelname = 'messages_pkey')::bigint AS by_key,
                        sum(idx_scan) FILTER (WHERE indexrelname <> 'messages_pkey')::bigint AS others
                 FROM pg_stat_user_indexes AS i WHERE i.relid = t.relid
             ) AS i
             WHERE t.relname = 'messages'",
        )
        .fetch_one(&mut connection)
        .await?;
        connection.close().await?;
        Ok([rows, by_key, otherwise])
    }
}

async fn migrated(admin_url: &str) -> Result<TestDatabase> {
    let database = TestDatabase::create_on(admin_url).await?;
    store::migrate(database.url(), PartitionCount::new(1)?).await?;
    Ok(database)
}

pub(super) async fn execute(connection: &mut PgConnection, sql: &str) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.with_context(|| sql.to_owned())?;
    Ok(())
}
