//! Replaces values in a message that Postgres cannot store, and reports where they were.

use std::fmt;

use serde_json::{Map, Value};

use super::json::{BYTES, HALF, NUMBER};

/// Maximum characters of a reported path.
const MAX_FIELD: usize = 120;

/// Replacements of one kind in a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replaced {
    /// Path of the first one, such as `content[0].text`.
    pub field: String,
    pub what: ReplacedKind,
    /// Number of places.
    pub count: usize,
}

/// A value that cannot be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplacedKind {
    /// A NUL character.
    Nul,
    /// Half a UTF-16 pair.
    HalfPair,
    /// Bytes that are no UTF-8.
    Bytes,
    /// A number that is not finite.
    Number,
}

impl fmt::Display for Replaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, what, count } = self;
        let what = match what {
            ReplacedKind::Nul => "a NUL character",
            ReplacedKind::HalfPair => "half of a UTF-16 pair",
            ReplacedKind::Bytes => "bytes that are not UTF-8",
            ReplacedKind::Number => "a number that is not finite",
        };
        write!(f, "{field} holds {what}")?;
        if *count > 1 { write!(f, " ({count} in the message)") } else { Ok(()) }
    }
}

/// Replaces such characters with U+FFFD and such numbers with null. Returns each kind once, with
/// its first place.
pub(super) fn repair(value: &mut Value) -> Vec<Replaced> {
    let mut repair = Repair { path: String::new(), found: Vec::new() };
    repair.value(value);
    repair.found
}

struct Repair {
    path: String,
    found: Vec<Replaced>,
}

impl Repair {
    fn value(&mut self, value: &mut Value) {
        match value {
            Value::String(text) if text.starts_with(NUMBER) => {
                self.note(ReplacedKind::Number, 1);
                *value = Value::Null;
            }
            Value::String(text) => self.text(text),
            Value::Array(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    self.within(&format!("[{index}]"), |repair| repair.value(item));
                }
            }
            Value::Object(map) => self.map(map),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn map(&mut self, map: &mut Map<String, Value>) {
        if map.keys().any(|key| is_bad(key)) {
            for (mut key, value) in std::mem::take(map) {
                self.text(&mut key);
                map.insert(key, value);
            }
        }
        for (key, value) in map {
            let step = if self.path.is_empty() { key.clone() } else { format!(".{key}") };
            self.within(&step, |repair| repair.value(value));
        }
    }

    fn text(&mut self, text: &mut String) {
        if !is_bad(text) {
            return;
        }
        for (mark, what) in
            [('\0', ReplacedKind::Nul), (HALF, ReplacedKind::HalfPair), (BYTES, ReplacedKind::Bytes)]
        {
            match text.matches(mark).count() {
                0 => {}
                count => self.note(what, count),
            }
        }
        *text = text.replace(['\0', HALF, BYTES, NUMBER], "\u{FFFD}");
    }

    fn within(&mut self, step: &str, inside: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        self.path.push_str(step);
        inside(self);
        self.path.truncate(length);
    }

    fn note(&mut self, what: ReplacedKind, count: usize) {
        match self.found.iter_mut().find(|found| found.what == what) {
            Some(found) => found.count += count,
            None => {
                let field = if self.path.is_empty() { "it" } else { &self.path };
                let field = field.chars().take(MAX_FIELD).collect();
                self.found.push(Replaced { field, what, count });
            }
        }
    }
}

fn is_bad(text: &str) -> bool {
    text.contains(['\0', HALF, BYTES, NUMBER])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::json::parse;
    use super::*;

    #[test]
    fn places_are_named_and_the_rest_is_kept() {
        let input = br#"{"content": [{"text": "a\u0000b\u0000"}, "\ud83d"], "score": NaN, "k\u0000": {"x": "\u0000"}}"#;
        let mut value = parse(input).unwrap();
        let found: Vec<String> = repair(&mut value).iter().map(Replaced::to_string).collect();
        assert_eq!(
            found,
            [
                "it holds a NUL character (4 in the message)",
                "content[1] holds half of a UTF-16 pair",
                "score holds a number that is not finite"
            ]
        );
        let kept = json!({"content": [{"text": "a\u{fffd}b\u{fffd}"}, "\u{fffd}"], "score": null, "k\u{fffd}": {"x": "\u{fffd}"}});
        assert_eq!(value, kept);
        assert_eq!(repair(&mut value), [], "nothing is left");
    }
}
