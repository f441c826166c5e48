//! The public part of an API key, and marks that tell its secrets apart.

use std::fmt;

const ID_DIGITS: usize = 16;

/// The public part of an API key, by which it is looked up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub(crate) [u8; 8]);

/// Tells the secrets of one key apart: the first bytes of their digests.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SecretMark(pub(crate) [u8; 8]);

/// An API key behind a credential, and which of its secrets was presented.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PresentedKey {
    pub id: KeyId,
    pub secret: SecretMark,
}

impl KeyId {
    /// Parses 16 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        is_lower_hex(text, ID_DIGITS).then(|| text.as_bytes().chunks_exact(2)).map(|pairs| {
            let mut bytes = [0; 8];
            for (byte, pair) in bytes.iter_mut().zip(pairs) {
                *byte = pair.iter().fold(0, |value, digit| value << 4 | hex_value(*digit));
            }
            Self(bytes)
        })
    }
}

impl SecretMark {
    pub(crate) fn of(digest: &[u8; 32]) -> Self {
        let [a, b, c, d, e, f, g, h, ..] = *digest;
        Self([a, b, c, d, e, f, g, h])
    }
}

pub(crate) fn is_lower_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn hex_value(digit: u8) -> u8 {
    if digit.is_ascii_digit() { digit - b'0' } else { digit - b'a' + 10 }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Omits the bytes, which are a part of the digest.
impl fmt::Debug for SecretMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretMark(…)")
    }
}
