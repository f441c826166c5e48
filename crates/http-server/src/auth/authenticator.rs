//! Checks the credential of a request.
//!
//! Entry: [`Authenticator::authenticate`]. API keys are looked up in the store and cached for some
//! seconds. Tokens of an identity provider are checked with its keys, tickets with a key of the
//! installation. [`Authenticator::revoked`] finds the credentials that are no longer valid, so that
//! the streams opened with them end.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{PoisonError, RwLock};

use auth::ticket::{self, Ticket, TicketError, TicketKey};
use auth::{ApiKey, ApiKeyError, CredentialSource, KeyId, NewKey, PresentedKey, Principal, StoredKey};
use axum::http::{HeaderMap, header};
use model::{ThreadId, Timestamp};
use store::{Store, StoreError};

use crate::auth::api_key_cache::ApiKeyCache;
use crate::auth::config::{AccessConfig, TokenError};
use crate::auth::error::AuthError;
use crate::auth::jwks::JwksClient;
use crate::error::{ErrorCode, Problem};

#[derive(Debug)]
pub struct Authenticator {
    insecure: bool,
    cache: ApiKeyCache,
    provider: Option<JwksClient>,
    /// The signing key, followed by the other valid keys. Empty until the database has been
    /// reached.
    tickets: RwLock<Vec<TicketKey>>,
}

impl Authenticator {
    pub fn new(config: &AccessConfig) -> Result<Self, TokenError> {
        let provider = config.tokens.as_ref().map(JwksClient::new).transpose()?;
        Ok(Self {
            insecure: config.insecure,
            cache: ApiKeyCache::default(),
            provider,
            tickets: RwLock::default(),
        })
    }

    /// Reads the keys with which gateways sign tickets.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn load_ticket_keys(&self, store: &Store) -> Result<(), StoreError> {
        let keys = store.ticket_keys().await?;
        match keys.iter().map(|key| TicketKey::new(key)).collect() {
            Ok(keys) => *self.tickets.write().unwrap_or_else(PoisonError::into_inner) = keys,
            Err(error) => tracing::error!(%error, "tickets cannot be made"),
        }
        Ok(())
    }

    fn ticket_keys(&self) -> Vec<TicketKey> {
        self.tickets.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads which API keys exist, so that their first use here does not count as a guess.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn load_keys(&self, store: &Store, now: Timestamp) -> Result<(), StoreError> {
        self.cache.learn(store, now).await
    }

    /// Adds a key as it has just been stored, so that its first use here does not count as a guess.
    pub fn add_key(&self, key: StoredKey) {
        self.cache.made(key, now());
    }

    /// Authenticates a request from the address `peer`. `ticket` is the one in the request's URL,
    /// on routes that accept tickets.
    pub async fn authenticate(
        &self,
        store: Option<&Store>,
        headers: &HeaderMap,
        ticket: Option<&str>,
        peer: Option<IpAddr>,
        now: Timestamp,
    ) -> Result<Principal, AuthError> {
        if self.insecure {
            return Ok(Principal::local());
        }
        match (bearer_token(headers)?, ticket) {
            // A key or a token grants more than a ticket.
            (Some(text), _) if ApiKey::has_prefix(text) => self.by_key(store, text, peer, now).await,
            (Some(text), _) => match &self.provider {
                Some(provider) => provider.verify(text, now).await,
                None => Err(AuthError::Refused("no tokens are taken here".to_owned())),
            },
            (None, Some(text)) => self.by_ticket(store, text, now).await,
            (None, None) => Err(AuthError::Missing),
        }
    }

    /// Makes a ticket for the events of one thread.
    pub fn ticket(
        &self,
        asker: &Principal,
        thread: &ThreadId,
        lifetime_s: u32,
        now: Timestamp,
    ) -> Result<Ticket, Problem> {
        let starting = || Problem::from(ErrorCode::NotReady);
        let keys = self.ticket_keys();
        let key = keys.first().ok_or_else(starting)?;
        ticket::issue(asker, thread, lifetime_s, key, now)
            .map_err(|error| Problem::new(ErrorCode::InvalidTicket, error.to_string()))
    }

    /// The keys that are no longer valid with the presented secret, read in one statement. Empty
    /// while the store is unreachable: streams continue.
    pub async fn revoked(
        &self,
        store: &Store,
        keys: &HashSet<PresentedKey>,
        now: Timestamp,
    ) -> HashSet<PresentedKey> {
        let ids = keys.iter().map(|presented| presented.id).collect();
        self.cache.read_again(store, &ids, now).await;
        let counts_not = |presented: &&PresentedKey| {
            let known = self.cache.known(presented.id, now);
            known.is_some_and(|key| key.is_none_or(|key| key.principal(presented.secret, now).is_err()))
        };
        keys.iter().filter(counts_not).copied().collect()
    }

    /// Whether the principal's credential has ended since it was checked. False while that cannot
    /// be found out.
    pub async fn has_ended(&self, store: &Store, principal: &Principal, now: Timestamp) -> bool {
        self.ended(store, principal, now).await.is_ok_and(|why| why.is_some())
    }

    /// The reason why the principal's credential has ended, if it has.
    async fn ended(
        &self,
        store: &Store,
        principal: &Principal,
        now: Timestamp,
    ) -> Result<Option<&'static str>, AuthError> {
        if principal.has_expired(now) {
            return Ok(Some("credential_expired"));
        }
        let Some(PresentedKey { id, secret }) = principal.key() else { return Ok(None) };
        // The key was valid when the stream began, so this lookup does not count as a guess.
        let key = self.cache.key(store, id, None, now).await?;
        let counts = key.is_some_and(|key| key.principal(secret, now).is_ok());
        Ok((!counts).then_some("credential_revoked"))
    }

    /// Fetches the keys of the provider again when they are old, and records which API keys were
    /// used.
    pub async fn refresh(&self, store: &Store, now: Timestamp) {
        if let Some(provider) = &self.provider {
            provider.refresh(now).await;
        }
        self.cache.note_used(store).await;
    }

    async fn by_key(
        &self,
        store: Option<&Store>,
        text: &str,
        peer: Option<IpAddr>,
        now: Timestamp,
    ) -> Result<Principal, AuthError> {
        let refused = |error: ApiKeyError| AuthError::Refused(error.to_string());
        let presented = ApiKey::parse(text).map_err(refused)?;
        let store = store.ok_or(AuthError::Away("the database has not been reached yet"))?;
        let known = self.cache.key(store, presented.id(), peer, now).await?;
        let key = known.ok_or_else(|| AuthError::Refused("there is no such API key".to_owned()))?;
        let mut checked = presented.check(&key, now);
        // Another gateway may have given the key this secret a moment ago.
        if checked == Err(ApiKeyError::Wrong)
            && let Some(current) = self.cache.key_again(store, presented.id(), peer, now).await
        {
            checked = presented.check(&current, now);
        }
        let principal = checked.map_err(refused)?;
        self.cache.used(presented.id());
        Ok(principal)
    }

    async fn by_ticket(
        &self,
        store: Option<&Store>,
        text: &str,
        now: Timestamp,
    ) -> Result<Principal, AuthError> {
        let starting = AuthError::Away("the database has not been reached yet");
        let keys = self.ticket_keys();
        let (false, Some(store)) = (keys.is_empty(), store) else { return Err(starting) };
        let refused = |error: TicketError| AuthError::Refused(error.to_string());
        let principal = ticket::check(text, &keys, now).map_err(refused)?;
        // A ticket is refused while the validity of its key cannot be checked.
        match self.ended(store, &principal, now).await? {
            Some(why) => Err(AuthError::Refused(why.to_owned())),
            None => Ok(principal),
        }
    }
}

/// The system time, by which credentials begin and end: issuers use their system clocks.
/// Comparisons must tolerate a clock that is set in either direction.
pub fn now() -> Timestamp {
    Timestamp(runtime::system_time_ms())
}

/// Makes a key of 256 random bits. Its text is shown once and never stored.
pub fn new_key() -> NewKey {
    // The process's generator is cryptographically secure and seeded by the system.
    NewKey::from_random(rand::random(), rand::random())
}

/// Makes another secret for the key with this id.
pub fn new_key_of(id: KeyId) -> NewKey {
    NewKey::of_id(id, rand::random())
}

/// The credential in the header: `Authorization: Bearer <credential>`.
fn bearer_token(headers: &HeaderMap) -> Result<Option<&str>, AuthError> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let malformed = || AuthError::Refused("the header Authorization is not `Bearer <credential>`".to_owned());
    if values.next().is_some() {
        return Err(malformed());
    }
    let (scheme, rest) = value.to_str().ok().and_then(|text| text.split_once(' ')).ok_or_else(malformed)?;
    match scheme.eq_ignore_ascii_case("bearer") {
        true => Ok(Some(rest.trim_matches(' '))),
        false => Err(malformed()),
    }
}

/// Whether this kind of credential is checked again while its streams are open.
pub fn is_revocable(principal: &Principal) -> bool {
    !matches!(principal.source(), CredentialSource::Insecure)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (header::AUTHORIZATION, value.parse().unwrap())).collect()
    }

    #[test]
    fn the_credential_stands_in_one_header() {
        assert_eq!(bearer_token(&headers(&[])).unwrap(), None);
        assert_eq!(bearer_token(&headers(&["Bearer x"])).unwrap(), Some("x"));
        assert_eq!(bearer_token(&headers(&["bearer  x "])).unwrap(), Some("x"));
        for wrong in [&["x"][..], &["Basic eDp5"], &["Bearer"], &["Bearer a", "Bearer b"]] {
            assert!(matches!(bearer_token(&headers(wrong)), Err(AuthError::Refused(_))), "{wrong:?}");
        }
    }
}
