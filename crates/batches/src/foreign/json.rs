//! Parses JSON as other programs write it: an error in one place must not lose the rest.
//!
//! A character that cannot be stored is replaced by a mark, which is a Unicode noncharacter.
//! [`super::repair`] later finds the marks in each message, so that notes can name the message, and
//! replaces them with U+FFFD.

use std::borrow::Cow;

use serde_json::Value;

/// Marks half of a UTF-16 pair (`\ud83d` alone).
pub(super) const HALF: char = '\u{FDD0}';
/// Marks bytes that are not UTF-8.
pub(super) const BYTES: char = '\u{FDD1}';
/// Prefix of a string that replaces a number that JSON cannot represent, such as `NaN` and `1e400`.
pub(super) const NUMBER: char = '\u{FDD2}';

/// Parses JSON with or without a byte order mark, in UTF-8 or UTF-16. Accepts unpaired surrogates,
/// bytes that are not UTF-8, control characters in strings, `NaN`, infinities and numbers beyond
/// all doubles.
///
/// # Errors
/// The input has any other JSON error.
pub fn parse(input: &[u8]) -> Result<Value, serde_json::Error> {
    let text = text_of(input);
    serde_json::from_str(&text).or_else(|_| serde_json::from_str(&mended(&text)))
}

fn text_of(input: &[u8]) -> Cow<'_, str> {
    let units = |bytes: &[u8], unit: fn([u8; 2]) -> u16| {
        let units = bytes.as_chunks().0.iter().map(|pair| unit(*pair));
        char::decode_utf16(units).map(|decoded| decoded.unwrap_or(HALF)).collect()
    };
    match input {
        [0xFF, 0xFE, rest @ ..] => Cow::Owned(units(rest, u16::from_le_bytes)),
        [0xFE, 0xFF, rest @ ..] => Cow::Owned(units(rest, u16::from_be_bytes)),
        [0xEF, 0xBB, 0xBF, rest @ ..] => utf8(rest),
        _ => utf8(input),
    }
}

fn utf8(input: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = str::from_utf8(input) {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(input.len());
    for chunk in input.utf8_chunks() {
        text.push_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            text.push(BYTES);
        }
    }
    Cow::Owned(text)
}

/// The same JSON, in which everything that serde_json refuses is replaced.
fn mended(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 64);
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let used = match first {
            '"' => string(rest, &mut out),
            first if is_of_word(first) => word(rest, &mut out),
            other => {
                out.push(other);
                other.len_utf8()
            }
        };
        rest = rest.get(used..).unwrap_or_default();
    }
    out
}

fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')
}

/// Copies a word that is not in a string: a number, `true`, `NaN`. Returns its length.
fn word(rest: &str, out: &mut String) -> usize {
    let length = rest.find(|c| !is_of_word(c)).unwrap_or(rest.len());
    let word = rest.get(..length).unwrap_or_default();
    // Rust's parser also accepts `nan`, `inf` and `infinity` in any case as numbers.
    match word.parse::<f64>() {
        Ok(number) if !number.is_finite() => {
            out.push('"');
            out.push(NUMBER);
            out.push_str(word);
            out.push('"');
        }
        _ => out.push_str(word),
    }
    length
}

/// Copies a string with its quotation marks. Returns its length.
fn string(rest: &str, out: &mut String) -> usize {
    out.push('"');
    let mut at = 1;
    while let Some(next) = rest.get(at..).and_then(|rest| rest.chars().next()) {
        match next {
            '"' => {
                out.push('"');
                return at + 1;
            }
            '\\' => at += escape(rest.get(at..).unwrap_or_default(), out),
            control if control < ' ' => {
                out.push_str(&format!("\\u{:04x}", u32::from(control)));
                at += 1;
            }
            other => {
                out.push(other);
                at += other.len_utf8();
            }
        }
    }
    at
}

/// Copies an escape sequence, or two that form a UTF-16 pair. Returns their length.
fn escape(rest: &str, out: &mut String) -> usize {
    let length = match unit(rest) {
        Some(0xD800..=0xDBFF) => match rest.get(6..).and_then(unit) {
            Some(0xDC00..=0xDFFF) => 12,
            _ => 0,
        },
        Some(0xDC00..=0xDFFF) => 0,
        Some(_) => 6,
        None => 1 + rest.chars().nth(1).map_or(0, char::len_utf8),
    };
    if length == 0 {
        out.push(HALF);
        return 6;
    }
    out.push_str(rest.get(..length).unwrap_or_default());
    length
}

/// Decodes a leading `\uXXXX`.
fn unit(rest: &str) -> Option<u16> {
    let digits = rest.strip_prefix("\\u")?.get(..4)?;
    digits.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| u16::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_strict_parsers_refuse_is_marked() {
        for (input, parsed) in [
            (
                r#"["a\ud83d", "\udea4b", "\ud83d\udea4", "\ud83d\ud83d\udea4"]"#,
                json!([format!("a{HALF}"), format!("{HALF}b"), "🚤", format!("{HALF}🚤")]),
            ),
            (r#"["\\ud83d", "\"\ud83d"]"#, json!(["\\ud83d", format!("\"{HALF}")])),
            (
                r#"[NaN, -Infinity, Infinity, 1e400, -1E+400, 1e30, true, null, 0]"#,
                json!([
                    format!("{NUMBER}NaN"),
                    format!("{NUMBER}-Infinity"),
                    format!("{NUMBER}Infinity"),
                    format!("{NUMBER}1e400"),
                    format!("{NUMBER}-1E+400"),
                    1e30,
                    true,
                    null,
                    0
                ]),
            ),
            (r#"{"NaN": "NaN, 1e400"}"#, json!({"NaN": "NaN, 1e400"})),
            ("[\"a\tb\nc\"]", json!(["a\tb\nc"])),
            ("\u{feff}[1]", json!([1])),
        ] {
            assert_eq!(parse(input.as_bytes()).unwrap(), parsed, "{input}");
        }
        assert_eq!(
            parse(b"[\"a\xff\", \"\xc3\"]").unwrap(),
            json!([format!("a{BYTES}"), format!("{BYTES}")])
        );
        for encode in [u16::to_le_bytes, u16::to_be_bytes] {
            let units = "\u{feff}[\"Bö🚤\"]".encode_utf16().flat_map(encode).collect::<Vec<u8>>();
            assert_eq!(parse(&units).unwrap(), json!(["Bö🚤"]));
        }
    }

    #[test]
    fn no_json_is_refused() {
        for input in
            ["", "[", "[\"a", "[\"a\\", "[\"\\u12", "[\"\\x\"]", "[1 2]", "{\"a\"}", "[\\ud83d]", "nothing"]
        {
            assert!(parse(input.as_bytes()).is_err(), "{input}");
        }
    }

    #[test]
    fn what_is_json_already_stays_the_same() {
        let input = r#"{"a": "x\u0000\u00e9\n", "b": [1, -2.5e3, false], "é": "🚤"}"#;
        let strict: Value = serde_json::from_str(input).unwrap();
        assert_eq!(parse(input.as_bytes()).unwrap(), strict);
        assert_eq!(serde_json::from_str::<Value>(&mended(input)).unwrap(), strict);
    }
}
