//! API keys: `ant_<id>_<secret>`, 64 and 256 random bits in lower-case hexadecimal digits.
//!
//! The secret is never stored: a stored key has the SHA-256 of the whole text. A slow hash is not
//! needed: it protects secrets that people choose, and this secret has 256 random bits.

use std::fmt;

use model::Timestamp;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::key_id::{KeyId, PresentedKey, SecretMark, is_lower_hex};
use crate::{AccessRole, Permissions, Principal, TenantName, principal::CredentialSource};

const PREFIX: &str = "ant_";
const SECRET_DIGITS: usize = 64;

/// A new API key: the only value that holds the secret.
pub struct NewKey {
    text: String,
    id: KeyId,
}

/// A key as it is stored.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredKey {
    /// The public part of the key.
    pub id: KeyId,
    /// SHA-256 of the key's text.
    pub digest: [u8; 32],
    /// The secret before the last rotation.
    pub previous: Option<PreviousSecret>,
    /// The tenant that the key gives access to.
    pub tenant: TenantName,
    pub role: AccessRole,
    /// The permissions to which the role is restricted, if it is restricted
    /// ([`AccessRole::restricted_to`]).
    pub scopes: Option<Permissions>,
    /// The display name. It is not checked, and not shown in the audit log.
    pub name: String,
    pub expires_at: Option<Timestamp>,
    /// Time of the revocation. Any value means revoked, because no revocation lies in the future.
    pub revoked_at: Option<Timestamp>,
}

/// A secret that a rotation has replaced, and that is valid for a while.
#[derive(Clone, PartialEq, Eq)]
pub struct PreviousSecret {
    /// SHA-256 of the text with this secret.
    pub digest: [u8; 32],
    pub valid_until: Timestamp,
}

/// A text in the form of a key, which is not verified yet. It does not hold the secret.
pub struct ApiKey {
    id: KeyId,
    digest: [u8; 32],
}

/// The reason why a key is rejected. The client does not learn the reason: the response is always
/// the same 401.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ApiKeyError {
    /// The text is not a key.
    #[error("the text is not an API key")]
    Malformed,
    /// The secret is wrong or was replaced, or the stored key has another id.
    #[error("the API key is wrong")]
    Wrong,
    /// The key was revoked.
    #[error("the API key was revoked")]
    Revoked,
    /// The key has expired.
    #[error("the API key has expired")]
    Expired,
}

impl NewKey {
    /// Makes a key from random bytes, which must come from a cryptographically secure source.
    pub fn from_random(id: [u8; 8], secret: [u8; 32]) -> Self {
        Self::of_id(KeyId(id), secret)
    }

    /// Makes a key with this id from random bytes: another secret of an existing key.
    pub fn of_id(id: KeyId, secret: [u8; 32]) -> Self {
        let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        Self { text: format!("{PREFIX}{id}_{secret}"), id }
    }

    /// The text of the key, to be shown once.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The public part of the key.
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// The stored digest: SHA-256 of the text.
    pub fn digest(&self) -> [u8; 32] {
        Sha256::digest(&self.text).into()
    }
}

impl ApiKey {
    /// True if a credential has the form of an API key, so that it is not parsed as a token.
    pub fn has_prefix(text: &str) -> bool {
        text.starts_with(PREFIX)
    }

    /// Parses a key exactly. Surrounding or additional characters are not allowed.
    ///
    /// # Errors
    /// [`ApiKeyError::Malformed`].
    pub fn parse(text: &str) -> Result<Self, ApiKeyError> {
        let parts = text.strip_prefix(PREFIX).and_then(|rest| rest.split_once('_'));
        let (id, secret) = parts.ok_or(ApiKeyError::Malformed)?;
        let id = KeyId::parse(id).ok_or(ApiKeyError::Malformed)?;
        if !is_lower_hex(secret, SECRET_DIGITS) {
            return Err(ApiKeyError::Malformed);
        }
        Ok(Self { id, digest: Sha256::digest(text).into() })
    }

    /// The id by which the stored key is looked up.
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// Compares the key with the stored key in constant time.
    ///
    /// # Errors
    /// The secret is wrong, or the key was revoked or has expired.
    pub fn check(&self, stored: &StoredKey, now: Timestamp) -> Result<Principal, ApiKeyError> {
        let mut same = self.digest.ct_eq(&stored.digest);
        if let Some(previous) = &stored.previous {
            same |= self.digest.ct_eq(&previous.digest);
        }
        if !bool::from(same & self.id.0.ct_eq(&stored.id.0)) {
            return Err(ApiKeyError::Wrong);
        }
        stored.principal(SecretMark::of(&self.digest), now)
    }
}

impl StoredKey {
    /// The principal of this key, with one of its secrets. Call it again with the current stored
    /// key while a stream is open.
    ///
    /// # Errors
    /// The key was revoked, or it or the secret has expired or was replaced.
    pub fn principal(&self, secret: SecretMark, now: Timestamp) -> Result<Principal, ApiKeyError> {
        if self.revoked_at.is_some() {
            return Err(ApiKeyError::Revoked);
        }
        let end_of_secret = match &self.previous {
            _ if secret == SecretMark::of(&self.digest) => None,
            Some(previous) if secret == SecretMark::of(&previous.digest) => Some(previous.valid_until),
            Some(_) | None => return Err(ApiKeyError::Wrong),
        };
        let expires_at = [self.expires_at, end_of_secret].into_iter().flatten().min();
        if expires_at.is_some_and(|end| end <= now) {
            return Err(ApiKeyError::Expired);
        }
        let role = self.role.permissions();
        Ok(Principal {
            tenant: self.tenant.clone(),
            name: format!("key:{}", self.id).into(),
            // The scopes are restricted again, because the stored scopes may be older than the
            // role's permissions.
            permissions: self.scopes.map_or(role, |scopes| scopes.and(role)),
            thread: None,
            expires_at,
            source: CredentialSource::Key(PresentedKey { id: self.id, secret }),
        })
    }
}

/// Omits the secret, which must not be logged.
impl fmt::Debug for NewKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NewKey({}, …)", self.id)
    }
}

/// Omits the digest.
impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKey({}, …)", self.id)
    }
}

/// Omits the digest.
impl fmt::Debug for PreviousSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreviousSecret").field("valid_until", &self.valid_until).finish_non_exhaustive()
    }
}

/// Omits the digest.
impl fmt::Debug for StoredKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredKey")
            .field("id", &self.id)
            .field("previous", &self.previous)
            .field("tenant", &self.tenant)
            .field("role", &self.role)
            .field("scopes", &self.scopes)
            .field("name", &self.name)
            .field("expires_at", &self.expires_at)
            .field("revoked_at", &self.revoked_at)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
