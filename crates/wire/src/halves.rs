//! Halves of UTF-16 pairs in JSON. A publisher that splits a text between the two units of a
//! character writes `\ud83d` in one chunk and `\udea4` in the next.

use std::fmt;

use model::Halves;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};

/// The text of a chunk, and the halves at its ends. A half that is not at an end becomes U+FFFD.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct CutText {
    pub(crate) text: String,
    pub(crate) halves: Halves,
}

impl<'de> Deserialize<'de> for CutText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // If read as bytes, serde_json returns halves as three-byte sequences; if read as text, it
        // refuses them.
        deserializer.deserialize_bytes(CutTextVisitor)
    }
}

struct CutTextVisitor;

impl Visitor<'_> for CutTextVisitor {
    type Value = CutText;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<CutText, E> {
        Ok(CutText { text: text.to_owned(), halves: Halves::NONE })
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<CutText, E> {
        if let Ok(text) = str::from_utf8(bytes) {
            return self.visit_str(text);
        }
        read(bytes).ok_or_else(|| E::custom("the text is not UTF-8"))
    }
}

fn read(bytes: &[u8]) -> Option<CutText> {
    let first = half(bytes).filter(|unit| *unit >= 0xDC00);
    let bytes = if first.is_some() { bytes.get(3..)? } else { bytes };
    let end = bytes.len().checked_sub(3).and_then(|at| bytes.get(at..));
    let last = end.and_then(half).filter(|unit| *unit < 0xDC00);
    let mut rest = if last.is_some() { bytes.get(..bytes.len() - 3)? } else { bytes };
    let mut text = String::with_capacity(bytes.len());
    while !rest.is_empty() {
        let valid = match str::from_utf8(rest) {
            Ok(valid) => valid,
            Err(error) => str::from_utf8(rest.get(..error.valid_up_to())?).ok()?,
        };
        text.push_str(valid);
        rest = rest.get(valid.len()..)?;
        if !rest.is_empty() {
            half(rest)?;
            text.push(char::REPLACEMENT_CHARACTER);
            rest = rest.get(3..)?;
        }
    }
    Some(CutText { text, halves: Halves::new(first, last) })
}

/// The half at the beginning of the bytes.
fn half(bytes: &[u8]) -> Option<u16> {
    match bytes {
        [0xED, middle @ 0xA0..=0xBF, last @ 0x80..=0xBF, ..] => {
            Some(0xD000 | u16::from(middle & 0x3F) << 6 | u16::from(last & 0x3F))
        }
        _ => None,
    }
}

/// Replaces every half in the payload with U+FFFD, except in the values of one key. The exception
/// applies only to the top level: the payload's object, or the objects of its list. A deeper key
/// belongs to another object. Returns `None` when there is no half.
pub(crate) fn replaced(payload: &[u8], but: Option<&str>) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(payload.len());
    let mut rest = payload;
    let mut key: &[u8] = b"";
    let key_depth = if payload.trim_ascii_start().first() == Some(&b'[') { 2 } else { 1 };
    let mut depth = 0_usize;
    let mut is_value = false;
    let mut is_changed = false;
    while let Some((&first, after)) = rest.split_first() {
        if first != b'"' {
            depth = match first {
                b'{' | b'[' => depth + 1,
                b'}' | b']' => depth.saturating_sub(1),
                _ => depth,
            };
            // The text after a colon is the value of the key before it.
            is_value = first == b':' || (is_value && first.is_ascii_whitespace());
            out.push(first);
            rest = after;
            continue;
        }
        let length = string(after);
        let (text, after) = after.split_at(length);
        out.push(b'"');
        if is_value && depth == key_depth && but.is_some_and(|but| but.as_bytes() == key) {
            out.extend(text);
        } else {
            is_changed |= copy(text, &mut out);
        }
        (key, is_value, rest) = (text, false, after);
        if let Some((quote, after)) = rest.split_first() {
            out.push(*quote);
            rest = after;
        }
    }
    is_changed.then_some(out)
}

/// The length of a string up to its closing quotation mark.
fn string(text: &[u8]) -> usize {
    let mut at = 0;
    loop {
        match text.get(at) {
            None | Some(b'"') => return at.min(text.len()),
            Some(b'\\') => at += 2,
            Some(_) => at += 1,
        }
    }
}

/// Copies a string, and returns true if it had a half.
fn copy(text: &[u8], out: &mut Vec<u8>) -> bool {
    let mut is_changed = false;
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let length = match (unit(rest), rest.get(6..).and_then(unit)) {
            (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => 12,
            (Some(0xD800..=0xDFFF), _) => {
                out.extend(b"\\ufffd");
                is_changed = true;
                rest = rest.get(6..).unwrap_or_default();
                continue;
            }
            // After an escaped backslash, the second backslash begins no escape.
            _ if first == b'\\' && !after.is_empty() => 2,
            _ => 1,
        };
        let (copied, after) = rest.split_at(length);
        out.extend(copied);
        rest = after;
    }
    is_changed
}

/// Decodes a leading `\uXXXX`.
fn unit(text: &[u8]) -> Option<u16> {
    let digits = text.strip_prefix(b"\\u")?.get(..4)?;
    let digits =
        str::from_utf8(digits).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    u16::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(json: &str) -> Result<(String, Option<u16>, Option<u16>), String> {
        let cut = serde_json::from_str::<CutText>(json).map_err(|error| error.to_string())?;
        Ok((cut.text, cut.halves.first(), cut.halves.last()))
    }

    #[test]
    fn halves_at_the_ends_are_kept_and_others_replaced() {
        let (high, low) = (Some(0xD83D), Some(0xDEA4));
        for (json, text, first, last) in [
            (r#""Ahoy""#, "Ahoy", None, None),
            (r#""\ud83d\udea4""#, "🚤", None, None),
            (r#""Ahoy \ud83d""#, "Ahoy ", None, high),
            (r#""\udea4!""#, "!", low, None),
            (r#""\udea4\ud83d""#, "", low, high),
            (r#""\ud83d""#, "", None, high),
            (r#""\ud83d\ud83d""#, "\u{fffd}", None, high),
            (r#""\udea4\udea4""#, "\u{fffd}", low, None),
            (r#""a\ud83db\udea4c""#, "a\u{fffd}b\u{fffd}c", None, None),
            (r#""""#, "", None, None),
        ] {
            assert_eq!(cut(json), Ok((text.to_owned(), first, last)), "{json}");
        }
        for wrong in ["7", "[1]", "null", "true", "{}"] {
            assert!(cut(wrong).unwrap_err().contains("expected a string"), "{wrong}");
        }
        let bytes = serde_json::from_slice::<CutText>(b"\"a\xff\"");
        assert!(bytes.unwrap_err().to_string().contains("not UTF-8"));
    }

    #[test]
    fn halves_outside_of_the_key_are_replaced() {
        let replaced = |text: &str| {
            replaced(text.as_bytes(), Some("chunk")).map(|bytes| String::from_utf8(bytes).unwrap())
        };
        for (text, found) in [
            (
                r#"{"chunk" : "a\ud83d", "m": {"k\udea4": "\ud83d\udea4\ud83d"}}"#,
                Some(r#"{"chunk" : "a\ud83d", "m": {"k\ufffd": "\ud83d\udea4\ufffd"}}"#),
            ),
            (r#"["chunk", "\ud83d"]"#, Some(r#"["chunk", "\ufffd"]"#)),
            (
                r#"{"chunk": "a", "metadata": {"chunk": "\ud83d"}}"#,
                Some(r#"{"chunk": "a", "metadata": {"chunk": "\ufffd"}}"#),
            ),
            (
                r#" [{"chunk": "a\ud83d", "m": [{"chunk": "\ud83d"}]}, {"chunk": "\udea4"}]"#,
                Some(r#" [{"chunk": "a\ud83d", "m": [{"chunk": "\ufffd"}]}, {"chunk": "\udea4"}]"#),
            ),
            (r#"{"m": "}{\"[", "chunk": "\udea4"}"#, None),
            (r#"{"m": "\\ud83d"}"#, None),
            (r#"{"m": "\"\\", "chunk": "\udea4"}"#, None),
            (r#"{"m": "\ud83"#, None),
            (r#"{"m": "\"#, None),
            ("", None),
        ] {
            assert_eq!(replaced(text).as_deref(), found, "{text}");
        }
    }
}
