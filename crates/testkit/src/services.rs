//! NATS and Postgres for one test: its own server, or its own database on the existing Postgres.
//!
//! The servers themselves are [`devservices::services`], which blocks; here it is called outside
//! the runtime's threads.

use std::{
    env,
    path::Path,
    sync::{Arc, Mutex},
};

use anyhow::{Context, Result};
use devservices::{
    services::{NatsOptions, NatsProcess, Postgres, PostgresOptions},
    tools,
};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool, postgres::PgPoolOptions};
use tokio::task::spawn_blocking;

use crate::locked;

/// A separate nats-server with JetStream; its port never changes.
#[derive(Debug, Clone)]
pub struct NatsServer {
    url: String,
    name: String,
    server: Arc<Mutex<NatsProcess>>,
}

impl NatsServer {
    /// Starts a server without the account mapping: publishers use exact subjects.
    pub async fn start() -> Result<Self> {
        Self::start_with(|_| {}).await
    }

    /// Starts a server that maps `chunks.*` to this many partitions.
    pub async fn start_mapped(partitions: u16) -> Result<Self> {
        Self::start_with(|options| options.partitions = Some(partitions.into())).await
    }

    /// Starts a server whose streams may use and reserve at most this many bytes together.
    pub async fn start_with_storage(max_file_store: u64) -> Result<Self> {
        Self::start_with(|options| options.max_file_store = max_file_store).await
    }

    /// Starts a server that accepts messages of at most `max_payload` bytes.
    pub async fn start_with_max_payload(max_payload: u64) -> Result<Self> {
        Self::start_with(|options| options.max_payload = max_payload).await
    }

    async fn start_with(change: impl FnOnce(&mut NatsOptions)) -> Result<Self> {
        let mut options = NatsOptions::new(blocking(tools::nats_server).await?.path);
        change(&mut options);
        Self::start_as(options).await
    }

    /// Starts a server with these options.
    pub async fn start_as(options: NatsOptions) -> Result<Self> {
        blocking(move || {
            let server = NatsProcess::start(None, &options)?;
            Ok(Self { url: server.url(), name: server.name(), server: Arc::new(Mutex::new(server)) })
        })
        .await
    }

    /// Changes the number of partitions in the account mapping while the server runs.
    pub async fn map_to(&self, partitions: u16) -> Result<()> {
        let server = Arc::clone(&self.server);
        blocking(move || locked(&server).map_to(partitions.into())).await
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// The name among the servers of a cluster.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Kills it, like a crash.
    pub async fn kill(&self) -> Result<()> {
        let server = Arc::clone(&self.server);
        blocking(move || locked(&server).kill()).await
    }

    /// Stops it in order (SIGTERM).
    pub async fn stop(&self) -> Result<()> {
        let server = Arc::clone(&self.server);
        blocking(move || locked(&server).stop()).await
    }

    /// Starts it again with the same data, and waits until it accepts clients.
    pub async fn restart(&self) -> Result<()> {
        let server = Arc::clone(&self.server);
        blocking(move || locked(&server).restart()).await
    }

    /// Pauses it (SIGSTOP): connections stay open, and nothing answers.
    pub fn freeze(&self) {
        locked(&self.server).freeze();
    }

    pub fn thaw(&self) {
        locked(&self.server).thaw();
    }

    /// Copies its stored data, as of one moment.
    pub async fn copy(&self, to: &Path) -> Result<()> {
        let (server, to) = (Arc::clone(&self.server), to.to_owned());
        blocking(move || locked(&server).copy(&to)).await
    }

    /// Kills it like a crash, and starts it with the copied data.
    pub async fn put_back(&self, from: &Path) -> Result<()> {
        let (server, from) = (Arc::clone(&self.server), from.to_owned());
        blocking(move || locked(&server).put_back(&from)).await
    }
}

/// A separate Postgres cluster; its port never changes.
#[derive(Debug, Clone)]
pub struct PostgresServer {
    url: String,
    server: Arc<Mutex<Postgres>>,
}

impl PostgresServer {
    /// Creates a cluster and starts it.
    pub async fn start() -> Result<Self> {
        Self::start_with(tools::postgres).await
    }

    /// Creates a cluster whose databases can have the extension `vector`.
    pub async fn start_with_vector() -> Result<Self> {
        Self::start_with(tools::postgres_with_vector).await
    }

    async fn start_with(find: fn() -> Result<tools::Tool>) -> Result<Self> {
        let mut options = PostgresOptions::new(blocking(find).await?.path);
        // Databases are created by copying files. With a smaller WAL, checkpoints would make each
        // of these copies wait for the disk.
        options.settings.push(("max_wal_size".to_owned(), "1GB".to_owned()));
        Self::start_as(options).await
    }

    /// Starts a cluster with these options.
    pub async fn start_as(options: PostgresOptions) -> Result<Self> {
        blocking(move || {
            let server = Postgres::start(None, &options)?;
            Ok(Self { url: server.url(), server: Arc::new(Mutex::new(server)) })
        })
        .await
    }

    /// The url of its superuser.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Starts a standby, which answers reads when this returns.
    pub async fn start_standby(&self) -> Result<Self> {
        let server = Arc::clone(&self.server);
        blocking(move || {
            let standby = locked(&server).start_standby()?;
            Ok(Self { url: standby.url(), server: Arc::new(Mutex::new(standby)) })
        })
        .await
    }

    /// Kills it like a crash: SIGKILL to the postmaster and its children at once.
    pub async fn kill(&self) -> Result<()> {
        let server = Arc::clone(&self.server);
        blocking(move || locked(&server).kill()).await
    }

    /// Starts it again with the same data, and waits until it accepts connections.
    pub async fn restart(&self) -> Result<()> {
        let server = Arc::clone(&self.server);
        blocking(move || locked(&server).restart()).await
    }

    /// Pauses it (SIGSTOP): connections stay open, and nothing answers.
    pub fn freeze(&self) {
        locked(&self.server).freeze();
    }

    pub fn thaw(&self) {
        locked(&self.server).thaw();
    }

    /// Copies all of its data, as of one moment.
    pub async fn copy(&self, to: &Path) -> Result<()> {
        let (server, to) = (Arc::clone(&self.server), to.to_owned());
        blocking(move || locked(&server).copy(&to)).await
    }

    /// Kills it like a crash, and starts it with the copied data.
    pub async fn put_back(&self, from: &Path) -> Result<()> {
        let (server, from) = (Arc::clone(&self.server), from.to_owned());
        blocking(move || locked(&server).put_back(&from)).await
    }
}

/// A separate database with a random name, dropped at the end.
#[derive(Debug)]
pub struct TestDatabase {
    admin_url: String,
    name: String,
    url: String,
}

impl TestDatabase {
    /// Creates a database on the server of `DATABASE_URL`.
    pub async fn create() -> Result<Self> {
        let admin_url =
            env::var("DATABASE_URL").context("DATABASE_URL is not set; `cargo xtask test` sets it")?;
        Self::create_on(&admin_url).await
    }

    /// Creates a database on the server of `admin_url`, whose user may create databases.
    pub async fn create_on(admin_url: &str) -> Result<Self> {
        let name = format!("antiphon_test_{:016x}", rand::random::<u64>());
        // As in production, the fleet's role owns its tables and is no superuser, so that row-level
        // security applies to it.
        execute(admin_url, OWNER).await?;
        execute(admin_url, &format!("CREATE DATABASE {name} OWNER antiphon")).await?;
        let url = as_owner(&with_database(admin_url, &name)?)?;
        Ok(Self { admin_url: admin_url.to_owned(), name, url })
    }

    /// Creates an extension in it, which only a superuser may do.
    pub async fn create_extension(&self, name: &str) -> Result<()> {
        execute(&with_database(&self.admin_url, &self.name)?, &format!("CREATE EXTENSION {name}")).await
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// A small pool for this database.
    pub async fn pool(&self) -> Result<PgPool> {
        pool(&self.url).await
    }
}

/// A small pool, to read tables from outside.
pub async fn pool(url: &str) -> Result<PgPool> {
    PgPoolOptions::new().max_connections(2).connect(url).await.with_context(|| format!("connecting to {url}"))
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let (url, statement) =
            (self.admin_url.clone(), format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name));
        // A runtime cannot block on itself, so the thread has its own runtime.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(execute(&url, &statement))
        });
        if let Ok(Err(error)) = dropping.join() {
            eprintln!("a test database was left behind: {error:#}");
        }
    }
}

async fn execute(url: &str, statement: &str) -> Result<()> {
    let mut connection = PgConnection::connect(url).await.with_context(|| format!("connecting to {url}"))?;
    sqlx::query(AssertSqlSafe(statement))
        .execute(&mut connection)
        .await
        .with_context(|| statement.to_owned())?;
    Ok(connection.close().await?)
}

/// Several processes run this statement at once, so the role may exist already.
const OWNER: &str = "DO $$ BEGIN
    CREATE ROLE antiphon LOGIN PASSWORD 'antiphon' IN ROLE pg_monitor, pg_signal_backend, pg_checkpoint;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
END $$";

/// The url with the user that owns the database. A test that reads tables sees every tenant, unless
/// it restricts itself.
fn as_owner(url: &str) -> Result<String> {
    let (scheme, rest) = url.split_once("://").context("a database url without a scheme")?;
    let host = rest.split_once('/').map_or(rest, |(host, _)| host);
    let after = host.rfind('@').map_or(0, |at| at + 1);
    let joint = if rest.contains('?') { '&' } else { '?' };
    Ok(format!("{scheme}://antiphon:antiphon@{}{joint}options=-c%20antiphon.tenant%3D*", &rest[after..]))
}

/// The url with another database; the part from `?` on is kept.
fn with_database(url: &str, name: &str) -> Result<String> {
    let (base, query) = url.split_once('?').map_or((url, None), |(base, query)| (base, Some(query)));
    let scheme = base.find("://").context("a database url without a scheme")? + 3;
    let host_end = base[scheme..].find('/').map_or(base.len(), |at| scheme + at);
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    Ok(format!("{}/{name}{query}", &base[..host_end]))
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    spawn_blocking(work).await?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_database_of_a_url_is_replaced() {
        let replaced = |url| with_database(url, "new").unwrap();
        assert_eq!(
            replaced("postgres://u:p@h:1/old?sslmode=disable"),
            "postgres://u:p@h:1/new?sslmode=disable"
        );
        assert_eq!(replaced("postgres://h"), "postgres://h/new");
        let owner = "postgres://antiphon:antiphon@h:1/d?options=-c%20antiphon.tenant%3D*";
        assert_eq!(as_owner("postgres://u:p@h:1/d").unwrap(), owner);
        assert_eq!(as_owner("postgres://h:1/d").unwrap(), owner);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_database_lives_as_long_as_its_value() {
        let admin_url = env::var("DATABASE_URL").unwrap();
        let database = TestDatabase::create().await.unwrap();
        let name = database.name.clone();
        database.pool().await.unwrap();
        drop(database);
        let admin = pool(&admin_url).await.unwrap();
        let left: i64 = sqlx::query_scalar("SELECT count(*) FROM pg_database WHERE datname = $1")
            .bind(name)
            .fetch_one(&admin)
            .await
            .unwrap();
        assert_eq!(left, 0);
    }
}
