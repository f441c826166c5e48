//! Configuration of a server.

use std::io;
use std::net::SocketAddr;

use crate::auth::authenticator::Authenticator;
use crate::auth::config::{AccessConfig, TokenError};
use crate::transport::limits::HttpLimits;
use crate::transport::trusted_proxies::TrustedProxies;

/// Configuration of a role's HTTP server.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// Accepted credentials and limits of tenants.
    pub access: AccessConfig,
    /// Listen address; port 0 takes any free port.
    pub addr: SocketAddr,
    /// Name of the variable that sets the address, for error messages.
    pub addr_variable: &'static str,
    /// Limits of connections.
    pub limits: HttpLimits,
    /// Proxies whose `X-Forwarded-For` is trusted.
    pub trusted_proxies: TrustedProxies,
}

impl HttpConfig {
    /// A server at `addr` with the default limits.
    pub fn new(addr: SocketAddr, access: AccessConfig) -> Self {
        Self {
            access,
            addr,
            addr_variable: "ANTIPHON_HTTP_ADDR",
            limits: HttpLimits::default(),
            trusted_proxies: TrustedProxies::default(),
        }
    }

    /// Checks for errors that waiting cannot cure, before the server waits for anything.
    ///
    /// # Errors
    /// Any client that reaches the address would have all permissions, or the settings of tokens
    /// are invalid.
    pub fn check(&self) -> Result<(), HttpServerError> {
        if self.access.insecure && !self.addr.ip().is_loopback() {
            return Err(HttpServerError::Insecure { addr: self.addr, variable: self.addr_variable });
        }
        Ok(Authenticator::new(&self.access).map(drop)?)
    }
}

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum HttpServerError {
    /// The address cannot be listened on.
    #[error("cannot listen on {addr} ({variable}): {source}")]
    Bind {
        /// The listen address.
        addr: SocketAddr,
        /// The variable that sets it.
        variable: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// Every client that reaches the address would have all permissions.
    #[error(
        "--insecure (ANTIPHON_INSECURE) is for loopback only, and {addr} ({variable}) is not: make keys with `antiphon keys create-first`"
    )]
    Insecure {
        /// The listen address.
        addr: SocketAddr,
        /// The variable that sets it.
        variable: &'static str,
    },
    /// Tokens could not be checked.
    #[error(transparent)]
    Tokens(#[from] TokenError),
}
