//! Parses JSON as endpoints write it. A token that a strict parser refuses is repaired, so that an
//! error costs that token and not the answer.
//!
//! Repaired are invalid UTF-8, unpaired surrogates, control characters in strings, unknown escapes,
//! `NaN`, infinities, numbers out of range, `None`, `undefined` and trailing commas. Truncated JSON
//! is not repaired.

use serde_json::Value;

use super::units;

/// A value, and whether its text had to be repaired.
pub(super) fn read(bytes: &[u8]) -> Option<(Value, bool)> {
    match serde_json::from_slice(bytes) {
        Ok(value) => Some((value, false)),
        // The text is truncated, which is not repaired.
        Err(error) if error.is_eof() => None,
        // Text that begins like no JSON value is not repaired.
        Err(_) if !bytes.trim_ascii().first().is_some_and(|byte| b"{[\"".contains(byte)) => None,
        Err(_) => Some((serde_json::from_str(&mended(bytes)).ok()?, true)),
    }
}

/// Reads an object that lacks only its last bracket. An object that lacks more is not read, because
/// text could be lost.
pub(super) fn read_unclosed(bytes: &[u8]) -> Option<Value> {
    let bytes = bytes.trim_ascii_end();
    let ends_a_value = bytes.last().is_some_and(|byte| b"}]".contains(byte));
    (bytes.starts_with(b"{") && ends_a_value).then(|| read(&[bytes, b"}"].concat()))?.map(|(value, _)| value)
}

/// Reads consecutive objects and lists, perhaps with commas between them and excess brackets at the
/// end.
pub(super) fn read_several(bytes: &[u8]) -> Option<Vec<Value>> {
    let (mut values, mut rest) = (Vec::new(), bytes.trim_ascii());
    while rest.first().is_some_and(|byte| b"{[".contains(byte)) {
        let length = Closing::default().end_of(rest)?;
        values.push(read(&rest[..length])?.0);
        rest = rest[length..].trim_ascii_start();
        rest = rest.strip_prefix(b",").unwrap_or(rest).trim_ascii_start();
    }
    let is_junk = rest.iter().all(|byte| byte.is_ascii_whitespace() || b"}]".contains(byte));
    (is_junk && !values.is_empty()).then_some(values)
}

/// Finds where a value closes, piece by piece.
#[derive(Debug, Default)]
pub(super) struct Closing {
    depth: u32,
    in_string: bool,
    is_escaped: bool,
    has_begun: bool,
}

impl Closing {
    /// Reads on. Returns where the value closes, as the number of these bytes that belong to it.
    fn end_of(&mut self, bytes: &[u8]) -> Option<usize> {
        bytes.iter().position(|byte| self.is_end(*byte)).map(|at| at + 1)
    }

    /// Reads on. Returns whether all values that have begun are closed.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> bool {
        for byte in bytes {
            self.is_end(*byte);
        }
        self.has_begun && self.depth == 0 && !self.in_string
    }

    fn is_end(&mut self, byte: u8) -> bool {
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' if self.in_string => self.is_escaped = true,
            b'"' if self.depth > 0 => self.in_string = !self.in_string,
            _ if self.in_string => {}
            b'{' | b'[' => {
                self.depth += 1;
                self.has_begun = true;
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }
}

/// The text of a JSON value, repaired. Stray bytes and unpaired surrogates become [`units`].
fn mended(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() + 16);
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => at = string(bytes, at + 1, &mut out),
            b'}' | b']' => {
                drop_trailing_comma(&mut out);
                out.push(char::from(byte));
                at += 1;
            }
            b'{' | b'[' | b':' | b',' => {
                out.push(char::from(byte));
                at += 1;
            }
            _ if byte.is_ascii_whitespace() => {
                out.push(' ');
                at += 1;
            }
            _ => {
                let rest = &bytes[at..];
                let length = rest.iter().position(|byte| ends_token(*byte)).unwrap_or(rest.len());
                out.push_str(&token(&rest[..length]));
                at += length;
            }
        }
    }
    out
}

fn drop_trailing_comma(out: &mut String) {
    let kept = out.trim_end();
    if let Some(before) = kept.strip_suffix(',') {
        out.truncate(before.len());
    }
}

fn ends_token(byte: u8) -> bool {
    byte.is_ascii_whitespace() || b"\"{}[]:,".contains(&byte)
}

/// Writes a literal or a number; any other token has no usable value.
fn token(bytes: &[u8]) -> String {
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    match text {
        "true" | "True" => return "true".to_owned(),
        "false" | "False" => return "false".to_owned(),
        _ => {}
    }
    if serde_json::from_str::<Value>(text).is_ok() {
        return text.to_owned();
    }
    let is_number = text.bytes().any(|byte| byte.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    match text.parse::<f64>() {
        Ok(number) if is_number && number.is_finite() => number.to_string(),
        _ => "null".to_owned(),
    }
}

/// Copies a string from behind its opening quote and returns where it ends.
fn string(bytes: &[u8], mut at: usize, out: &mut String) -> usize {
    out.push('"');
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => {
                out.push('"');
                return at + 1;
            }
            b'\\' => at = escape(bytes, at + 1, out),
            0..0x20 => {
                out.push_str(&format!("\\u{byte:04x}"));
                at += 1;
            }
            0x20..0x80 => {
                out.push(char::from(byte));
                at += 1;
            }
            _ => {
                match first_char(&bytes[at..]) {
                    Some(units::MARK) => out.push('\u{FFFD}'),
                    Some(char) => out.push(char),
                    None => units::push(u32::from(byte), out),
                }
                at += first_char(&bytes[at..]).map_or(1, char::len_utf8);
            }
        }
    }
    at
}

fn first_char(bytes: &[u8]) -> Option<char> {
    let bytes = &bytes[..bytes.len().min(4)];
    let valid = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).ok()?,
    };
    valid.chars().next()
}

/// Copies an escape from behind its backslash and returns where it ends.
fn escape(bytes: &[u8], at: usize, out: &mut String) -> usize {
    match bytes.get(at) {
        Some(&byte) if b"\"\\/bfnrt".contains(&byte) => {
            out.push('\\');
            out.push(char::from(byte));
            at + 1
        }
        Some(b'\'') => {
            out.push('\'');
            at + 1
        }
        Some(b'u') => match unit(bytes, at + 1) {
            Some(high @ 0xD800..0xDC00) => match low_half(bytes, at + 5) {
                Some(low) => {
                    out.push_str(&format!("\\u{high:04x}\\u{low:04x}"));
                    at + 11
                }
                None => {
                    units::push(high, out);
                    at + 5
                }
            },
            Some(low @ 0xDC00..0xE000) => {
                units::push(low, out);
                at + 5
            }
            Some(unit) => {
                out.push_str(&format!("\\u{unit:04x}"));
                at + 5
            }
            None => {
                out.push_str("\\\\u");
                at + 1
            }
        },
        // This is not an escape: the backslash is literal.
        Some(_) => {
            out.push_str("\\\\");
            at
        }
        None => at,
    }
}

fn low_half(bytes: &[u8], at: usize) -> Option<u32> {
    let escaped = bytes.get(at..at + 2)? == b"\\u";
    unit(bytes, at + 2).filter(|unit| escaped && (0xDC00..0xE000).contains(unit))
}

fn unit(bytes: &[u8], at: usize) -> Option<u32> {
    let digits = bytes.get(at..at + 4)?;
    let digits = digits.iter().all(u8::is_ascii_hexdigit).then(|| std::str::from_utf8(digits).ok())??;
    u32::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_bad_token_costs_that_token() {
        let cases: [(&[u8], Value); 14] = [
            (br#"{"a":NaN,"b":1}"#, json!({"a": null, "b": 1})),
            (br#"{"a":-Infinity,"b":[inf,nan,1]}"#, json!({"a": null, "b": [null, null, 1]})),
            (br#"{"a":7e999,"b":-1e400}"#, json!({"a": null, "b": null})),
            (br#"{"a":1,}"#, json!({"a": 1})),
            (br#"[1, 2 , ]"#, json!([1, 2])),
            (br#"{"a":None,"b":True,"c":undefined}"#, json!({"a": null, "b": true, "c": null})),
            (br#"{"a":+1,"b":.5,"c":5.,"d":007}"#, json!({"a": 1, "b": 0.5, "c": 5, "d": 7})),
            (b"{\"a\":\"x\ty\nz\"}", json!({"a": "x\ty\nz"})),
            (br#"{"a":"it\'s \x41 \u12"}"#, json!({"a": "it's \\x41 \\u12"})),
            (br#"{"a":"\ud83d\udea4"}"#, json!({"a": "🚤"})),
            (br#"{"a":"\uD83D\uDEA4","b":NaN}"#, json!({"a": "🚤", "b": null})),
            (b"{\"a\":\"K\xF8\"}", json!({"a": "K\u{FDD0}\u{E8F8}"})),
            (br#"{"a":"x\ud83d"}"#, json!({"a": "x\u{FDD0}\u{E03D}"})),
            (br#"{"a":"\udea4\ud83d!"}"#, json!({"a": "\u{FDD0}\u{E6A4}\u{FDD0}\u{E03D}!"})),
        ];
        for (text, value) in cases {
            let (read, _) = read(text).unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(text)));
            assert!(equal(&read, &value), "{}: {read}", String::from_utf8_lossy(text));
        }
    }

    /// 1 and 1.0 are the same number.
    fn equal(one: &Value, other: &Value) -> bool {
        match (one, other) {
            (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
            (Value::Array(one), Value::Array(other)) => {
                one.len() == other.len() && one.iter().zip(other).all(|(one, other)| equal(one, other))
            }
            (Value::Object(one), Value::Object(other)) => {
                one.len() == other.len()
                    && one.iter().all(|(key, one)| other.get(key).is_some_and(|other| equal(one, other)))
            }
            _ => one == other,
        }
    }

    #[test]
    fn one_bracket_may_be_missing_at_the_end() {
        assert_eq!(read_unclosed(b"{\"a\":{\"b\":1}"), Some(json!({"a": {"b": 1}})));
        for text in ["{", "{\"a\":{\"b\":[1]", "{\"a\":1", "{\"a\":\"}", "[1]", "{\"a\":[],"] {
            assert_eq!(read_unclosed(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn several_values_are_read_one_by_one() {
        let (one, two) = (json!({"a": "}"}), json!([2]));
        for (text, values) in [
            ("{\"a\":\"}\"}[2]", vec![one.clone(), two.clone()]),
            ("{\"a\":\"}\"} , [2],", vec![one.clone(), two]),
            ("{\"a\":\"}\"}}]", vec![one.clone()]),
            ("{\"a\":\"}\",}\n{\"a\":\"}\"}", vec![one.clone(), one]),
        ] {
            assert_eq!(read_several(text.as_bytes()), Some(values), "{text}");
        }
        for text in ["", "}", "{\"a\":1} x", "{\"a\":1}{\"a\":", "{a: 1}{}", "1 2", "{\"a\":\"x}"] {
            assert_eq!(read_several(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn what_ends_too_early_is_no_json() {
        for text in ["", "{", "{\"a\":\"x", "{\"a\":NaN", "[1,", "<html>", "{\"a\":1} x", "{a: 1}"] {
            assert_eq!(read(text.as_bytes()), None, "{text}");
        }
    }
}
