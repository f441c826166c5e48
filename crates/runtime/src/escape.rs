//! Makes text from outside safe for a terminal and for one line of a log.
//!
//! A newline would begin a forged line, an escape sequence would act on the terminal, and
//! bidirectional controls would change the visible order of a text.

use std::borrow::Cow;
use std::fmt::{self, Write};

/// True if `c` moves the cursor, ends a line, reorders the text or is invisible, so that it must
/// not be printed raw.
#[must_use]
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c,
            // Line and paragraph separator.
            '\u{2028}' | '\u{2029}'
            // Bidirectional marks, embeddings, overrides and isolates, and the deprecated controls
            // after them.
            | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{206f}'
            // Byte order mark, annotations, and tags, which are invisible.
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Returns `text` with unsafe characters in Rust notation: `\n`, `\u{1b}`.
#[must_use]
pub fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    // Writing into a string does not fail.
    Escaping(&mut escaped).write_str(text).ok();
    Cow::Owned(escaped)
}

/// Returns JSON with unsafe characters as `\uXXXX`. In serialized JSON such characters occur only
/// inside strings.
#[must_use]
pub fn escape_json(json: &str) -> Cow<'_, str> {
    // Line breaks and tabs between values are the layout of the JSON itself.
    let is_escaped = |c: char| is_unsafe(c) && !matches!(c, '\n' | '\t');
    if !json.contains(is_escaped) {
        return Cow::Borrowed(json);
    }
    let mut escaped = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if !is_escaped(c) {
            escaped.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            write!(escaped, "\\u{unit:04x}").ok();
        }
    }
    Cow::Owned(escaped)
}

/// Escapes everything written through it, as [`escape`] does.
#[derive(Debug)]
pub struct Escaping<W>(pub W);

impl<W: Write> Write for Escaping<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some((at, c)) = rest.char_indices().find(|(_, c)| is_unsafe(*c)) {
            let (safe, unsafe_and_rest) = rest.split_at(at);
            self.0.write_str(safe)?;
            match c {
                '\n' => self.0.write_str("\\n")?,
                '\r' => self.0.write_str("\\r")?,
                '\t' => self.0.write_str("\\t")?,
                c => write!(self.0, "{}", c.escape_unicode())?,
            }
            rest = unsafe_and_rest.strip_prefix(c).unwrap_or_default();
        }
        self.0.write_str(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_characters_are_written_as_escapes() {
        assert_eq!(escape("a\nb\r\tc\u{1b}[2J"), "a\\nb\\r\\tc\\u{1b}[2J");
        assert_eq!(escape("\u{9b}\u{202e}x\u{2028}\u{e0041}"), "\\u{9b}\\u{202e}x\\u{2028}\\u{e0041}");
        let plain = "Grüße, 日本語, שלום, 👩‍👩‍👧 C:\\new \"quoted\"";
        assert!(matches!(escape(plain), Cow::Borrowed(text) if text == plain));
    }

    #[test]
    fn escaped_json_has_the_same_value() {
        let json = "{\n  \"a\": \"\u{7f}\u{9b}\u{202e}\u{e0041}é\"\n}";
        let escaped = escape_json(json);
        assert_eq!(escaped, "{\n  \"a\": \"\\u007f\\u009b\\u202e\\udb40\\udc41é\"\n}");
    }
}
