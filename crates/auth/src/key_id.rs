//! The public part of an API key.

use std::fmt;

const ID_DIGITS: usize = 16;

/// The public part of an API key, by which it is looked up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub(crate) [u8; 8]);

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
