//! Options for authentication and for the limits of tenants.

use std::path::PathBuf;

use auth::jwt::{JwtAlgorithm, JwtRules};
use auth::{CorsRules, Rate, TenantLimits};
use clap::Args;
use http_server::{AccessConfig, TokenConfig, TokenKeys};

use crate::exit::ExitError;

/// Size of a burst, as seconds of the rate.
const BURST_SECONDS: u32 = 2;

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Authentication and limits of tenants")]
pub(crate) struct AuthOptions {
    /// Whether requests need no authentication and tenants have no limits: every client can do
    /// everything. On loopback only.
    #[arg(long, env = "ANTIPHON_INSECURE")]
    insecure: bool,
    /// Issuer whose tokens (JWT) are accepted, in addition to API keys. Needs their audience, and
    /// one of the three sources of signing keys.
    #[arg(long, env = "ANTIPHON_JWT_ISSUER", requires = "jwt_audience", requires = "keys")]
    jwt_issuer: Option<String>,
    /// Audience that tokens must have.
    #[arg(long, env = "ANTIPHON_JWT_AUDIENCE", requires = "jwt_issuer")]
    jwt_audience: Option<String>,
    /// URL of the issuer's keys (JWKS), with https.
    #[arg(long, env = "ANTIPHON_JWT_JWKS_URL", group = "keys", requires = "jwt_issuer")]
    jwt_jwks_url: Option<String>,
    /// Path of a file with the issuer's keys (JWKS), which is read again every ten minutes.
    #[arg(long, env = "ANTIPHON_JWT_JWKS_FILE", group = "keys", requires = "jwt_issuer")]
    jwt_jwks_file: Option<PathBuf>,
    /// Path of a file with a secret of at least 32 bytes, with which tokens are signed (HS256).
    #[arg(long, env = "ANTIPHON_JWT_SECRET_FILE", group = "keys", requires = "jwt_issuer")]
    jwt_secret_file: Option<PathBuf>,
    /// Algorithms with which tokens can be signed: RS256, PS256, ES256, EdDSA. With a secret it is
    /// always HS256.
    #[arg(
        long,
        env = "ANTIPHON_JWT_ALGORITHMS",
        value_delimiter = ',',
        default_value = "RS256,PS256,ES256,EdDSA",
        value_parser = algorithm
    )]
    jwt_algorithms: Vec<JwtAlgorithm>,
    /// Name of the claim with the tenant.
    #[arg(long, env = "ANTIPHON_JWT_TENANT_CLAIM", default_value = "tenant")]
    jwt_tenant_claim: String,
    /// Whether a token without a tenant belongs to the default tenant; if not, it is refused.
    #[arg(long, env = "ANTIPHON_JWT_DEFAULT_TENANT")]
    jwt_default_tenant: bool,
    /// Name of the claim with the role: viewer, operator or admin.
    #[arg(long, env = "ANTIPHON_JWT_ROLE_CLAIM", default_value = "role")]
    jwt_role_claim: String,
    /// Name of the claim with the scopes that restrict the role; if empty, the role alone decides.
    #[arg(long, env = "ANTIPHON_JWT_SCOPE_CLAIM", default_value = "scope")]
    jwt_scope_claim: String,
    /// Maximum age in seconds of a token, regardless of its own expiry.
    #[arg(long, env = "ANTIPHON_JWT_MAX_AGE_SECONDS", default_value_t = 86_400)]
    jwt_max_age_seconds: u32,
    /// Origins whose pages can read responses, separated by commas, for example
    /// https://app.example; `*` for all.
    #[arg(long, env = "ANTIPHON_CORS_ORIGINS", value_delimiter = ',')]
    cors_origins: Vec<String>,
    /// Maximum number of requests per second of one tenant that change nothing, at one gateway; 0
    /// for no limit.
    #[arg(long, env = "ANTIPHON_TENANT_MAX_READS_PER_SECOND", default_value_t = 500)]
    tenant_max_reads_per_second: u32,
    /// Maximum number of inputs, tasks and acts per second of one tenant, at one gateway; 0 for no
    /// limit.
    #[arg(long, env = "ANTIPHON_TENANT_MAX_WRITES_PER_SECOND", default_value_t = 100)]
    tenant_max_writes_per_second: u32,
    /// Maximum number of open event streams of one tenant, at one gateway; 0 for no limit.
    #[arg(long, env = "ANTIPHON_TENANT_MAX_STREAMS", default_value_t = 10_000)]
    tenant_max_streams: u32,
}

fn algorithm(text: &str) -> Result<JwtAlgorithm, String> {
    let known = JwtAlgorithm::of_name(text.trim()).filter(|it| *it != JwtAlgorithm::Hs256);
    known.ok_or_else(|| "it must be RS256, PS256, ES256 or EdDSA".to_owned())
}

/// Editors end a file with a line break that is not part of the secret. Only that one is dropped,
/// because the bytes before it may have any value.
fn without_end_of_line(secret: &[u8]) -> &[u8] {
    let Some(line) = secret.strip_suffix(b"\n") else { return secret };
    line.strip_suffix(b"\r").unwrap_or(line)
}

impl AuthOptions {
    /// The origins whose pages may read responses, unchanged from the command line.
    pub(super) fn cors_origins(&self) -> &[String] {
        &self.cors_origins
    }

    /// The gateway's access configuration.
    ///
    /// # Errors
    /// An origin that no browser sends, or a secret that cannot be read.
    pub(crate) async fn config(&self) -> Result<AccessConfig, ExitError> {
        let origins =
            self.cors_origins.iter().map(|origin| origin.trim()).filter(|origin| !origin.is_empty());
        let cors = CorsRules::parse(origins)
            .map_err(|error| ExitError::Configuration(format!("ANTIPHON_CORS_ORIGINS: {error}")))?;
        let rate = |per_second: u32| Rate::new(per_second, per_second.saturating_mul(BURST_SECONDS)).ok();
        let limits = TenantLimits {
            reads: rate(self.tenant_max_reads_per_second),
            writes: rate(self.tenant_max_writes_per_second),
            streams: Some(self.tenant_max_streams).filter(|streams| *streams > 0),
        };
        let tokens = match (&self.jwt_issuer, &self.jwt_audience) {
            (Some(issuer), Some(audience)) => Some(self.tokens(issuer, audience).await?),
            _ => None,
        };
        Ok(AccessConfig { insecure: self.insecure, tokens, cors, limits })
    }

    async fn tokens(&self, issuer: &str, audience: &str) -> Result<TokenConfig, ExitError> {
        let mut rules = JwtRules::new(issuer, audience);
        rules.algorithms.clone_from(&self.jwt_algorithms);
        rules.tenant_claim.clone_from(&self.jwt_tenant_claim);
        rules.role_claim.clone_from(&self.jwt_role_claim);
        rules.scope_claim = Some(self.jwt_scope_claim.clone()).filter(|claim| !claim.is_empty());
        rules.default_tenant_allowed = self.jwt_default_tenant;
        rules.max_age_s = self.jwt_max_age_seconds;
        let keys = match (&self.jwt_jwks_url, &self.jwt_jwks_file, &self.jwt_secret_file) {
            (Some(url), _, _) => TokenKeys::Url(url.clone()),
            (_, Some(file), _) => TokenKeys::File(file.clone()),
            (_, _, Some(file)) => {
                rules.algorithms = vec![JwtAlgorithm::Hs256];
                let read = tokio::fs::read(file).await;
                let unread = |error| format!("ANTIPHON_JWT_SECRET_FILE {}: {error}", file.display());
                let secret = read.map_err(|error| ExitError::Configuration(unread(error)))?;
                TokenKeys::Secret(without_end_of_line(&secret).to_vec())
            }
            (None, None, None) => {
                let needed = "ANTIPHON_JWT_ISSUER needs ANTIPHON_JWT_JWKS_URL, _JWKS_FILE or _SECRET_FILE";
                return Err(ExitError::Configuration(needed.to_owned()));
            }
        };
        Ok(TokenConfig { rules, keys })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_loses_the_end_of_its_line_and_nothing_else() {
        for (file, secret) in
            [("a", "a"), ("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), ("a \t", "a \t"), ("a\r", "a\r")]
        {
            assert_eq!(without_end_of_line(file.as_bytes()), secret.as_bytes(), "{file:?}");
        }
    }
}
