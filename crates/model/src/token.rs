//! Turn tokens, which permit a workflow to write the answer of its turn and nothing else.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::{ThreadId, TurnId};

/// Bytes of a token: half of the digest, 128 bits (RFC 2104, section 5).
const TOKEN_BYTES: usize = 16;
const HEX: &[u8; 16] = b"0123456789abcdef";

/// Key of an installation's turn tokens. Stored in Postgres, never sent.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenKey([u8; 32]);

/// Bytes of the wrong length for a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a token key has {0} bytes; it must have 32")]
pub struct InvalidTokenKey(pub usize);

/// Token that every chunk of a run's answer must carry. It cannot be guessed, and any owner can
/// check it without storing it. It is the first half of HMAC-SHA256 (RFC 2104) of thread, turn and
/// run, in hexadecimal digits.
#[derive(Clone, PartialEq, Eq)]
pub struct TurnToken {
    secret: Box<str>,
    delivery: Option<Box<str>>,
}

impl TokenKey {
    /// Key from 32 random bytes.
    ///
    /// # Errors
    /// There is another number of bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, InvalidTokenKey> {
        bytes.try_into().map(Self).map_err(|_| InvalidTokenKey(bytes.len()))
    }

    /// Token of one run of a turn.
    pub fn token(&self, thread: &ThreadId, turn: &TurnId, run: u32) -> TurnToken {
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else {
            return TurnToken::received("");
        };
        // Ids contain no NUL, so the parts cannot run into each other.
        for part in [thread.as_str().as_bytes(), b"\0", turn.as_str().as_bytes(), b"\0"] {
            mac.update(part);
        }
        mac.update(&run.to_be_bytes());
        let digest = mac.finalize().into_bytes();
        let digits = digest.iter().take(TOKEN_BYTES).flat_map(|byte| [byte >> 4, byte & 15]);
        let hex: String = digits.map(|digit| char::from(HEX[usize::from(digit)])).collect();
        TurnToken::received(&hex)
    }
}

/// Keys of an installation's turn tokens; new tokens use the newest one. For some time after a
/// rotation, tokens of the previous key are accepted as well, so that active turns continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenKeys {
    version: u32,
    current: TokenKey,
    previous: Option<TokenKey>,
}

impl TokenKeys {
    /// `version`: one more with each rotation, from 0. `previous`: `None` once its tokens have
    /// expired.
    pub fn new(version: u32, current: TokenKey, previous: Option<TokenKey>) -> Self {
        Self { version, current, previous }
    }

    /// True if `other` is older than the last rotation in these keys.
    pub fn is_newer_than(&self, other: &Self) -> bool {
        self.version > other.version
    }

    /// Token of one run of a turn, with the newest key.
    pub fn token(&self, thread: &ThreadId, turn: &TurnId, run: u32) -> TurnToken {
        self.current.token(thread, turn, run)
    }

    /// True if `received` is the token of this run with any accepted key.
    pub fn accepts(&self, thread: &ThreadId, turn: &TurnId, run: u32, received: &TurnToken) -> bool {
        let mut keys = std::iter::once(&self.current).chain(&self.previous);
        keys.any(|key| key.token(thread, turn, run).matches(received))
    }
}

impl From<TokenKey> for TokenKeys {
    fn from(current: TokenKey) -> Self {
        Self::new(0, current, None)
    }
}

impl TurnToken {
    /// A token as received, not yet checked.
    pub fn received(text: &str) -> Self {
        Self { secret: text.into(), delivery: None }
    }

    /// The same token for one delivery of the request: see [`Self::delivery`].
    #[must_use]
    pub fn of_delivery(self, id: &str) -> Self {
        Self { delivery: Some(id.into()), ..self }
    }

    /// Id that a workflow service has given the delivery it answers. Two deliveries may have the
    /// same attempt, because a killed NATS server forgets the last ones. Only this id distinguishes
    /// their chunks.
    pub fn delivery(&self) -> Option<&str> {
        self.delivery.as_deref()
    }

    pub fn as_str(&self) -> &str {
        &self.secret
    }

    /// True if both are the same token; the delivery does not matter. The comparison time does not
    /// depend on where the two differ.
    pub fn matches(&self, other: &Self) -> bool {
        let (a, b) = (self.secret.as_bytes(), other.secret.as_bytes());
        !a.is_empty() && a.len() == b.len() && a.iter().zip(b).fold(0, |acc, (a, b)| acc | (a ^ b)) == 0
    }
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenKey(…)")
    }
}

/// Tokens must not appear in logs.
impl fmt::Debug for TurnToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TurnToken(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_fits_one_run_of_one_turn_of_one_thread() {
        let key = TokenKey::new(&[7; 32]).unwrap();
        let thread = ThreadId::parse("t").unwrap();
        let turn = TurnId::foreground(&thread, "x").unwrap();
        let token = key.token(&thread, &turn, 0);
        assert_eq!(token.as_str().len(), 32);
        assert!(token.matches(&TurnToken::received(token.as_str())));
        let other_turn = TurnId::foreground(&thread, "y").unwrap();
        let others = [
            key.token(&thread, &turn, 1),
            key.token(&thread, &other_turn, 0),
            key.token(&ThreadId::parse("tu").unwrap(), &turn, 0),
            TokenKey::new(&[8; 32]).unwrap().token(&thread, &turn, 0),
            TurnToken::received(""),
            TurnToken::received(&token.as_str()[..31]),
        ];
        for other in others {
            assert!(!token.matches(&other) && !other.matches(&token));
        }
        assert!(!TurnToken::received("").matches(&TurnToken::received("")));
        assert_eq!(TokenKey::new(&[1; 31]), Err(InvalidTokenKey(31)));
    }
}
