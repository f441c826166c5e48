//! Halves of UTF-16 pairs at the ends of a chunk's text.

use std::num::NonZeroU16;

/// What a publisher with UTF-16 texts leaves at the ends of a chunk when it cuts a text between the two units of a character. The chunk's text
/// is without them; where chunks are put in order, halves that meet become the character, and others U+FFFD.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Halves {
    /// The low half that the text begins with.
    first: Option<NonZeroU16>,
    /// The high half that it ends with.
    last: Option<NonZeroU16>,
}

impl Halves {
    /// No halves.
    pub const NONE: Self = Self { first: None, last: None };

    /// These halves; what is no low half or no high half is left out.
    pub fn new(first: Option<u16>, last: Option<u16>) -> Self {
        Self {
            first: first.filter(|unit| matches!(unit, 0xDC00..=0xDFFF)).and_then(NonZeroU16::new),
            last: last.filter(|unit| matches!(unit, 0xD800..=0xDBFF)).and_then(NonZeroU16::new),
        }
    }

    /// The low half that the text begins with.
    pub fn first(self) -> Option<u16> {
        self.first.map(NonZeroU16::get)
    }

    /// The high half that the text ends with.
    pub fn last(self) -> Option<u16> {
        self.last.map(NonZeroU16::get)
    }

    /// Whether there is none, as in nearly every chunk.
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// Distinguishes halves in the digest of a chunk.
    pub(crate) fn tag(self) -> u64 {
        let unit = |half: Option<NonZeroU16>| u64::from(half.map_or(0, NonZeroU16::get));
        unit(self.first) << 48 | unit(self.last) << 32
    }

    /// The character of a high half and the low half that follows it.
    pub fn joined(high: u16, low: u16) -> char {
        let decoded = char::decode_utf16([high, low]).next();
        decoded.and_then(Result::ok).unwrap_or(char::REPLACEMENT_CHARACTER)
    }
}
