//! Characters that arrive in pieces in different events: the two halves of a UTF-16 pair, or the
//! bytes of a UTF-8 sequence.
//!
//! A `String` cannot hold a piece, so [`super::json`] writes it as two characters: a Unicode
//! noncharacter, which no text contains, and a private-use one that encodes the piece. [`Joiner`]
//! joins the pieces; a piece without its counterpart becomes U+FFFD.

use serde_json::Value;

/// Marks the start of a piece.
pub(super) const MARK: char = '\u{FDD0}';
/// Code points of surrogate halves, from U+D800 on.
const HALVES: u32 = 0xE000;
/// Code points of single bytes.
const BYTES: u32 = 0xE800;
const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

/// Writes a half (from 0xD800 on) or a byte (below 0x100).
pub(super) fn push(unit: u32, out: &mut String) {
    let place = if unit < 0x100 { BYTES + unit } else { HALVES + (unit - 0xD800) };
    out.push(MARK);
    out.push(char::from_u32(place).unwrap_or(REPLACEMENT));
}

/// A complete text with its pieces joined.
pub(super) fn clean(text: &str) -> String {
    let mut joiner = Joiner::default();
    let mut clean = joiner.push(text);
    clean.push_str(joiner.end());
    clean
}

/// A value with the pieces of all its texts joined.
pub(super) fn cleaned(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(clean(&text)),
        Value::Array(list) => list.into_iter().map(cleaned).collect(),
        Value::Object(map) => map.into_iter().map(|(key, value)| (clean(&key), cleaned(value))).collect(),
        other => other,
    }
}

/// Joins the pieces of a text that arrives in several events.
#[derive(Debug, Default)]
pub(super) struct Joiner {
    half: Option<u32>,
    bytes: Vec<u8>,
    /// A piece became U+FFFD.
    pub(super) has_lost: bool,
}

impl Joiner {
    /// The text that can be passed on after this input.
    pub(super) fn push(&mut self, text: &str) -> String {
        if self.half.is_none() && self.bytes.is_empty() && !text.contains(MARK) {
            return text.to_owned();
        }
        let mut out = String::with_capacity(text.len() + 4);
        let mut chars = text.chars().peekable();
        while let Some(char) = chars.next() {
            let place = chars.peek().map(|next| u32::from(*next)).filter(|_| char == MARK);
            match place {
                Some(place @ HALVES..BYTES) => {
                    chars.next();
                    self.half(place - HALVES + 0xD800, &mut out);
                }
                Some(place @ BYTES..0xE900) => {
                    chars.next();
                    self.byte((place - BYTES) as u8, &mut out);
                }
                _ => {
                    self.give_up(&mut out);
                    out.push(char);
                }
            }
        }
        out
    }

    /// The remainder at the end of the text.
    pub(super) fn end(&mut self) -> &'static str {
        let mut out = String::new();
        self.give_up(&mut out);
        if out.is_empty() { "" } else { "\u{FFFD}" }
    }

    fn half(&mut self, unit: u32, out: &mut String) {
        let is_low = unit >= 0xDC00;
        match self.half {
            Some(high) if is_low => {
                self.half = None;
                let char = char::from_u32(0x1_0000 + ((high - 0xD800) << 10) + (unit - 0xDC00));
                out.push(char.unwrap_or(REPLACEMENT));
            }
            _ => {
                self.give_up(out);
                if is_low {
                    self.lose(out);
                } else {
                    self.half = Some(unit);
                }
            }
        }
    }

    fn byte(&mut self, byte: u8, out: &mut String) {
        if self.half.take().is_some() {
            self.lose(out);
        }
        self.bytes.push(byte);
        match std::str::from_utf8(&self.bytes) {
            Ok(text) => {
                out.push_str(text);
                self.bytes.clear();
            }
            Err(error) if error.error_len().is_none() => {}
            Err(_) if self.bytes.len() > 1 => {
                self.bytes.clear();
                self.lose(out);
                self.byte(byte, out);
            }
            Err(_) => {
                self.bytes.clear();
                self.lose(out);
            }
        }
    }

    fn give_up(&mut self, out: &mut String) {
        if self.half.take().is_some() || !self.bytes.is_empty() {
            self.bytes.clear();
            self.lose(out);
        }
    }

    fn lose(&mut self, out: &mut String) {
        self.has_lost = true;
        out.push(REPLACEMENT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(pieces: &[&[u32]]) -> String {
        let mut joiner = Joiner::default();
        let mut out = String::new();
        for units in pieces {
            let mut text = String::new();
            for unit in *units {
                match unit {
                    0x80..0x100 | 0xD800..0xE000 => push(*unit, &mut text),
                    other => text.push(char::from_u32(*other).unwrap()),
                }
            }
            out.push_str(&joiner.push(&text));
        }
        out.push_str(joiner.end());
        out
    }

    #[test]
    fn pieces_meet_across_events() {
        assert_eq!(joined(&[&[0x41, 0xD83D], &[0xDEA4, 0x42]]), "A🚤B");
        assert_eq!(joined(&[&[0x41, 0xD83D], &[], &[0xDEA4]]), "A🚤");
        assert_eq!(joined(&[&[0xF0, 0x9F], &[0x9A], &[0xA4, 0x42]]), "🚤B");
        assert_eq!(joined(&[&[0x41, 0xD83D], &[0x42]]), "A\u{FFFD}B");
        assert_eq!(joined(&[&[0xD83D], &[0xD83D], &[0xDEA4]]), "\u{FFFD}🚤");
        assert_eq!(joined(&[&[0xDEA4], &[0xD83D]]), "\u{FFFD}\u{FFFD}");
        assert_eq!(joined(&[&[0xF8, 0x62], &[0xF0, 0x9F, 0x41]]), "\u{FFFD}b\u{FFFD}A");
        assert_eq!(joined(&[&[0xC3, 0xC3], &[0xA9]]), "\u{FFFD}é");
        assert_eq!(joined(&[&[0xD83D, 0xC3, 0xA9]]), "\u{FFFD}é");
    }
}
