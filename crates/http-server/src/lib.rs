//! The HTTP server of a role: connections, credentials, limits of clients and tenants, refusals.
//!
//! Entry: [`HttpServer`]. A role binds its address, makes its routes, and serves them until it is
//! to stop. [`HttpServer::serve`] leaves authorization to the routes;
//! [`HttpServer::serve_role`] puts it before them, so that every request carries an
//! [`AuthenticatedCaller`].
//!
//! Invariants: nothing here knows an operation, a path of the API, a feed or a subject. A response
//! that is cut never ends cleanly. No request is read further before its `Host` and `Origin` are
//! checked.

pub mod auth;
mod config;
pub mod error;
pub mod extract;
mod layers;
pub mod metrics;
mod protected_resource;
mod refusals;
mod role_server;
mod server;
pub mod transport;

pub use crate::auth::authenticator::{new_key, new_key_of};
pub use crate::auth::config::{AccessConfig, TokenConfig, TokenError, TokenKeys};
pub use crate::config::{HttpConfig, HttpServerError};
pub use crate::layers::with_layers;
pub use crate::metrics::METRICS;
pub use crate::protected_resource::ProtectedResource;
pub use crate::refusals::refusal_at;
pub use crate::role_server::{AuthenticatedCaller, AuthenticationError, CallerAuthenticator, CallerError};
pub use crate::server::HttpServer;
pub use crate::transport::limits::HttpLimits;
pub use crate::transport::trusted_proxies::{InvalidNetwork, TrustedProxies};
