//! Settings of authentication.

use std::path::PathBuf;

use auth::jwt::JwtRules;
use auth::{CorsRules, TenantLimits};

/// Who may use a gateway, and how much.
#[derive(Debug, Clone)]
pub struct AccessConfig {
    /// Authentication is disabled: every client is an administrator of the default tenant. For loopback only.
    pub insecure: bool,
    /// Tokens of an identity provider, beside API keys.
    pub tokens: Option<TokenConfig>,
    /// Pages of which other origins may read answers.
    pub cors: CorsRules,
    /// How much a tenant may ask of one gateway.
    pub limits: TenantLimits,
}

/// Which tokens are taken.
#[derive(Debug, Clone)]
pub struct TokenConfig {
    /// What they must say.
    pub rules: JwtRules,
    /// With what they are signed.
    pub keys: TokenKeys,
}

/// Where the keys of an identity provider are.
#[derive(Clone)]
pub enum TokenKeys {
    /// A JWKS document at an address, fetched again every ten minutes, and when a token names a key that is not in it.
    Url(String),
    /// The same in a file.
    File(PathBuf),
    /// A secret that both sides know, of at least 32 bytes: HS256.
    Secret(Vec<u8>),
}

/// Secrets do not belong into logs.
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
    /// No request is authenticated, and nothing is limited. For loopback only.
    pub fn insecure() -> Self {
        Self { insecure: true, ..Self::keys_only() }
    }

    /// API keys, no pages of other origins, no limits.
    pub fn keys_only() -> Self {
        // An empty list has nothing wrong in it.
        #[allow(clippy::expect_used, reason = "there is nothing that could be refused")]
        let cors = CorsRules::parse([]).expect("no origins");
        Self { insecure: false, tokens: None, cors, limits: TenantLimits::default() }
    }
}

/// Why a gateway cannot check tokens.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The secret is no good.
    #[error("the secret of tokens: {0}")]
    Secret(#[from] auth::jwt::InvalidJwks),
    /// The address of the keys is none.
    #[error("the address of the JWKS must begin with https:// (or http:// on loopback)")]
    Address,
    /// The file of the keys is not there, or has none in it.
    #[error("the JWKS file {path:?} cannot be used: {why}")]
    File {
        /// Where it should be.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// No HTTP client.
    #[error(transparent)]
    Client(#[from] runtime::http::ClientError),
}
