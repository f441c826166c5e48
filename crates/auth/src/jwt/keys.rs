//! The keys of an identity provider.

use std::fmt;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::DecodingKey;
use serde_json::Value;

use super::{JwtAlgorithm, JwtError};

/// Maximum bytes of a key set.
const LONGEST_SET: usize = 64 * 1024;
/// Maximum number of keys in a set.
const MOST_KEYS: usize = 32;
/// Modulus of an RSA key, in bytes: 2,048 to 8,192 bits.
const RSA_MODULUS: std::ops::RangeInclusive<usize> = 256..=1024;
/// Minimum bytes of a shared secret (RFC 7518, section 3.2).
const SHORTEST_SECRET: usize = 32;

/// The keys that verify tokens: a published set, or one shared secret.
pub struct Jwks {
    keys: Vec<JwtKey>,
    skipped: Vec<SkippedKey>,
}

/// One usable key.
struct JwtKey {
    kid: Option<String>,
    kind: KeyKind,
    /// The only algorithm that the set allows for the key.
    algorithm: Option<JwtAlgorithm>,
    key: DecodingKey,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyKind {
    Rsa,
    P256,
    Ed25519,
    /// A shared secret, which comes only from the settings, never from a set.
    Secret,
}

/// A key of a set that is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedKey {
    /// Name of the key in the set.
    pub kid: Option<String>,
    /// The reason why the key is not used.
    pub why: &'static str,
}

/// The reason why a text has no usable keys. The previous keys stay in use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidJwks {
    /// The set has more than 64 KiB.
    #[error("the key set has {0} bytes; at most {LONGEST_SET} are read")]
    TooLong(usize),
    /// The set has more than 32 keys.
    #[error("the key set has {0} keys; at most {MOST_KEYS} are read")]
    TooMany(usize),
    /// The text is not an object with a list of `keys`.
    #[error("the key set is not a JSON object with a list of \"keys\"")]
    Malformed,
    /// None of the keys can be used.
    #[error("the key set has no usable key: {}", why(.0))]
    NoKeys(Vec<SkippedKey>),
    /// The shared secret is so short that it can be guessed.
    #[error("the shared secret has {0} bytes; HS256 needs at least {SHORTEST_SECRET}")]
    ShortSecret(usize),
}

impl Jwks {
    /// Parses a JSON Web Key Set (RFC 7517). A key that is not for signatures or has an unknown
    /// type is skipped and does not affect the others.
    ///
    /// # Errors
    /// The text is too long, is not a key set, or has no usable key. An empty set is more likely a
    /// mistake of the publisher than the intent to invalidate all tokens.
    pub fn parse(json: &[u8]) -> Result<Self, InvalidJwks> {
        if json.len() > LONGEST_SET {
            return Err(InvalidJwks::TooLong(json.len()));
        }
        let set: Value = serde_json::from_slice(json).map_err(|_| InvalidJwks::Malformed)?;
        let listed = set.get("keys").and_then(Value::as_array).ok_or(InvalidJwks::Malformed)?;
        if listed.len() > MOST_KEYS {
            return Err(InvalidJwks::TooMany(listed.len()));
        }
        let mut keys: Vec<JwtKey> = Vec::new();
        let mut skipped = Vec::new();
        for jwk in listed {
            let kid = text(jwk, "kid").map(str::to_owned);
            match read(jwk) {
                Ok(key) if keys.iter().any(|other| other.kid == key.kid && other.kind == key.kind) => {
                    skipped.push(SkippedKey { kid, why: "another key of its type has the same kid" });
                }
                Ok(key) => keys.push(key),
                Err(why) => skipped.push(SkippedKey { kid, why }),
            }
        }
        if keys.is_empty() {
            return Err(InvalidJwks::NoKeys(skipped));
        }
        Ok(Self { keys, skipped })
    }

    /// A secret shared with the identity provider, for HS256. It applies whatever `kid` a token
    /// has.
    ///
    /// # Errors
    /// The secret has fewer than 32 bytes.
    pub fn secret(secret: &[u8]) -> Result<Self, InvalidJwks> {
        if secret.len() < SHORTEST_SECRET {
            return Err(InvalidJwks::ShortSecret(secret.len()));
        }
        let key = DecodingKey::from_secret(secret);
        let key = JwtKey { kid: None, kind: KeyKind::Secret, algorithm: Some(JwtAlgorithm::Hs256), key };
        Ok(Self { keys: vec![key], skipped: Vec::new() })
    }

    /// The unused keys, for the log.
    pub fn skipped(&self) -> &[SkippedKey] {
        &self.skipped
    }

    /// The key for a token. The token only selects among the keys and algorithms that the set
    /// allows.
    pub(super) fn key(&self, kid: Option<&str>, algorithm: JwtAlgorithm) -> Result<&DecodingKey, JwtError> {
        let named = |key: &&JwtKey| key.kind == KeyKind::Secret || kid.is_none() || key.kid.as_deref() == kid;
        if let Some(kid) = kid
            && !self.keys.iter().any(|key| named(&key))
        {
            return Err(JwtError::UnknownKey { kid: kid.to_owned() });
        }
        let mut fitting = self.keys.iter().filter(named).filter(|key| key.fits(algorithm));
        match (fitting.next(), fitting.next()) {
            (Some(key), None) => Ok(&key.key),
            (Some(_), Some(_)) => Err(JwtError::NoKeyNamed),
            (None, _) => Err(JwtError::OtherAlgorithm),
        }
    }
}

impl JwtKey {
    fn fits(&self, algorithm: JwtAlgorithm) -> bool {
        self.kind.allows(algorithm) && self.algorithm.is_none_or(|only| only == algorithm)
    }
}

impl KeyKind {
    fn allows(self, algorithm: JwtAlgorithm) -> bool {
        match algorithm {
            JwtAlgorithm::Rs256 | JwtAlgorithm::Ps256 => self == Self::Rsa,
            JwtAlgorithm::Es256 => self == Self::P256,
            JwtAlgorithm::EdDsa => self == Self::Ed25519,
            JwtAlgorithm::Hs256 => self == Self::Secret,
        }
    }
}

fn read(jwk: &Value) -> Result<JwtKey, &'static str> {
    let usage = jwk.get("use");
    if usage.is_some_and(|usage| usage != "sig") {
        return Err("its use is not sig");
    }
    let verifies = |ops: &Value| ops.as_array().is_some_and(|ops| ops.iter().any(|op| op == "verify"));
    if jwk.get("key_ops").is_some_and(|ops| !verifies(ops)) {
        return Err("its key_ops do not have verify");
    }
    let kid = match jwk.get("kid") {
        Some(Value::String(kid)) => Some(kid.clone()),
        Some(_) => return Err("its kid is not a text"),
        None => None,
    };
    let (kind, key) = match text(jwk, "kty") {
        Some("RSA") => (KeyKind::Rsa, rsa(jwk)?),
        Some("EC") => (KeyKind::P256, p256(jwk)?),
        Some("OKP") => (KeyKind::Ed25519, ed25519(jwk)?),
        Some("oct") => return Err("a secret does not belong into a published set"),
        _ => return Err("its type is not known"),
    };
    let algorithm = match jwk.get("alg") {
        None => None,
        Some(name) => {
            let algorithm = name.as_str().and_then(JwtAlgorithm::of_name).filter(|name| kind.allows(*name));
            Some(algorithm.ok_or("its alg is not known, or not one of its type")?)
        }
    };
    Ok(JwtKey { kid, kind, algorithm, key })
}

fn rsa(jwk: &Value) -> Result<DecodingKey, &'static str> {
    let wrong = "it is not an RSA key";
    let (n, e) = (bytes(jwk, "n").ok_or(wrong)?, bytes(jwk, "e").ok_or(wrong)?);
    let (n, e) = (without_zeros(&n), without_zeros(&e));
    if !RSA_MODULUS.contains(&n.len()) {
        return Err("an RSA key must have 2048 to 8192 bits");
    }
    Ok(DecodingKey::from_rsa_raw_components(n, e))
}

fn p256(jwk: &Value) -> Result<DecodingKey, &'static str> {
    if text(jwk, "crv") != Some("P-256") {
        return Err("its curve is not P-256");
    }
    let coordinate =
        |name| bytes(jwk, name).filter(|bytes| bytes.len() == 32).ok_or("it is not a point of P-256");
    Ok(DecodingKey::from_ec_der(&[vec![4], coordinate("x")?, coordinate("y")?].concat()))
}

fn ed25519(jwk: &Value) -> Result<DecodingKey, &'static str> {
    if text(jwk, "crv") != Some("Ed25519") {
        return Err("its curve is not Ed25519");
    }
    let x = bytes(jwk, "x").filter(|bytes| bytes.len() == 32).ok_or("it is not a key of Ed25519")?;
    Ok(DecodingKey::from_ed_der(&x))
}

fn text<'a>(jwk: &'a Value, name: &str) -> Option<&'a str> {
    jwk.get(name)?.as_str()
}

fn bytes(jwk: &Value, name: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text(jwk, name)?).ok()
}

/// The number without a leading zero. Some publishers write such a zero before a number whose first
/// bit is set, as in DER, and `ring` refuses it.
fn without_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    &number[zeros..]
}

fn why(skipped: &[SkippedKey]) -> String {
    let each = skipped.iter().map(|key| match &key.kid {
        Some(kid) => format!("{kid:?}: {}", key.why),
        None => key.why.to_owned(),
    });
    let list = each.collect::<Vec<_>>().join("; ");
    if list.is_empty() { "it is empty".to_owned() } else { list }
}

/// Shows the names and types of the keys, but no key material.
impl fmt::Debug for Jwks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.keys.iter().map(|key| (&key.kid, key.kind))).finish()
    }
}
