//! How to reach Postgres, and for how long to wait for it.

use std::fmt;
use std::time::Duration;

use model::Tenant;

/// Where the database is and what its sessions may take. The defaults suit everything but the URL.
#[derive(Clone)]
pub struct StoreConfig {
    /// `postgres://user:password@host:port/database`.
    pub url: String,
    /// Connections for reads and leases. Each [`crate::CommitWriter`] holds one more.
    pub read_connections: u32,
    /// The server gives a statement up after this.
    pub statement_timeout: Duration,
    /// The server gives waiting for a lock up after this.
    pub lock_timeout: Duration,
    /// What statements see unless [`crate::Store::for_tenant`] or [`crate::Store::unscoped`] sets another scope.
    pub tenant_scope: TenantScope,
}

/// Which rows a statement sees and may write, by Postgres' row-level security.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenantScope {
    /// Everything: for workers and operators. A role that may not see all tenants sees nothing.
    All,
    /// What gateways need of the installation itself, and API keys by their ids.
    Installation,
    /// What belongs to a tenant; `None`: to the default tenant.
    Tenant(Option<Tenant>),
    /// Nothing.
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
    /// The defaults: 8 connections for reads, statements of 5 s, locks of 2 s, and everything is seen.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            read_connections: 8,
            statement_timeout: Duration::from_secs(5),
            lock_timeout: Duration::from_secs(2),
            tenant_scope: TenantScope::All,
        }
    }

    /// How long a caller waits for a statement's answer: longer than the server takes to give it up, so that
    /// running into it means that the server or the way to it is gone.
    pub(crate) fn answer_timeout(&self) -> Duration {
        self.statement_timeout + Duration::from_secs(1)
    }
}

/// Without the URL, which may hold a password.
impl fmt::Debug for StoreConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreConfig")
            .field("read_connections", &self.read_connections)
            .field("statement_timeout", &self.statement_timeout)
            .field("lock_timeout", &self.lock_timeout)
            .finish_non_exhaustive()
    }
}
