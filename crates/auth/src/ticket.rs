//! Tickets: credentials in the URL for a browser's `EventSource`, which cannot set a header.
//!
//! A ticket permits only subscriptions to one thread, until it expires. It is stateless, so that
//! any gateway can check it. It may be used repeatedly, because a browser reconnects to the same
//! URL. It expires no later than its requester's credential. It names the requester's API key and
//! the secret of it, so that revoking the key, or the end of that secret, ends its tickets.
//!
//! Text: `tkt_<payload>.<mac>` in base64url without padding. Payload: version (1 byte), expiry in s
//! (8 bytes), the mark of the API key's secret (8 bytes, zeros without a key), then tenant,
//! requester and thread, each preceded by its length (1 byte). The MAC is HMAC-SHA256 over a fixed
//! prefix and the payload.

use std::fmt;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use model::{ThreadId, Timestamp};
use sha2::Sha256;

use crate::{
    KeyId, Permissions, PresentedKey, Principal, SecretMark, TenantName, principal::CredentialSource,
};

const PREFIX: &str = "tkt_";
const VERSION: u8 = 2;
/// Prefix of the signed bytes, which separates tickets from possible future uses of the key.
const DOMAIN: &[u8] = b"antiphon stream ticket\0";
/// Maximum bytes of a ticket. With the longest names it has 459.
const LONGEST: usize = 512;

/// Minimum lifetime of a ticket, in s.
pub const SHORTEST_LIFETIME_S: u32 = 1;
/// Maximum lifetime of a ticket, in s.
pub const LONGEST_LIFETIME_S: u32 = 15 * 60;
/// Default lifetime of a ticket, in s.
pub const USUAL_LIFETIME_S: u32 = 5 * 60;

/// The ticket key of an installation. All gateways share it, and it is never sent.
#[derive(Clone)]
pub struct TicketKey([u8; 32]);

/// The number of bytes is wrong for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a ticket key has {0} bytes; it must have 32")]
pub struct InvalidTicketKey(pub usize);

/// A new ticket.
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket {
    /// The text for the URL.
    pub text: String,
    /// When the ticket expires, in whole seconds.
    pub expires_at: Timestamp,
}

/// The reason why no ticket is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IssueError {
    /// The lifetime is not from 1 s to 15 min.
    #[error("a ticket lives from {SHORTEST_LIFETIME_S} to {LONGEST_LIFETIME_S} seconds")]
    Lifetime,
    /// The requester is not allowed to subscribe to the thread, or its credential is a ticket,
    /// which it could then renew forever.
    #[error("this credential may not request a ticket")]
    NotAllowed,
    /// The requester's credential expires within a second.
    #[error("the credential has expired")]
    Expired,
}

/// The reason why a ticket is rejected. The client does not learn the reason: the response is
/// always the same 401.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TicketError {
    /// The text is not a ticket.
    #[error("the text is not a ticket")]
    Malformed,
    /// The ticket was not made with one of the keys.
    #[error("the ticket is forged, or was made with another key")]
    Forged,
    /// The ticket has expired.
    #[error("the ticket has expired")]
    Expired,
}

impl TicketKey {
    /// Creates the key from 32 random bytes.
    ///
    /// # Errors
    /// The number of bytes is not 32.
    pub fn new(bytes: &[u8]) -> Result<Self, InvalidTicketKey> {
        bytes.try_into().map(Self).map_err(|_| InvalidTicketKey(bytes.len()))
    }

    fn mac(&self, payload: &[u8]) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        mac.update(DOMAIN);
        mac.update(payload);
        Some(mac)
    }
}

/// Makes a ticket with which `requester` can subscribe to `thread` for `lifetime_s` from now. It
/// expires earlier if the requester's credential does.
///
/// # Errors
/// The lifetime is out of range, the requester is not allowed to subscribe to the thread, or its
/// credential is a ticket.
pub fn issue(
    requester: &Principal,
    thread: &ThreadId,
    lifetime_s: u32,
    key: &TicketKey,
    now: Timestamp,
) -> Result<Ticket, IssueError> {
    if !(SHORTEST_LIFETIME_S..=LONGEST_LIFETIME_S).contains(&lifetime_s) {
        return Err(IssueError::Lifetime);
    }
    if matches!(requester.source, CredentialSource::Ticket { .. }) || !requester.can_stream(thread) {
        return Err(IssueError::NotAllowed);
    }
    // The expiry is rounded up to whole seconds, so that a ticket is valid for at least the
    // requested time. But it never outlives its requester's credential.
    let wanted = now.plus_ms(i64::from(lifetime_s) * 1000).0.saturating_add(999).div_euclid(1000);
    let end_s = requester.expires_at.map_or(wanted, |end| wanted.min(end.0.div_euclid(1000)));
    let expires_at = Timestamp(end_s.saturating_mul(1000));
    if expires_at <= now {
        return Err(IssueError::Expired);
    }
    let mut payload = vec![VERSION];
    payload.extend(end_s.to_be_bytes());
    payload.extend(requester.key().map_or([0; 8], |key| key.secret.0));
    for part in [requester.tenant.as_str().unwrap_or_default(), &requester.name, thread.as_str()] {
        payload.push(u8::try_from(part.len()).map_err(|_| IssueError::NotAllowed)?);
        payload.extend(part.as_bytes());
    }
    let mac = key.mac(&payload).ok_or(IssueError::NotAllowed)?.finalize().into_bytes();
    let text = format!("{PREFIX}{}.{}", URL_SAFE_NO_PAD.encode(&payload), URL_SAFE_NO_PAD.encode(mac));
    Ok(Ticket { text, expires_at })
}

/// Checks a ticket and returns its principal, which can [subscribe](Principal::can_stream) to one
/// thread and do nothing else. If the ticket names an [API key](Principal::key), the caller must
/// check that key.
///
/// # Errors
/// The text is not a ticket of one of these keys, or the ticket has expired.
pub fn check(text: &str, keys: &[TicketKey], now: Timestamp) -> Result<Principal, TicketError> {
    if text.len() > LONGEST {
        return Err(TicketError::Malformed);
    }
    let parts = text.strip_prefix(PREFIX).and_then(|rest| rest.split_once('.'));
    let (payload, mac) = parts.ok_or(TicketError::Malformed)?;
    // The decoder accepts only one text for the same bytes, so a changed text is never the same
    // ticket.
    let decoded = |text| URL_SAFE_NO_PAD.decode(text).map_err(|_| TicketError::Malformed);
    let (payload, mac) = (decoded(payload)?, decoded(mac)?);
    let is_of =
        |key: &TicketKey| key.mac(&payload).is_some_and(|expected| expected.verify_slice(&mac).is_ok());
    if !keys.iter().any(is_of) {
        return Err(TicketError::Forged);
    }
    let principal = read(&payload).ok_or(TicketError::Malformed)?;
    if principal.has_expired(now) {
        return Err(TicketError::Expired);
    }
    Ok(principal)
}

/// True if a credential has the form of a ticket.
pub fn has_prefix(text: &str) -> bool {
    text.starts_with(PREFIX)
}

fn read(payload: &[u8]) -> Option<Principal> {
    let (version, rest) = payload.split_first()?;
    let (end_s, rest) = rest.split_first_chunk()?;
    let (secret, rest) = rest.split_first_chunk()?;
    let (tenant, rest) = part(rest)?;
    let (name, rest) = part(rest)?;
    let (thread, rest) = part(rest)?;
    if *version != VERSION || !rest.is_empty() {
        return None;
    }
    let tenant = if tenant.is_empty() { TenantName::default() } else { TenantName::parse(tenant).ok()? };
    let id = name.strip_prefix("key:").and_then(KeyId::parse);
    Some(Principal {
        tenant,
        name: name.into(),
        permissions: Permissions::NONE,
        thread: Some(ThreadId::parse(thread).ok()?),
        expires_at: Some(Timestamp(i64::from_be_bytes(*end_s).saturating_mul(1000))),
        source: CredentialSource::Ticket {
            key: id.map(|id| PresentedKey { id, secret: SecretMark(*secret) }),
        },
    })
}

fn part(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = bytes.split_first()?;
    let (part, rest) = rest.split_at_checked(usize::from(*length))?;
    Some((std::str::from_utf8(part).ok()?, rest))
}

/// Omits the key, which must not be logged.
impl fmt::Debug for TicketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketKey(…)")
    }
}

/// Omits the text, which must not be logged.
impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("expires_at", &self.expires_at).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
