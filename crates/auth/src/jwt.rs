//! Tokens of an identity provider (RFC 7519), checked by the rules of RFC 8725.
//!
//! Entry point: [`verify`]. Claims of the token about its own verification are not trusted: the
//! settings list the algorithms, each key has its algorithm, and the caller passes the time.
//! `jsonwebtoken` checks the signature, with the cryptography of `ring`.

mod keys;
mod refresh;
mod signature;

use jsonwebtoken::{Algorithm, Header, Validation, errors::ErrorKind};
use model::Timestamp;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::{AccessRole, Permissions, Principal, TenantName, principal::CredentialSource};

pub use keys::{InvalidJwks, Jwks, SkippedKey};
pub use refresh::{JwksRefresh, RefreshReason};

/// Maximum bytes of a token.
const LONGEST_TOKEN: usize = 8 * 1024;
/// Maximum bytes of a key's name.
const LONGEST_KID: usize = 256;
/// Maximum bytes of a subject that is shown unchanged. With the prefix `jwt:` a name has at most
/// 128 bytes.
const LONGEST_SUBJECT: usize = 124;
/// Prefix of the replacement for a subject that cannot be shown.
const HASHED: &str = "sha256:";
/// The last second of the year 9999.
const LATEST_S: f64 = 253_402_300_799.0;

/// Signature algorithm of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JwtAlgorithm {
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
    /// RSASSA-PSS with SHA-256.
    Ps256,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    EdDsa,
    /// HMAC with SHA-256, only with [`Jwks::secret`].
    Hs256,
}

/// The requirements on a token, and the names of its claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JwtRules {
    /// The exact value of `iss`.
    pub issuer: String,
    /// The value that `aud` must equal or contain.
    pub audience: String,
    /// The allowed signature algorithms.
    pub algorithms: Vec<JwtAlgorithm>,
    /// Maximum difference between the issuer's clock and this one, in s.
    pub leeway_s: u32,
    /// Maximum time since `iat`, in s, whatever `exp` allows.
    pub max_age_s: u32,
    /// Name of the claim with the tenant's name.
    pub tenant_claim: String,
    /// True if a token without that claim belongs to the default tenant.
    pub default_tenant_allowed: bool,
    /// Name of the claim with the role, which is a string or a list of exactly one string.
    pub role_claim: String,
    /// Name of the claim with the scopes, separated by spaces. A token with this claim has only the
    /// listed permissions; a token without it has all permissions of its role. `None`: scopes are
    /// not read.
    pub scope_claim: Option<String>,
}

/// The reason why a token is rejected. The client learns only what the issuer could also tell it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JwtError {
    /// The token has more than 8 KiB.
    #[error("the token is longer than {LONGEST_TOKEN} bytes")]
    TooLong,
    /// The token is not three parts of base64url with JSON in them, or has an unknown algorithm,
    /// such as `none`.
    #[error("the token cannot be read, or names an unknown algorithm")]
    Malformed,
    /// The token has another purpose: its type is neither `JWT` nor `at+jwt`.
    #[error("the token's typ is not JWT or at+jwt")]
    OtherType,
    /// The token has a header that must be understood (`crit`).
    #[error("the token has critical headers")]
    Critical,
    /// The algorithm is not allowed, or does not belong to the key.
    #[error("the token's algorithm is not allowed, or not for the key")]
    OtherAlgorithm,
    /// The key is not in the set and may be newer. [`JwksRefresh`] decides whether to fetch the set
    /// again.
    #[error("the token's key {kid:?} is not known")]
    UnknownKey {
        /// The key's name in the token. The token's creator chose it, so it must not be used as a
        /// path or address.
        kid: String,
    },
    /// The token names no key, and several keys match.
    #[error("the token names no key, and several fit")]
    NoKeyNamed,
    /// The signature is wrong.
    #[error("the token's signature is wrong")]
    Signature,
    /// A claim is missing or malformed.
    #[error("the token's claim {0:?} is missing or malformed")]
    Claim(String),
    /// The token has another issuer.
    #[error("the token is of another issuer")]
    OtherIssuer,
    /// The token is for another audience.
    #[error("the token is for another audience")]
    OtherAudience,
    /// `exp` has passed.
    #[error("the token has expired")]
    Expired,
    /// `nbf` or `iat` is in the future.
    #[error("the token is not valid yet")]
    NotYet,
    /// `iat` is longer ago than the maximum age.
    #[error("the token is too old")]
    TooOld,
    /// The role does not exist.
    #[error("the token's role is not known")]
    UnknownRole,
}

impl JwtAlgorithm {
    pub const ALL: [Self; 5] = [Self::Rs256, Self::Ps256, Self::Es256, Self::EdDsa, Self::Hs256];

    /// The name in tokens, keys and settings (RFC 7518, RFC 8037).
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Ps256 => "PS256",
            Self::Es256 => "ES256",
            Self::EdDsa => "EdDSA",
            Self::Hs256 => "HS256",
        }
    }

    /// The algorithm with this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    const fn of_library(algorithm: Algorithm) -> Option<Self> {
        match algorithm {
            Algorithm::RS256 => Some(Self::Rs256),
            Algorithm::PS256 => Some(Self::Ps256),
            Algorithm::ES256 => Some(Self::Es256),
            Algorithm::EdDSA => Some(Self::EdDsa),
            Algorithm::HS256 => Some(Self::Hs256),
            _ => None,
        }
    }
}

impl JwtRules {
    /// The rules for one issuer and our own audience name, with defaults. Every algorithm with a
    /// public key is allowed, the leeway is 30 s and the maximum age 24 h. The claims are `tenant`,
    /// `role` and `scope`, and the tenant is required.
    pub fn new(issuer: impl Into<String>, audience: impl Into<String>) -> Self {
        Self {
            issuer: issuer.into(),
            audience: audience.into(),
            algorithms: JwtAlgorithm::ALL.into_iter().filter(|a| *a != JwtAlgorithm::Hs256).collect(),
            leeway_s: 30,
            max_age_s: 24 * 3600,
            tenant_claim: "tenant".to_owned(),
            default_tenant_allowed: false,
            role_claim: "role".to_owned(),
            scope_claim: Some("scope".to_owned()),
        }
    }
}

/// Checks a token and returns its principal.
///
/// # Errors
/// The token violates a rule. After [`JwtError::UnknownKey`] it may succeed with newer keys; all
/// other reasons are final.
pub fn verify(token: &str, keys: &Jwks, rules: &JwtRules, now: Timestamp) -> Result<Principal, JwtError> {
    if token.len() > LONGEST_TOKEN {
        return Err(JwtError::TooLong);
    }
    signature::install();
    let header = jsonwebtoken::decode_header(token).map_err(|_| JwtError::Malformed)?;
    let algorithm = algorithm(&header, rules)?;
    let key = keys.key(header.kid.as_deref(), algorithm)?;
    let claims = jsonwebtoken::decode::<Map<String, Value>>(token, key, &validation(header.alg, rules));
    let claims = claims.map_err(|error| refusal(error.kind()))?.claims;
    principal(&claims, rules, now)
}

/// Checks the header.
fn algorithm(header: &Header, rules: &JwtRules) -> Result<JwtAlgorithm, JwtError> {
    let typ = header.typ.as_deref().unwrap_or("JWT").to_ascii_lowercase();
    if !["jwt", "at+jwt"].contains(&typ.strip_prefix("application/").unwrap_or(&typ)) {
        return Err(JwtError::OtherType);
    }
    // The library parses `crit` but ignores it.
    if header.crit.is_some() {
        return Err(JwtError::Critical);
    }
    if header.kid.as_ref().is_some_and(|kid| kid.len() > LONGEST_KID) {
        return Err(JwtError::Malformed);
    }
    let ours = JwtAlgorithm::of_library(header.alg).filter(|algorithm| rules.algorithms.contains(algorithm));
    ours.ok_or(JwtError::OtherAlgorithm)
}

/// The checks that the library makes. Times are not among them, because for these it would read the
/// clock itself.
fn validation(algorithm: Algorithm, rules: &JwtRules) -> Validation {
    let mut validation = Validation::new(algorithm);
    validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
    validation.set_issuer(&[&rules.issuer]);
    validation.set_audience(&[&rules.audience]);
    validation.validate_exp = false;
    validation.validate_nbf = false;
    validation
}

fn refusal(error: &ErrorKind) -> JwtError {
    match error {
        ErrorKind::InvalidSignature => JwtError::Signature,
        ErrorKind::InvalidAlgorithm | ErrorKind::InvalidKeyFormat => JwtError::OtherAlgorithm,
        ErrorKind::InvalidIssuer => JwtError::OtherIssuer,
        ErrorKind::InvalidAudience => JwtError::OtherAudience,
        ErrorKind::MissingRequiredClaim(name) => JwtError::Claim(name.clone()),
        _ => JwtError::Malformed,
    }
}

fn principal(claims: &Map<String, Value>, rules: &JwtRules, now: Timestamp) -> Result<Principal, JwtError> {
    // The library also accepts a list of issuers that contains ours.
    if claims.get("iss").and_then(Value::as_str) != Some(&rules.issuer) || rules.issuer.is_empty() {
        return Err(JwtError::OtherIssuer);
    }
    // An empty setting must not match an empty claim.
    if rules.audience.is_empty() {
        return Err(JwtError::OtherAudience);
    }
    let expires_at = lifetime(claims, rules, now)?;
    let subject = claims.get("sub").and_then(Value::as_str).filter(|subject| !subject.is_empty());
    let subject = subject.ok_or_else(|| JwtError::Claim("sub".to_owned()))?;
    let role = role(claims, &rules.role_claim)?;
    Ok(Principal {
        tenant: tenant(claims, rules)?,
        name: actor(subject),
        permissions: role.permissions().and(scopes(claims, rules)?),
        thread: None,
        expires_at: Some(expires_at),
        source: CredentialSource::Jwt,
    })
}

/// When the token ends, by its own claim or by its age, with the leeway added.
fn lifetime(claims: &Map<String, Value>, rules: &JwtRules, now: Timestamp) -> Result<Timestamp, JwtError> {
    let leeway = i64::from(rules.leeway_s) * 1000;
    let missing = |name: &str| JwtError::Claim(name.to_owned());
    let end = time(claims, "exp")?.ok_or_else(|| missing("exp"))?.plus_ms(leeway);
    let issued = time(claims, "iat")?.ok_or_else(|| missing("iat"))?;
    let too_old = issued.plus_ms(i64::from(rules.max_age_s) * 1000 + leeway);
    if end <= now {
        return Err(JwtError::Expired);
    }
    if too_old <= now {
        return Err(JwtError::TooOld);
    }
    let begins = time(claims, "nbf")?.map_or(issued, |not_before| not_before.max(issued));
    if begins > now.plus_ms(leeway) {
        return Err(JwtError::NotYet);
    }
    Ok(end.min(too_old))
}

/// Reads seconds since 1970, perhaps with a fraction (RFC 7519, section 2).
fn time(claims: &Map<String, Value>, name: &str) -> Result<Option<Timestamp>, JwtError> {
    let Some(value) = claims.get(name) else { return Ok(None) };
    let seconds = value.as_f64().filter(|seconds| (0.0..=LATEST_S).contains(seconds));
    let seconds = seconds.ok_or_else(|| JwtError::Claim(name.to_owned()))?;
    #[allow(clippy::cast_possible_truncation, reason = "within the year 9999")]
    Ok(Some(Timestamp((seconds * 1000.0) as i64)))
}

fn role(claims: &Map<String, Value>, claim: &str) -> Result<AccessRole, JwtError> {
    // Some providers send roles only as lists. A list of several is ambiguous.
    let name = match claims.get(claim) {
        Some(Value::String(name)) => Some(name.as_str()),
        Some(Value::Array(names)) if names.len() == 1 => names[0].as_str(),
        _ => None,
    };
    let name = name.ok_or_else(|| JwtError::Claim(claim.to_owned()))?;
    AccessRole::of_name(name).ok_or(JwtError::UnknownRole)
}

fn tenant(claims: &Map<String, Value>, rules: &JwtRules) -> Result<TenantName, JwtError> {
    let wrong = || JwtError::Claim(rules.tenant_claim.clone());
    match claims.get(&rules.tenant_claim) {
        Some(name) => name.as_str().and_then(|name| TenantName::parse(name).ok()).ok_or_else(wrong),
        None if rules.default_tenant_allowed => Ok(TenantName::default()),
        None => Err(wrong()),
    }
}

fn scopes(claims: &Map<String, Value>, rules: &JwtRules) -> Result<Permissions, JwtError> {
    let Some(claim) = &rules.scope_claim else { return Ok(AccessRole::Admin.permissions()) };
    match claims.get(claim) {
        None => Ok(AccessRole::Admin.permissions()),
        Some(Value::String(scopes)) => Ok(Permissions::of_scopes(scopes.split(' '))),
        Some(_) => Err(JwtError::Claim(claim.clone())),
    }
}

/// The subject as a name for the audit log. Its SHA-256 replaces a subject that cannot be shown or
/// that looks like such a hash. It also replaces a subject with a slash, which separates a caller
/// from the person for whom it acts. So no caller can impersonate another.
fn actor(subject: &str) -> Box<str> {
    let is_shown = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
    let fits = subject.len() <= LONGEST_SUBJECT && subject.bytes().all(is_shown);
    if fits && !subject.starts_with(HASHED) {
        return format!("jwt:{subject}").into();
    }
    let digest: String = Sha256::digest(subject).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("jwt:{HASHED}{digest}").into()
}
