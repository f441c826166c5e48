//! Halves of UTF-16 pairs at the ends of a chunk's text.

use std::num::NonZeroU16;

/// Halves cut off when a publisher with UTF-16 texts splits a text between the two units of a
/// character. The chunk's text does not contain them. When chunks are put in order, adjacent halves
/// become the character, and any other half becomes U+FFFD.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Halves {
    /// Low half before the text.
    first: Option<NonZeroU16>,
    /// High half after the text.
    last: Option<NonZeroU16>,
}

impl Halves {
    pub const NONE: Self = Self { first: None, last: None };

    /// Keeps only a valid low half and a valid high half.
    pub fn new(first: Option<u16>, last: Option<u16>) -> Self {
        Self {
            first: first.filter(|unit| matches!(unit, 0xDC00..=0xDFFF)).and_then(NonZeroU16::new),
            last: last.filter(|unit| matches!(unit, 0xD800..=0xDBFF)).and_then(NonZeroU16::new),
        }
    }

    /// Low half before the text.
    pub fn first(self) -> Option<u16> {
        self.first.map(NonZeroU16::get)
    }

    /// High half after the text.
    pub fn last(self) -> Option<u16> {
        self.last.map(NonZeroU16::get)
    }

    /// True if there is no half, as in nearly every chunk.
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// Distinguishes halves in the digest of a chunk.
    pub(crate) fn tag(self) -> u64 {
        let unit = |half: Option<NonZeroU16>| u64::from(half.map_or(0, NonZeroU16::get));
        unit(self.first) << 48 | unit(self.last) << 32
    }

    /// Character of a high half and the low half that follows it.
    pub fn joined(high: u16, low: u16) -> char {
        let decoded = char::decode_utf16([high, low]).next();
        decoded.and_then(Result::ok).unwrap_or(char::REPLACEMENT_CHARACTER)
    }
}
