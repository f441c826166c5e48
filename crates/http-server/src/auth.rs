//! Authentication of requests: API keys, JWTs, tickets, and the checks of Host and Origin. Contains
//! no routes or feeds.

pub(crate) mod api_key_cache;
pub mod authenticator;
pub(crate) mod authority;
pub mod config;
pub mod cors;
pub mod erased_tenants;
pub mod error;
pub mod host_check;
pub(crate) mod jwks;
pub mod quota;
