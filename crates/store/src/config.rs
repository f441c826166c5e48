//! Address of Postgres, timeouts and the tenant scope of sessions.

use std::fmt;
use std::time::Duration;

use model::Tenant;

/// Connection settings. The defaults suit everything but the URL.
#[derive(Clone)]
pub struct StoreConfig {
    /// `postgres://user:password@host:port/database`.
    pub url: String,
    /// Connections for reads and leases. Each [`crate::CommitWriter`] holds one more.
    pub read_connections: u32,
    /// The server cancels a statement after this time.
    pub statement_timeout: Duration,
    /// The server stops waiting for a lock after this time.
    pub lock_timeout: Duration,
    /// The scope of statements unless [`crate::Store::for_tenant`] or [`crate::Store::unscoped`]
    /// sets another.
    pub tenant_scope: TenantScope,
}

/// The rows that a statement can read and write, enforced by Postgres row-level security.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenantScope {
    /// All rows: for workers and operators. A role without the right to see all tenants sees
    /// nothing.
    All,
    /// The rows about the installation itself that gateways need, and API keys by their ids.
    Installation,
    /// Rows of one tenant; `None`: the default tenant.
    Tenant(Option<Tenant>),
    Nothing,
}

impl TenantScope {
    /// The value of the setting `antiphon.tenant`.
    pub(crate) fn setting(&self) -> String {
        match self {
            Self::All => "*".to_owned(),
            Self::Installation => "@".to_owned(),
            Self::Tenant(None) => "-".to_owned(),
            Self::Tenant(Some(tenant)) => tenant.to_string(),
            Self::Nothing => String::new(),
        }
    }
}

impl StoreConfig {
    /// The defaults: 8 connections for reads, 5 s per statement, 2 s for locks, and all tenants
    /// visible.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            read_connections: 8,
            statement_timeout: Duration::from_secs(5),
            lock_timeout: Duration::from_secs(2),
            tenant_scope: TenantScope::All,
        }
    }

    /// How long a caller waits for the answer to a statement. It is longer than the server's own
    /// timeout, so when it expires, the server or the network is down.
    pub(crate) fn answer_timeout(&self) -> Duration {
        self.statement_timeout + Duration::from_secs(1)
    }
}

/// Omits the URL, which may hold a password.
impl fmt::Debug for StoreConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreConfig")
            .field("read_connections", &self.read_connections)
            .field("statement_timeout", &self.statement_timeout)
            .field("lock_timeout", &self.lock_timeout)
            .finish_non_exhaustive()
    }
}
