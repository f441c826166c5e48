//! Settings of authentication.

use std::path::PathBuf;

use auth::jwt::JwtRules;
use auth::{CorsRules, TenantLimits};

/// Credentials that a gateway accepts, and the limits of tenants.
#[derive(Debug, Clone)]
pub struct AccessConfig {
    /// Authentication is disabled: every client is an administrator of the default tenant. For
    /// loopback only.
    pub insecure: bool,
    /// Tokens of an identity provider, accepted besides API keys.
    pub tokens: Option<TokenConfig>,
    /// Origins whose pages may read responses.
    pub cors: CorsRules,
    /// Limits of one tenant on one gateway.
    pub limits: TenantLimits,
}

/// Which tokens are accepted.
#[derive(Debug, Clone)]
pub struct TokenConfig {
    /// Claims that a token must have.
    pub rules: JwtRules,
    /// Keys that verify their signatures.
    pub keys: TokenKeys,
}

/// Source of an identity provider's keys.
#[derive(Clone)]
pub enum TokenKeys {
    /// A JWKS document at a URL, fetched again every ten minutes, and when a token names a key that
    /// is not in it.
    Url(String),
    /// A JWKS document in a file.
    File(PathBuf),
    /// A shared secret of at least 32 bytes: HS256.
    Secret(Vec<u8>),
}

/// Keeps secrets out of logs.
impl std::fmt::Debug for TokenKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Url(url) => f.debug_tuple("Url").field(url).finish(),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Secret(_) => f.write_str("Secret"),
        }
    }
}

impl AccessConfig {
    /// No authentication and no limits. For loopback only.
    pub fn insecure() -> Self {
        Self { insecure: true, ..Self::keys_only() }
    }

    /// API keys only, no pages of other origins, no limits.
    pub fn keys_only() -> Self {
        // An empty list cannot be invalid.
        #[allow(clippy::expect_used, reason = "there is nothing that could be refused")]
        let cors = CorsRules::parse([]).expect("no origins");
        Self { insecure: false, tokens: None, cors, limits: TenantLimits::default() }
    }
}

/// Why a gateway cannot check tokens.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The secret is invalid.
    #[error("the secret of tokens: {0}")]
    Secret(#[from] auth::jwt::InvalidJwks),
    /// The URL of the keys is invalid.
    #[error("the address of the JWKS must begin with https:// (or http:// on loopback)")]
    Address,
    /// The key file is missing or has no usable key.
    #[error("the JWKS file {path:?} cannot be used: {why}")]
    File {
        /// The configured path.
        path: PathBuf,
        why: String,
    },
    /// No HTTP client could be made.
    #[error(transparent)]
    Client(#[from] runtime::http::ClientError),
}
