//! The handle for everything except commits.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use model::{PartitionCount, PriceTable, Tenant, ThreadId};
use sqlx::pool::PoolConnectionMetadata;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions, PgRow};
use sqlx::{Connection, Row};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::{StoreConfig, TenantScope};
use crate::connect::{self, run_uncancelled};
use crate::error::StoreError;
use crate::error::sqlstate;
use crate::row_security::{SessionState, in_tenant_transaction};
use crate::statement::Statement;

/// After this idle time a connection is probed before use, because its other end may have vanished
/// silently.
const IDLE_BEFORE_PROBE: Duration = Duration::from_secs(30);
/// How long a statement waits for a connection. With this and the statement timeout, a caller
/// learns within nine seconds that the server does not answer.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum number of concurrent statements of [`Store::wide`].
const WIDE_STATEMENTS: usize = 2;
/// How long such a statement waits for others.
const WIDE_TIMEOUT: Duration = Duration::from_secs(3);

/// How long a probe may take. The next statement must not wait for each session of a vanished host.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// The minimum time between two records of the same failure. While the state of a server does not
/// change, each new session fails in the same way.
const BETWEEN_NOTES: Duration = Duration::from_secs(1);

/// The last time at which a failure was found that may affect other sessions.
#[derive(Debug, Default)]
struct LastFound(Mutex<Option<Instant>>);

impl LastFound {
    fn note(&self) {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.is_none_or(|noted| noted.elapsed() >= BETWEEN_NOTES) {
            *noted = Some(Instant::now());
        }
    }

    /// True if the failure was last found within this time.
    fn is_within(&self, time: Duration) -> bool {
        let noted = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.is_some_and(|noted| time >= noted.elapsed())
    }
}

/// Failures of single sessions that show the state of others in the pool.
#[derive(Debug, Default)]
struct SessionFailures {
    /// A session was read-only. After a switchover the sessions opened at the old primary stay
    /// there, even if its name now leads to the new one. They answer only reads, with old data.
    read_only: LastFound,
    /// A session did not answer at all. When a host vanishes silently, or the network to it does,
    /// no session opened there answers.
    silent: LastFound,
}

impl SessionFailures {
    /// True if a session with this metadata may have such a failure, so that it is closed.
    fn may_concern(&self, meta: &PoolConnectionMetadata) -> bool {
        self.read_only.is_within(meta.age) || self.silent.is_within(meta.idle_for)
    }
}

/// The handle for reads and leases, over a small pool. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store {
    pool: PgPool,
    failures: Arc<SessionFailures>,
    config: Arc<StoreConfig>,
    /// The scope of statements; `None`: the scope of the session.
    scope: Option<TenantScope>,
    prices: Option<Arc<PriceTable>>,
    wide_statements: Arc<Semaphore>,
    is_wide: bool,
}

impl Store {
    /// Waits until Postgres is reachable. Fails only for causes that waiting does not remove: a
    /// wrong URL, user or password.
    pub async fn connect(config: &StoreConfig) -> Result<Self, StoreError> {
        let options = connect::session_options(config)?;
        let first = connect::wait_for_server(&options, config).await?;
        // An error here does not matter: this connection has done nothing.
        first.close().await.ok();
        let failures = Arc::new(SessionFailures::default());
        Ok(Self {
            pool: pool(config, options, &failures),
            failures,
            config: Arc::new(config.clone()),
            scope: None,
            prices: None,
            wide_statements: Arc::new(Semaphore::new(WIDE_STATEMENTS)),
            is_wide: false,
        })
    }

    /// The same database in the scope of a tenant; `None`: the default tenant. Every statement is
    /// its own transaction, in which row-level security hides other rows and refuses to write them.
    /// Statements of a tenant marked as erased fail with [`StoreError::TenantErased`].
    #[must_use]
    pub fn for_tenant(&self, tenant: Option<Tenant>) -> Self {
        Self { scope: Some(TenantScope::Tenant(tenant)), ..self.clone() }
    }

    /// The same database with the prices of model tokens.
    #[must_use]
    pub fn with_prices(&self, prices: Option<Arc<PriceTable>>) -> Self {
        Self { prices, ..self.clone() }
    }

    /// The prices of model tokens, if configured.
    pub fn prices(&self) -> Option<&PriceTable> {
        self.prices.as_deref()
    }

    /// The same database for statements that may read many rows. Two of them run at a time, so that
    /// other statements still find connections. A statement that has waited for three seconds fails
    /// with [`StoreError::Busy`].
    #[must_use]
    pub fn wide(&self) -> Self {
        Self { is_wide: true, ..self.clone() }
    }

    /// The same database without a tenant scope, for operations on the whole installation.
    #[must_use]
    pub fn unscoped(&self) -> Self {
        let scope = (self.config.tenant_scope != TenantScope::All).then_some(TenantScope::All);
        Self { scope, ..self.clone() }
    }

    /// The same database for reads that gateways need of the installation: the number of
    /// partitions, keys of tickets, and API keys of all tenants.
    #[must_use]
    pub fn of_installation(&self) -> Self {
        Self { scope: Some(TenantScope::Installation), ..self.clone() }
    }

    /// This database with the scope and the prices of another handle.
    pub(crate) fn seeing_as(&self, other: &Self) -> Self {
        let (scope, prices) = (other.scope.clone(), other.prices.clone());
        Self { scope, prices, is_wide: other.is_wide, ..self.clone() }
    }

    /// The same database over a pool of one connection with another limit for statements.
    pub(crate) fn with_own_connection(&self, statement_timeout: Duration) -> Result<Self, StoreError> {
        let config =
            StoreConfig { read_connections: 1, statement_timeout, ..StoreConfig::clone(&self.config) };
        let options = connect::session_options(&config)?;
        let failures = Arc::new(SessionFailures::default());
        let pool = pool(&config, options, &failures);
        Ok(Self { pool, failures, config: Arc::new(config), ..self.clone() })
    }

    pub(crate) fn config(&self) -> &StoreConfig {
        &self.config
    }

    /// The setting of the tenant scope; `None`: everything is visible.
    pub(crate) fn tenant_setting(&self) -> Option<String> {
        let scope = self.scope.as_ref().unwrap_or(&self.config.tenant_scope);
        (*scope != TenantScope::All).then(|| scope.setting())
    }

    /// True if the role bypasses row-level security, as superusers do. Then only the gateway's own
    /// checks separate tenants.
    pub async fn bypasses_rls(&self) -> Result<bool, StoreError> {
        let sql = "SELECT rolsuper OR rolbypassrls AS passes FROM pg_roles WHERE rolname = current_user";
        let rows = self.rows(sqlx::query(sql)).await?;
        let passes = rows.first().map(|row| row.try_get("passes")).transpose()?;
        Ok(passes.unwrap_or(false))
    }

    /// Succeeds when Postgres answers.
    pub async fn ping(&self) -> Result<(), StoreError> {
        self.rows(sqlx::query("SELECT 1")).await.map(drop)
    }

    /// The number of partitions of the database; `None` before the first [`crate::migrate()`].
    pub async fn partition_count(&self) -> Result<Option<PartitionCount>, StoreError> {
        match self.of_installation().rows(sqlx::query("SELECT partitions FROM installation")).await {
            Ok(rows) => rows.first().map(count_of).transpose(),
            Err(StoreError::Statement(sqlx::Error::Database(error)))
                if sqlstate(error.as_ref()) == "42P01" =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The id of the installation, which its streams also have.
    pub async fn installation_id(&self) -> Result<String, StoreError> {
        // Uses a scope that gateways have as well.
        let rows =
            self.of_installation().rows(sqlx::query("SELECT installation_id FROM installation")).await?;
        let row = rows.first().ok_or_else(|| StoreError::Row("the database is not migrated".to_owned()))?;
        Ok(row.try_get("installation_id")?)
    }

    /// Gives the installation another id. Used when its database is a copy that runs next to the
    /// original.
    pub async fn renew_installation_id(&self) -> Result<(), StoreError> {
        let statement = "UPDATE installation SET installation_id = gen_random_uuid()::text RETURNING true";
        self.rows(sqlx::query(statement)).await.map(drop)
    }

    /// Fails with [`StoreError::PartitionCount`] when the database has another number of
    /// partitions, and with [`StoreError::PartitionsChanging`] while the number is being changed.
    pub async fn check_partition_count(&self, wanted: PartitionCount) -> Result<(), StoreError> {
        if let Some(change) = self.partition_change().await? {
            return Err(change.refusal());
        }
        match self.partition_count().await? {
            Some(stored) => StoreError::check_count(stored, wanted),
            None => Err(StoreError::Row("the database is not migrated".to_owned())),
        }
    }

    /// Creates the thread unless it exists or was erased; returns true if it was created.
    pub async fn create_thread(&self, thread: &ThreadId) -> Result<bool, StoreError> {
        let statement = sqlx::query(
            "INSERT INTO threads (bucket, thread_id)
             SELECT $1, $2
             WHERE NOT EXISTS (SELECT FROM erased_threads WHERE bucket = $1 AND thread_id = $2 AND recreated_at IS NULL)
             ON CONFLICT DO NOTHING RETURNING true",
        );
        let bucket = thread.bucket().get() as i16;
        Ok(!self.rows(statement.bind(bucket).bind(thread.as_str())).await?.is_empty())
    }

    /// Closes the pool after the statements in flight have ended.
    pub async fn close(&self) {
        self.pool.close().await;
    }

    /// Runs one statement to its end, in its own task, and returns its rows.
    pub(crate) async fn rows(&self, statement: Statement) -> Result<Vec<PgRow>, StoreError> {
        let (pool, limit, scope) = (self.pool.clone(), self.config.answer_timeout(), self.scope.clone());
        let turn = if self.is_wide { Some(Box::pin(self.wide_turn()).await?) } else { None };
        // The future is boxed: otherwise it would enlarge every future that may call the store,
        // above all the futures of requests.
        let answering = Box::pin(async move {
            // Held until the statement ends, even if its caller is dropped.
            let _turn = turn;
            answer(&pool, statement, limit, scope).await
        });
        let answered = run_uncancelled(answering).await.unwrap_or(Err(StoreError::Stopping));
        match &answered {
            Err(StoreError::TimedOut) => self.failures.silent.note(),
            Err(error) if error.is_read_only() => self.failures.read_only.note(),
            Err(_) | Ok(_) => {}
        }
        answered
    }

    async fn wide_turn(&self) -> Result<OwnedSemaphorePermit, StoreError> {
        let turn = Arc::clone(&self.wide_statements).acquire_owned();
        match tokio::time::timeout(WIDE_TIMEOUT, turn).await {
            Ok(Ok(turn)) => Ok(turn),
            Ok(Err(_)) => Err(StoreError::Stopping),
            Err(_) => Err(StoreError::Busy),
        }
    }
}

fn pool(config: &StoreConfig, options: PgConnectOptions, failures: &Arc<SessionFailures>) -> PgPool {
    let known = Arc::clone(failures);
    PgPoolOptions::new()
        .max_connections(config.read_connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .test_before_acquire(false)
        .before_acquire(move |connection, meta| {
            let known = Arc::clone(&known);
            Box::pin(async move {
                Ok(!known.may_concern(&meta)
                    && (meta.idle_for < IDLE_BEFORE_PROBE || answers(connection, &known).await))
            })
        })
        .connect_lazy_with(options)
}

/// True if a session answers promptly after a long idle time.
async fn answers(connection: &mut PgConnection, failures: &SessionFailures) -> bool {
    match tokio::time::timeout(PROBE_TIMEOUT, connection.ping()).await {
        Ok(answered) => answered.is_ok(),
        Err(_) => {
            failures.silent.note();
            false
        }
    }
}

async fn answer(
    pool: &PgPool,
    statement: Statement,
    limit: Duration,
    scope: Option<TenantScope>,
) -> Result<Vec<PgRow>, StoreError> {
    let mut connection = pool.acquire().await.map_err(StoreError::of_connect)?;
    let answered = async {
        match &scope {
            None => SessionState::Clean(statement.fetch_all(&mut *connection).await),
            Some(scope) => in_tenant_transaction(&mut connection, statement, scope).await,
        }
    };
    match tokio::time::timeout(limit, answered).await {
        Ok(SessionState::Clean(rows)) => Ok(rows?),
        Ok(SessionState::TenantErased) => Err(StoreError::TenantErased),
        Ok(SessionState::Unknown(error)) => {
            // The session is closed, because its transaction may still be open, with its scope.
            drop(connection.detach());
            Err(error.into())
        }
        Err(_) => {
            // The session is closed. The answer of this statement may still arrive, and must not be
            // taken for the answer of another one.
            drop(connection.detach());
            Err(StoreError::TimedOut)
        }
    }
}

/// The number of partitions in a row of `installation`.
pub(crate) fn count_of(row: &PgRow) -> Result<PartitionCount, StoreError> {
    let count: i32 = row.try_get("partitions")?;
    PartitionCount::new(count.unsigned_abs().into()).map_err(|error| StoreError::Row(error.to_string()))
}
