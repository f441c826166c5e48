//! Opens sessions, sets their options, and protects their work from cancellation.

use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use runtime::certificates::{check_authorities, check_client_certificate, refused_certificate};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, PgConnection, Row};

use crate::config::StoreConfig;
use crate::error::{Disposition, StoreError, is_of_pooler, refuses_login};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Maximum number of texts that a connection keeps prepared. All of the crate have about 240; a
/// connection that commits has the nine of `commit/statement.rs`.
const PREPARED_STATEMENTS: usize = 256;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Settings of every session. They are sent with the first packet, so they cost no round trip.
pub(crate) fn options(config: &StoreConfig) -> Result<PgConnectOptions, StoreError> {
    // sqlx accepts any scheme, and would then wait for a server that is not Postgres.
    if !["postgres://", "postgresql://"].iter().any(|scheme| config.url.starts_with(scheme)) {
        let error = "it must start with postgres:// or postgresql://";
        return Err(StoreError::Url(sqlx::Error::Configuration(error.into())));
    }
    let base = PgConnectOptions::from_str(&config.url).map_err(StoreError::Url)?;
    check_tls_files(&base)?;
    Ok(base.application_name("antiphon").options([
        ("antiphon.tenant", config.tenant_scope.setting()),
        ("statement_timeout", millis(config.statement_timeout)),
        ("lock_timeout", millis(config.lock_timeout)),
        ("idle_in_transaction_session_timeout", "5000".to_owned()),
        // The locks of a client that vanished must be released: the server notices its absence
        // within about ten seconds.
        ("tcp_keepalives_idle", "5".to_owned()),
        ("tcp_keepalives_interval", "2".to_owned()),
        ("tcp_keepalives_count", "3".to_owned()),
        ("tcp_user_timeout", "10000".to_owned()),
    ]))
}

/// Checks that the TLS files exist. sqlx reads the files named in the URL with each connection, so
/// a missing file would look like an unreachable server.
fn check_tls_files(options: &PgConnectOptions) -> Result<(), StoreError> {
    let files = TlsFiles::of(options);
    let wrong = |error: runtime::certificates::CertificateError| StoreError::Tls(error.to_string());
    if let Some(root) = &files.root {
        check_authorities(Path::new(root)).map_err(wrong)?;
    }
    match (&files.certificate, &files.key) {
        (Some(certificate), Some(key)) => {
            check_client_certificate(Path::new(certificate), Path::new(key)).map_err(wrong)
        }
        (None, None) => Ok(()),
        (Some(_), None) => Err(StoreError::Tls("sslcert needs sslkey".to_owned())),
        (None, Some(_)) => Err(StoreError::Tls("sslkey needs sslcert".to_owned())),
    }
}

/// The TLS files named in the URL or in Postgres variables (`sslrootcert` and the like). Inline
/// certificates are not files.
#[derive(Default)]
struct TlsFiles {
    root: Option<String>,
    certificate: Option<String>,
    key: Option<String>,
}

impl TlsFiles {
    fn of(options: &PgConnectOptions) -> Self {
        let (mut files, mut is_used) = (Self::default(), true);
        for (name, value) in options.to_url_lossy().query_pairs() {
            // sqlx displays a file name with this prefix, and an inline certificate without it.
            let file = value.strip_prefix("file: ").map(str::to_owned);
            match name.as_ref() {
                "sslmode" => is_used = !matches!(value.as_ref(), "disable" | "allow"),
                "sslrootcert" => files.root = file,
                "sslcert" => files.certificate = file,
                "sslkey" => files.key = file,
                _ => {}
            }
        }
        if is_used { files } else { Self::default() }
    }
}

/// The TLS error behind a failed connection, if certificates or TLS settings are the cause, so that
/// waiting does not help.
fn wrong_tls(error: &sqlx::Error, options: &PgConnectOptions) -> Option<StoreError> {
    let source: &(dyn std::error::Error + 'static) = match error {
        sqlx::Error::Tls(source) => source.as_ref(),
        error => error,
    };
    let why = match (refused_certificate(source), error) {
        (Some(refused), _) => refused.describe(&match TlsFiles::of(options).root {
            Some(root) => format!("the authorities in {root}"),
            None => "the usual authorities, as sslrootcert names no file of others".to_owned(),
        }),
        (None, sqlx::Error::Tls(source)) => source.to_string(),
        (None, _) => return None,
    };
    Some(StoreError::Tls(format!("{}: {why}", options.get_host())))
}

impl StoreConfig {
    /// Checks that the URL and the files it names are usable.
    ///
    /// # Errors
    /// [`StoreError::Url`], [`StoreError::Tls`].
    pub fn check(&self) -> Result<(), StoreError> {
        options(self).map(drop)
    }
}

/// Additional settings for all sessions except those of migrations.
///
/// Every statement finds few rows by their keys and is prepared once. Planning costs more than
/// execution, and with a long array a custom plan may read whole tables. So the generic plan is
/// used.
///
/// The generic plan may be made while the tables are empty, when a sequential scan looks cheapest,
/// and it is kept until the next ANALYZE. With only index look-ups allowed, it is right from the
/// start.
///
/// The store has fewer texts than are kept prepared, so none is prepared twice on a connection.
pub(crate) fn session_options(config: &StoreConfig) -> Result<PgConnectOptions, StoreError> {
    Ok(options(config)?.statement_cache_capacity(PREPARED_STATEMENTS).options([
        ("plan_cache_mode", "force_generic_plan"),
        ("enable_seqscan", "off"),
        ("enable_hashjoin", "off"),
        ("enable_mergejoin", "off"),
        ("jit", "off"),
    ]))
}

/// Opens one connection within the timeout.
pub(crate) async fn open(options: &PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
    match tokio::time::timeout(CONNECT_TIMEOUT, options.connect()).await {
        Ok(opened) => opened,
        Err(_) => Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())),
    }
}

/// Waits until Postgres is reachable. Fails only for causes that waiting does not remove.
pub(crate) async fn wait(options: &PgConnectOptions) -> Result<PgConnection, StoreError> {
    let mut pause = FIRST_PAUSE;
    let mut is_logged = false;
    loop {
        match open(options).await {
            Ok(connection) => {
                if is_logged {
                    tracing::warn!("Postgres is there");
                }
                return Ok(connection);
            }
            Err(error) => match wrong_tls(&error, options) {
                Some(wrong) => return Err(wrong),
                None if !may_pass(&error) => return Err(StoreError::of_connect(error)),
                None if !is_logged => {
                    tracing::warn!(%error, host = options.get_host(), port = options.get_port(), "waiting for Postgres");
                    is_logged = true;
                }
                None => tracing::debug!(%error, "still waiting for Postgres"),
            },
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Waits for a connection to the server itself: see [`refuse_pooler`]. A connection that breaks
/// meanwhile is like a server that is away.
pub(crate) async fn wait_for_server(
    options: &PgConnectOptions,
    config: &StoreConfig,
) -> Result<PgConnection, StoreError> {
    loop {
        let mut first = wait(options).await?;
        match refuse_pooler(&mut first, options, config).await {
            Err(error) if error.disposition() == Disposition::Retry => {
                tracing::warn!(%error, "the connection to Postgres broke at the start, and is made again");
                tokio::time::sleep(FIRST_PAUSE).await;
            }
            checked => return checked.map(|()| first),
        }
    }
}

/// Fails when there is a pooler between this process and the server. Its signs: our settings did
/// not arrive, or two open connections share one session. Behind a pooler a statement would run in
/// the scope of another tenant or of none, and would find statements that others prepared.
async fn refuse_pooler(
    first: &mut PgConnection,
    options: &PgConnectOptions,
    config: &StoreConfig,
) -> Result<(), StoreError> {
    let (seen, session) = session(first).await?;
    if seen.as_deref() != Some(&config.tenant_scope.setting()) {
        return Err(StoreError::Pooler("settings of a session do not arrive".to_owned()));
    }
    let mut second = wait(options).await?;
    let (_, other) = self::session(&mut second).await?;
    second.close().await.ok();
    match session == other {
        true => Err(StoreError::Pooler("two connections have one session".to_owned())),
        false => Ok(()),
    }
}

/// The scope and the process id of a session. Uses a simple query, which is also answered by a
/// pooler that cannot prepare statements.
async fn session(connection: &mut PgConnection) -> Result<(Option<String>, i32), StoreError> {
    let sql = "SELECT current_setting('antiphon.tenant', true) AS seen, pg_backend_pid() AS session";
    let asked = sqlx::raw_sql(sql).fetch_one(connection);
    let row = tokio::time::timeout(CONNECT_TIMEOUT, asked).await.map_err(|_| StoreError::TimedOut)??;
    Ok((row.try_get("seen")?, row.try_get("session")?))
}

fn may_pass(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(error) => !refuses_login(error.as_ref()) && !is_of_pooler(error.as_ref()),
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::PoolTimedOut => true,
        _ => false,
    }
}

/// Runs database work to its end even if the caller's future is dropped. Returns `None` if the
/// process is stopping.
///
/// If a future of sqlx 0.9.0 is dropped during a round trip, it can return a session in an unknown
/// state to the pool.
pub(crate) async fn run_uncancelled<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    #[allow(
        clippy::disallowed_methods,
        reason = "the one place of this crate that spawns, bounded by timeouts but for migrations"
    )]
    let task = tokio::spawn(work);
    match task.await {
        Ok(outcome) => Some(outcome),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => None,
        },
    }
}

fn millis(duration: Duration) -> String {
    duration.as_millis().to_string()
}
