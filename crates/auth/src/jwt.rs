//! Tokens of an identity provider (RFC 7519), checked by the rules of RFC 8725.
//!
//! Entry: [`verify`]. What the token says about itself decides nothing: the algorithms are ours, the key says for which it is,
//! and the time is the caller's. The signature is checked by `jsonwebtoken`, with the cryptography of `ring`.

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

/// Longest token, in bytes.
const LONGEST_TOKEN: usize = 8 * 1024;
/// Longest name of a key, in bytes.
const LONGEST_KID: usize = 256;
/// Longest subject that is shown as it is, in bytes: with `jwt:` a name has at most 128.
const LONGEST_SUBJECT: usize = 124;
/// What a subject becomes that cannot be shown.
const HASHED: &str = "sha256:";
/// The last second of the year 9999.
const LATEST_S: f64 = 253_402_300_799.0;

/// How a token may be signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JwtAlgorithm {
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
    /// RSASSA-PSS with SHA-256.
    Ps256,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// Ed25519.
    EdDsa,
    /// HMAC with SHA-256, with [`Jwks::secret`] alone.
    Hs256,
}

/// What a token must say, and where it says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JwtRules {
    /// `iss`, exactly.
    pub issuer: String,
    /// What `aud` must be or have among others.
    pub audience: String,
    /// How tokens may be signed.
    pub algorithms: Vec<JwtAlgorithm>,
    /// How far the issuer's clock may be from ours, in s.
    pub leeway_s: u32,
    /// Longest time since `iat`, in s, whatever `exp` says.
    pub max_age_s: u32,
    /// The claim with the tenant's name.
    pub tenant_claim: String,
    /// Whether a token without that claim is one of the default tenant.
    pub default_tenant_allowed: bool,
    /// The claim with the role: a text, or a list of just one.
    pub role_claim: String,
    /// The claim with the scopes, separated by spaces. A token that has it may do nothing that it does not list; one that does
    /// not have it may do all that its role may. None: scopes are for others, and are not read.
    pub scope_claim: Option<String>,
}

/// Why a token opens nothing. The client learns none of it but what the issuer could say, too.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JwtError {
    /// More than 8 KiB.
    #[error("the token is longer than {LONGEST_TOKEN} bytes")]
    TooLong,
    /// Not three parts of base64url with JSON in them, or an algorithm that is not known here, such as `none`.
    #[error("the token cannot be read, or names an unknown algorithm")]
    Malformed,
    /// It is a token for something else: neither `JWT` nor `at+jwt`.
    #[error("the token's typ is not JWT or at+jwt")]
    OtherType,
    /// It has a header that must be understood (`crit`).
    #[error("the token has critical headers")]
    Critical,
    /// An algorithm that is not among ours, or not the key's.
    #[error("the token's algorithm is not allowed, or not for the key")]
    OtherAlgorithm,
    /// Its key is not in the set: it may be newer. [`JwksRefresh`] decides whether to fetch the set again.
    #[error("the token's key {kid:?} is not known")]
    UnknownKey {
        /// What it calls the key. Chosen by the maker of the token: no path, no address.
        kid: String,
    },
    /// It names no key, and several would do.
    #[error("the token names no key, and several fit")]
    NoKeyNamed,
    /// The signature is wrong.
    #[error("the token's signature is wrong")]
    Signature,
    /// A claim is not there, or not of its form.
    #[error("the token's claim {0:?} is missing or malformed")]
    Claim(String),
    /// Another issuer.
    #[error("the token is of another issuer")]
    OtherIssuer,
    /// It is for another audience.
    #[error("the token is for another audience")]
    OtherAudience,
    /// `exp` is over.
    #[error("the token has expired")]
    Expired,
    /// `nbf` or `iat` is in the future.
    #[error("the token is not valid yet")]
    NotYet,
    /// `iat` is longer ago than tokens may live.
    #[error("the token is too old")]
    TooOld,
    /// The role does not exist.
    #[error("the token's role is not known")]
    UnknownRole,
}

impl JwtAlgorithm {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Rs256, Self::Ps256, Self::Es256, Self::EdDsa, Self::Hs256];

    /// Its name in tokens, keys and settings (RFC 7518, RFC 8037).
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Ps256 => "PS256",
            Self::Es256 => "ES256",
            Self::EdDsa => "EdDSA",
            Self::Hs256 => "HS256",
        }
    }

    /// The algorithm of this name.
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
    /// The rules for one issuer and our own name, else as usual: every algorithm with a public key, 30 s of leeway, 24 h of
    /// age, and the claims `tenant`, `role` and `scope`; the tenant must be named.
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

/// Checks a token and says who speaks by it.
///
/// # Errors
/// Anything that is not exactly as the rules want it. After [`JwtError::UnknownKey`] it may succeed with newer keys; all
/// other reasons stay.
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

/// What the header may say.
fn algorithm(header: &Header, rules: &JwtRules) -> Result<JwtAlgorithm, JwtError> {
    let typ = header.typ.as_deref().unwrap_or("JWT").to_ascii_lowercase();
    if !["jwt", "at+jwt"].contains(&typ.strip_prefix("application/").unwrap_or(&typ)) {
        return Err(JwtError::OtherType);
    }
    // The library reads `crit` and leaves it at that.
    if header.crit.is_some() {
        return Err(JwtError::Critical);
    }
    if header.kid.as_ref().is_some_and(|kid| kid.len() > LONGEST_KID) {
        return Err(JwtError::Malformed);
    }
    let ours = JwtAlgorithm::of_library(header.alg).filter(|algorithm| rules.algorithms.contains(algorithm));
    ours.ok_or(JwtError::OtherAlgorithm)
}

/// What the library checks. Not the times: it would read the clock itself.
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
    // The library takes a list with our issuer among others, too.
    if claims.get("iss").and_then(Value::as_str) != Some(&rules.issuer) || rules.issuer.is_empty() {
        return Err(JwtError::OtherIssuer);
    }
    // A setting that was left empty must not be met by a claim that is empty.
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

/// When the token ends, by its own word or by its age, leeway included.
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

/// Seconds since 1970, which may have a fraction (RFC 7519, section 2).
fn time(claims: &Map<String, Value>, name: &str) -> Result<Option<Timestamp>, JwtError> {
    let Some(value) = claims.get(name) else { return Ok(None) };
    let seconds = value.as_f64().filter(|seconds| (0.0..=LATEST_S).contains(seconds));
    let seconds = seconds.ok_or_else(|| JwtError::Claim(name.to_owned()))?;
    #[allow(clippy::cast_possible_truncation, reason = "within the year 9999")]
    Ok(Some(Timestamp((seconds * 1000.0) as i64)))
}

fn role(claims: &Map<String, Value>, claim: &str) -> Result<AccessRole, JwtError> {
    // Some providers know roles only as lists. Of several it is not known which one is meant.
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

/// The subject as a name for the audit. One that cannot be shown is replaced by its SHA-256, and so is one that looks
/// like that already, or has the slash after which stands for whom a caller acts: no caller can pass for another.
fn actor(subject: &str) -> Box<str> {
    let is_shown = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
    let fits = subject.len() <= LONGEST_SUBJECT && subject.bytes().all(is_shown);
    if fits && !subject.starts_with(HASHED) {
        return format!("jwt:{subject}").into();
    }
    let digest: String = Sha256::digest(subject).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("jwt:{HASHED}{digest}").into()
}
