//! Authentication of requests: API keys, JWTs, tickets, and the checks of Host and Origin. Contains
//! no routes or feeds.

pub(crate) mod api_key_cache;
pub(crate) mod authenticator;
pub(crate) mod authority;
pub(crate) mod config;
pub(crate) mod cors;
pub(crate) mod erased_tenants;
pub(crate) mod error;
pub(crate) mod host_check;
pub(crate) mod jwks;
pub(crate) mod quota;
