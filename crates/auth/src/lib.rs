//! Authentication and authorization rules, without I/O.
//!
//! A request shows a credential, and checking it gives a [`Principal`], which says in whose name and for which tenant
//! the request is served and [what it may do](Permission):
//!
//! | credential | looks like | entry |
//! |---|---|---|
//! | API key | `ant_<id>_<secret>` | [`ApiKey`], made by [`NewKey`] |
//! | token of an identity provider | a JWT | [`jwt::verify`], with keys that [`jwt::JwksRefresh`] keeps fresh |
//! | ticket for one thread's stream | `tkt_<payload>.<mac>` | [`ticket::check`], made by [`ticket::issue`] |
//! | none, where none is asked for | | [`Principal::local`] |
//!
//! Beside that, how much a tenant may request ([`TenantRateLimiter`]), and which pages of other origins may read answers
//! ([`CorsRules`]).
//!
//! Whatever is not exactly right is refused. What a client sees is the same for all reasons; the reasons are for
//! logs, and no message or `Debug` form of a value here shows a secret.
//!
//! Nothing here knows a clock, a random source, a socket or a table: the time and random bytes come in as arguments.

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
pub use key::{ApiKey, ApiKeyError, NewKey, StoredKey};
pub use key_id::KeyId;
pub use limits::{
    InvalidRate, Limit, LimitExceeded, Rate, RequestClass, StreamPermit, TenantLimits, TenantRateLimiter,
    TokenBucket,
};
pub use permission::{AccessRole, InvalidScope, Permission, Permissions};
pub use principal::{CredentialSource, Principal};
pub use tenant::TenantName;
