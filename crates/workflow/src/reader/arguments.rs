//! Assembles the arguments of one call and decides what they mean at the end.
//!
//! Endpoints send arguments in pieces, as a whole, or as a whole with each piece. Some first send
//! `{}` and later the real arguments. A piece that repeats earlier text can be read in two ways.
//! Both readings are kept until one of them can no longer be JSON.

use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::deviations::{Deviation, Deviations};
use super::json;
use super::units::{Joiner, clean, cleaned};

/// Maximum number of readings of one call.
const MOST_READINGS: usize = 4;
/// Maximum length of a literal such as `null`.
const LONGEST_LITERAL: usize = 64;

/// State of the arguments so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ArgumentsState {
    Empty,
    Open,
    /// The arguments are a complete value.
    Whole,
}

#[derive(Debug)]
pub(super) struct Arguments {
    readings: Vec<String>,
    /// Scan of the only reading.
    scan: Scan,
    joiner: Joiner,
    /// Number of bytes passed on.
    said: usize,
    /// The text passed on before other arguments replaced it. Nothing can be added to it any more.
    replaced: Option<String>,
}

impl Default for Arguments {
    fn default() -> Self {
        Self {
            readings: vec![String::new()],
            scan: Scan::default(),
            joiner: Joiner::default(),
            said: 0,
            replaced: None,
        }
    }
}

impl Arguments {
    pub(super) fn state(&self) -> ArgumentsState {
        match &self.readings[..] {
            [only] if only.trim_ascii().is_empty() => ArgumentsState::Empty,
            [only] if self.scan.is_whole(only) => ArgumentsState::Whole,
            _ => ArgumentsState::Open,
        }
    }

    /// Whether the arguments so far are a placeholder for arguments that follow, or mean that there
    /// are none.
    pub(super) fn is_placeholder(&self) -> bool {
        matches!(self.first().trim(), "{}" | "null" | "\"\"" | "[]")
    }

    /// Whether this piece is equal to everything so far.
    pub(super) fn is_repeated_by(&self, piece: &str) -> bool {
        let (first, piece) = (self.first().trim(), piece.trim());
        first == piece || (self.state() == ArgumentsState::Whole && same_value(first, piece))
    }

    /// Whether this piece extends everything so far: the same object, in which texts and lists may
    /// be longer.
    pub(super) fn is_grown_by(&self, piece: &str) -> bool {
        is_grown(self.first(), piece, false).unwrap_or_else(|| self.is_begun_by(piece))
    }

    /// Whether this piece begins with all the text so far.
    fn is_begun_by(&self, piece: &str) -> bool {
        !self.first().is_empty() && piece.starts_with(self.first())
    }

    /// Whether unrelated arguments arrived after part of the first ones had been passed on.
    pub(super) fn is_torn(&self) -> bool {
        let has_grown = |shown: &String| is_grown(shown, self.first(), true).unwrap_or(false);
        self.replaced.as_ref().is_some_and(|shown| !has_grown(shown))
    }

    /// Whether part of the arguments was passed on.
    pub(super) fn is_said(&self) -> bool {
        self.said > 0
    }

    fn first(&self) -> &str {
        self.readings.first().map_or("", String::as_str)
    }

    pub(super) fn take(&mut self, piece: &str, deviations: &mut Deviations) {
        let piece = self.joiner.push(piece);
        if piece.is_empty() {
            return;
        }
        if self.readings.len() > 1 {
            return self.take_in_each_reading(&piece);
        }
        match self.state() {
            ArgumentsState::Whole if piece.trim().is_empty() => self.append(&piece),
            ArgumentsState::Whole if opens(&piece) => {
                if !self.is_placeholder() {
                    deviations.note(Deviation::Repetition);
                }
                if !self.is_repeated_by(&piece) {
                    self.replace(vec![piece]);
                }
            }
            ArgumentsState::Open if self.is_begun_by(&piece) => {
                let joined = format!("{}{piece}", self.first());
                match (can_be_json(&joined), can_be_json(&piece)) {
                    (true, true) => self.replace(vec![joined, piece]),
                    (false, true) => {
                        deviations.note(Deviation::Repetition);
                        self.replace(vec![piece]);
                    }
                    (_, false) => self.append(&piece),
                }
            }
            ArgumentsState::Empty | ArgumentsState::Open | ArgumentsState::Whole => self.append(&piece),
        }
    }

    fn append(&mut self, piece: &str) {
        if let Some(only) = self.readings.first_mut() {
            only.push_str(piece);
        }
        self.scan.feed(piece);
    }

    fn take_in_each_reading(&mut self, piece: &str) {
        let mut readings: Vec<String> = Vec::new();
        for reading in &self.readings {
            let joined = format!("{reading}{piece}");
            let whole = piece.starts_with(reading).then(|| piece.to_owned());
            for next in [Some(joined), whole].into_iter().flatten() {
                if can_be_json(&next) && !readings.contains(&next) && readings.len() < MOST_READINGS {
                    readings.push(next);
                }
            }
        }
        if readings.is_empty() {
            readings.push(format!("{}{piece}", self.first()));
        }
        self.replace(readings);
    }

    fn replace(&mut self, readings: Vec<String>) {
        let said = self.first()[..self.said].to_owned();
        if readings.iter().all(|reading| !reading.starts_with(&said)) {
            self.replaced.get_or_insert(said);
            self.said = 0;
        }
        self.readings = readings;
        self.scan = Scan::default();
        let only = self.first().to_owned();
        self.scan.feed(&only);
    }

    /// The text that may be passed on now. Complete arguments wait for the end, because others may
    /// replace them.
    pub(super) fn say(&mut self) -> String {
        match (&self.readings[..], self.state()) {
            ([only], ArgumentsState::Open) if self.replaced.is_none() => {
                let more = only.get(self.said..).unwrap_or_default().to_owned();
                self.said = only.len();
                more
            }
            _ => String::new(),
        }
    }

    /// The rest of the text to pass on, and the tool's arguments: the text of an object, or why
    /// there is none.
    pub(super) fn settle(&mut self) -> (String, Result<String, String>) {
        let rest = self.joiner.end();
        self.append(rest);
        let whole = self.readings.iter().find(|reading| object(reading).is_ok());
        let chosen = whole.or(self.readings.first()).cloned().unwrap_or_default();
        let said = self.first().get(..self.said).unwrap_or_default().to_owned();
        let meant = object(&chosen);
        let shown = meant.as_ref().ok().filter(|text| text.starts_with(&said)).cloned().unwrap_or(chosen);
        let more = shown.strip_prefix(&said).unwrap_or_default().to_owned();
        self.said = shown.len();
        self.replace_by_settled(shown);
        let more = if self.replaced.is_none() { more } else { String::new() };
        (more, meant)
    }

    fn replace_by_settled(&mut self, shown: String) {
        self.readings = vec![shown];
        self.scan = Scan::default();
        let only = self.first().to_owned();
        self.scan.feed(&only);
    }

    pub(super) fn has_lost(&self) -> bool {
        self.joiner.has_lost
    }
}

/// The text of the object that these arguments mean, for the tool and for the model's history.
///
/// Empty text, `null` and an empty list mean no arguments. An object inside a string, and the same
/// object twice, mean that object. Anything else is an error with its reason.
pub(crate) fn object(text: &str) -> Result<String, String> {
    let text = text.trim();
    if matches!(text, "" | "null" | "\"\"" | "[]" | "None" | "undefined") {
        return Ok("{}".to_owned());
    }
    if serde_json::from_str::<Map<String, Value>>(text).is_ok() {
        return Ok(text.to_owned());
    }
    if let Some((value, _)) = json::read(text.as_bytes()) {
        return match value {
            value @ Value::Object(_) => Ok(cleaned(value).to_string()),
            Value::String(inner) if inner.trim_start().starts_with('{') => object(&clean(&inner)),
            Value::String(_) => Err("they are a text".to_owned()),
            Value::Array(_) => Err("they are a list".to_owned()),
            Value::Number(_) => Err("they are a number".to_owned()),
            Value::Bool(_) | Value::Null => Err("they are no object".to_owned()),
        };
    }
    several(text).ok_or_else(|| match serde_json::from_str::<IgnoredAny>(text) {
        Err(error) => error.to_string(),
        Ok(_) => "they are no object".to_owned(),
    })
}

/// Reads consecutive objects that are equal or empty, perhaps followed by excess brackets.
fn several(text: &str) -> Option<String> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Map<String, Value>>();
    let mut found: Option<Map<String, Value>> = None;
    let mut read = 0;
    while let Some(Ok(next)) = values.next() {
        read = values.byte_offset();
        match &found {
            Some(known) if !known.is_empty() && !next.is_empty() && *known != next => return None,
            Some(known) if next.is_empty() && !known.is_empty() => {}
            _ => found = Some(next),
        }
    }
    let is_junk = text[read..].chars().all(|char| char.is_whitespace() || "}]".contains(char));
    found.filter(|_| is_junk).map(|map| Value::Object(map).to_string())
}

/// Whether an object extends an earlier one. `None`: one of them is not a complete object.
fn is_grown(known: &str, grown: &str, with_numbers: bool) -> Option<bool> {
    let read = |text: &str| serde_json::from_str::<Map<String, Value>>(text.trim()).ok().map(Value::Object);
    Some(has_grown(&read(known)?, &read(grown)?, with_numbers))
}

/// Whether a value extends an earlier one. `with_numbers`: 11 extends 1, which may also be another
/// value.
fn has_grown(known: &Value, grown: &Value, with_numbers: bool) -> bool {
    match (known, grown) {
        (Value::String(known), Value::String(grown)) => grown.starts_with(known.as_str()),
        (Value::Array(known), Value::Array(grown)) => {
            let mut both = known.iter().zip(grown);
            known.len() <= grown.len() && both.all(|(known, grown)| has_grown(known, grown, with_numbers))
        }
        (Value::Object(known), Value::Object(grown)) => {
            let is_in =
                |(key, known)| grown.get(key).is_some_and(|grown| has_grown(known, grown, with_numbers));
            known.iter().all(is_in)
        }
        (Value::Number(known), Value::Number(grown)) if with_numbers => {
            grown.to_string().starts_with(&known.to_string())
        }
        (Value::Null, _) => true,
        (known, grown) => known == grown,
    }
}

pub(super) fn same_value(one: &str, other: &str) -> bool {
    let read = |text: &str| serde_json::from_str::<Value>(text).ok();
    read(one).is_some_and(|one| read(other) == Some(one))
}

/// Whether a text is JSON or a prefix of JSON.
fn can_be_json(text: &str) -> bool {
    match serde_json::from_str::<IgnoredAny>(text) {
        Ok(_) => true,
        Err(error) => error.is_eof(),
    }
}

/// Whether a text begins an object or a list.
pub(super) fn opens(text: &str) -> bool {
    text.trim_start().starts_with(['{', '['])
}

/// Finds where a value closes, piece by piece.
#[derive(Debug, Default)]
struct Scan {
    depth: u32,
    in_string: bool,
    is_escaped: bool,
    has_closed: bool,
    is_literal: bool,
    has_begun: bool,
}

impl Scan {
    fn feed(&mut self, piece: &str) {
        for byte in piece.bytes() {
            if !self.has_begun && !byte.is_ascii_whitespace() {
                self.has_begun = true;
                self.is_literal = !b"{[\"".contains(&byte);
            }
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.in_string => self.is_escaped = true,
                b'"' => {
                    self.in_string = !self.in_string;
                    self.has_closed |= self.depth == 0 && !self.in_string;
                }
                _ if self.in_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    self.has_closed |= self.depth == 0;
                }
                _ => {}
            }
        }
    }

    fn is_whole(&self, text: &str) -> bool {
        if !self.is_literal {
            return self.has_closed;
        }
        text.len() <= LONGEST_LITERAL && serde_json::from_str::<IgnoredAny>(text).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text passed on after each piece and at the end, and the final arguments.
    fn taken(pieces: &[&str]) -> (Vec<String>, Result<String, String>) {
        let (mut arguments, mut deviations) = (Arguments::default(), Deviations::default());
        let mut said = Vec::new();
        for piece in pieces {
            arguments.take(piece, &mut deviations);
            said.push(arguments.say());
        }
        let (more, meant) = arguments.settle();
        said.push(more);
        (said, meant)
    }

    #[test]
    fn pieces_become_one_object() {
        let cases: [(&[&str], &str); 14] = [
            (&["{\"a\"", ":1}"], "{\"a\":1}"),
            (&["{\"a\":", "{\"a\":1", "{\"a\":1}"], "{\"a\":1}"),
            (&["{\"a\":\"", "{\"a\":\"x", "{\"a\":\"x\"}"], "{\"a\":\"x\"}"),
            (&["{", "{\"a\":1}"], "{\"a\":1}"),
            (&["{\"a\":", "{\"a\":1}", "}"], "{\"a\":{\"a\":1}}"),
            (&["{\"a\":", "{\"a\":1}"], "{\"a\":1}"),
            (&["{}", "{\"a\":1}"], "{\"a\":1}"),
            (&["{}", "{\"a\"", ":1}"], "{\"a\":1}"),
            (&["{\"a\":1}", "{\"a\":1}"], "{\"a\":1}"),
            (&["{\"a\"", ":1}", "{\"a\": 1}"], "{\"a\":1}"),
            (&["{\"a\":1}{\"a\":1}"], "{\"a\":1}"),
            (&["{}{\"a\":1}}"], "{\"a\":1}"),
            (&["null", "{\"a\":1}"], "{\"a\":1}"),
            (&["\"{\\\"a\\\":", "1}\""], "{\"a\":1}"),
        ];
        for (pieces, meant) in cases {
            let (said, result) = taken(pieces);
            assert_eq!(result.as_deref(), Ok(meant), "{pieces:?}");
            if !pieces[0].starts_with('"') {
                assert_eq!(said.concat(), meant, "{pieces:?}");
            }
        }
    }

    #[test]
    fn objects_grow_at_any_depth() {
        for (known, grown, is) in [
            ("{\"legs\":[\"a\"]}", "{\"legs\":[\"a\",\"b\"]}", Some(true)),
            ("{\"legs\":[{\"to\":\"Ska\"}]}", "{\"legs\":[{\"to\":\"Skagen\",\"at\":4}]}", Some(true)),
            ("{\"a\":{\"b\":{}}}", "{\"a\":{\"b\":{\"c\":1}}}", Some(true)),
            ("{\"a\":null}", "{\"a\":1}", Some(true)),
            ("{\"legs\":[\"a\",\"b\"]}", "{\"legs\":[\"a\"]}", Some(false)),
            ("{\"legs\":[\"a\"]}", "{\"legs\":[\"b\",\"a\"]}", Some(false)),
            ("{\"a\":{\"b\":1}}", "{\"a\":{\"b\":2}}", Some(false)),
            ("{\"berth\":1}", "{\"berth\":11}", Some(false)),
            ("{\"a\":1}", "{\"b\":1}", Some(false)),
            ("{\"a\":1", "{\"a\":1}", None),
            ("[1]", "[1,2]", None),
        ] {
            assert_eq!(is_grown(known, grown, false), is, "{known} {grown}");
        }
        assert_eq!(is_grown("{\"berth\":1}", "{\"berth\":11}", true), Some(true));
        assert_eq!(is_grown("{\"berth\":1}", "{\"berth\":2}", true), Some(false));
    }

    #[test]
    fn arguments_are_said_as_they_come() {
        assert_eq!(taken(&["{\"a\"", ":1", "}"]).0, ["{\"a\"", ":1", "", "}"]);
        assert_eq!(taken(&["{}", " "]).0, ["", "", "{}"]);
    }

    #[test]
    fn what_is_no_object_says_why() {
        for (text, meant) in [
            ("", Some("{}")),
            (" null ", Some("{}")),
            ("{\"a\":NaN,\"b\":\"x\ny\",}", Some("{\"a\":null,\"b\":\"x\\ny\"}")),
            ("{\"a\":\"\\ud83d\\udea4\"}", Some("{\"a\":\"\\ud83d\\udea4\"}")),
            ("{\"a\":\"\\ud83d\"}", Some("{\"a\":\"\u{FFFD}\"}")),
            ("{line: wind}", None),
            ("[\"wind\"]", None),
            ("7", None),
            ("\"wind\"", None),
            ("{\"a\":\"x", None),
            ("{\"a\":1}{\"a\":2}", None),
        ] {
            let result = object(text);
            assert_eq!(result.as_deref().ok(), meant, "{text}: {result:?}");
        }
    }
}
