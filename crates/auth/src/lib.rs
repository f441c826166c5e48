//! Authentication and authorization rules, without I/O.
//!
//! A request presents a credential. Checking it gives a [`Principal`]: the actor, the tenant and
//! [its permissions](Permission).
//!
//! | credential | looks like | entry |
//! |---|---|---|
//! | API key | `ant_<id>_<secret>` | [`ApiKey`], made by [`NewKey`] |
//! | token of an identity provider | a JWT | [`jwt::verify`], with keys that [`jwt::JwksRefresh`] keeps fresh |
//! | ticket for one thread's stream | `tkt_<payload>.<mac>` | [`ticket::check`], made by [`ticket::issue`] |
//! | none, if authentication is disabled | | [`Principal::local`] |
//!
//! Further rules: how much a tenant may request ([`TenantRateLimiter`]), and which pages of other
//! origins may read responses ([`CorsRules`]).
//!
//! Anything that is not exactly right is refused. Clients see the same response for all reasons;
//! the reasons are for logs. No message or `Debug` form of a value here shows a secret.
//!
//! This crate uses no clock, random source, socket or table: time and random bytes are arguments.

mod cors;
pub mod jwt;
mod key;
mod key_id;
mod limits;
mod permission;
mod principal;
mod tenant;
pub mod ticket;

pub use cors::{CorsRules, HeaderPair, InvalidOrigin};
pub use key::{ApiKey, ApiKeyError, NewKey, PreviousSecret, StoredKey};
pub use key_id::{KeyId, PresentedKey, SecretMark};
pub use limits::{
    InvalidRate, Limit, LimitExceeded, Rate, RequestClass, StreamPermit, TenantLimits, TenantRateLimiter,
    TokenBucket,
};
pub use permission::{AccessRole, InvalidScope, Permission, Permissions};
pub use principal::{CredentialSource, Principal};
pub use tenant::TenantName;
