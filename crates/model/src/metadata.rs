//! The free-form JSON object of a chunk, which is stored with its message.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::{Map, Value};

use crate::origin_keys;

/// 2^53: largest integer up to which doubles are exact.
pub const MAX_EXACT_INTEGER: u64 = 1 << 53;

/// Metadata that cannot be stored or is inconsistent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMetadata {
    /// Postgres' jsonb refuses it.
    #[error("metadata holds a NUL character")]
    Nul,
    /// Deeper than Postgres and other readers accept.
    #[error("metadata is nested deeper than {} levels", Metadata::MAX_DEPTH)]
    TooDeep,
    /// A number that is not finite or cannot be represented.
    #[error("metadata holds a number that is not finite")]
    Number,
    /// Reserved for the system: a publisher that could set it could hide its messages from
    /// histories.
    #[error("metadata error: metadata.{0} is the system's to say")]
    Reserved(&'static str),
    /// Numbers travel as doubles, which would change this one.
    #[error("metadata error: a number is beyond 2^53 and would lose digits; write it as text")]
    Inexact,
    /// `tokens_used` is present but is not a count.
    #[error("metadata error: tokens_used is {0}; a whole number from 0 to 2^53 is expected")]
    TokensUsed(String),
    /// `model_calls` is present but is not a list of calls.
    #[error(
        "metadata error: model_calls has {0}; a list of at most 64 objects is expected, with id, model, estimated (true or false) and whole numbers from 0 to 2^31 of input_tokens, output_tokens, cached_tokens and reasoning_tokens"
    )]
    ModelCalls(String),
}

/// A JSON object without NUL characters and with finite numbers; empty when absent.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Metadata(Option<Box<Map<String, Value>>>);

impl Metadata {
    /// Maximum nesting depth.
    pub const MAX_DEPTH: usize = 64;

    /// Keys that the system sets on messages it creates.
    pub const RESERVED: [&str; 3] = origin_keys::RESERVED;

    pub const EMPTY: Self = Self(None);

    /// Checks everything that Postgres or readers in other languages reject.
    pub fn new(map: Map<String, Value>) -> Result<Self, InvalidMetadata> {
        if map.is_empty() {
            return Ok(Self(None));
        }
        check_map(&map, Self::MAX_DEPTH)?;
        Ok(Self(Some(Box::new(map))))
    }

    /// Replaces the values of `keys` by those in `of`, and removes keys that `of` lacks.
    pub fn with_keys_of(self, of: &Self, keys: &[&str]) -> Self {
        let mut map = self.0.unwrap_or_default();
        for key in keys {
            match of.get(key) {
                Some(value) => map.insert((*key).to_owned(), value.clone()),
                None => map.remove(*key),
            };
        }
        Self(Some(map).filter(|map| !map.is_empty()))
    }

    /// Adds a text under `key`, which must not contain a NUL. NULs are removed from the text.
    #[must_use]
    pub fn with_text(self, key: &str, text: &str) -> Self {
        self.with_value(key, Value::from(text.replace('\0', "")))
    }

    /// Adds a flat value, or an object of those, without NUL characters.
    #[must_use]
    pub(crate) fn with_value(self, key: &str, value: Value) -> Self {
        let mut map = self.0.unwrap_or_default();
        map.insert(key.to_owned(), value);
        Self(Some(map))
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.as_ref()?.get(key)
    }

    /// Metadata of flat values without NUL characters.
    pub(crate) fn of_entries(entries: Vec<(&'static str, Value)>) -> Self {
        let map = entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        Self::new(map).unwrap_or_default()
    }

    pub(crate) fn is_true(&self, key: &str) -> bool {
        self.get(key) == Some(&Value::Bool(true))
    }

    /// True if the stored message was created by the system, not by a person. Only the boolean
    /// `true` counts; the text is not interpreted.
    pub fn is_synthetic(&self) -> bool {
        self.is_true(origin_keys::SYNTHETIC)
    }

    /// Metadata with the mark of messages that people do not see.
    #[must_use]
    pub(crate) fn with_synthetic(self) -> Self {
        Self::of_entries(vec![(origin_keys::SYNTHETIC, Value::Bool(true))]).joined(self).into_owned()
    }

    /// Merges both objects. A key that both have keeps the value of `self`. Nothing is copied if
    /// `more` is empty, as for nearly all inputs and tasks.
    pub(crate) fn joined(&self, more: Self) -> Cow<'_, Self> {
        match (self.as_map(), more.0) {
            (_, None) => Cow::Borrowed(self),
            (None, more) => Cow::Owned(Self(more)),
            (Some(own), Some(mut map)) => {
                map.extend(own.iter().map(|(key, value)| (key.clone(), value.clone())));
                Cow::Owned(Self(Some(map)))
            }
        }
    }

    /// The entries that `part` does not have, so that [`Metadata::joined`] gives all of them again.
    pub(crate) fn without(self, part: &Self) -> Self {
        let Some(part) = part.as_map() else { return self };
        let mut map = self.into_map();
        map.retain(|key, value| part.get(key) != Some(value));
        Self(Some(Box::new(map)).filter(|map| !map.is_empty()))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The object; `None` if it is empty.
    pub fn as_map(&self) -> Option<&Map<String, Value>> {
        self.0.as_deref()
    }

    pub(crate) fn into_map(self) -> Map<String, Value> {
        self.0.map(|map| *map).unwrap_or_default()
    }

    /// The object as a JSON value; `{}` if it is empty.
    pub fn to_value(&self) -> Value {
        Value::Object(self.as_map().cloned().unwrap_or_default())
    }

    /// Value of `tokens_used`: 15, 15.0 and "15" are 15; absent is `None`; anything else is an
    /// error, never silently 0.
    pub fn tokens_used(&self) -> Result<Option<u64>, InvalidMetadata> {
        let Some(value) = self.get("tokens_used") else { return Ok(None) };
        match token_count(value) {
            Some(count) => Ok(Some(count)),
            None => Err(InvalidMetadata::TokensUsed(abbreviate(&value.to_string()))),
        }
    }

    /// Checks that a publisher or client sets no reserved key and no inexact number. Stored
    /// metadata is not checked: it may be older than the rule.
    pub fn check_from_client(&self) -> Result<(), InvalidMetadata> {
        match Self::RESERVED.into_iter().find(|name| self.get(name).is_some()) {
            Some(name) => Err(InvalidMetadata::Reserved(name)),
            None => self.check_numbers(),
        }
    }

    /// Checks that no number changes in transit: all are at most 2^53, in any notation.
    pub fn check_numbers(&self) -> Result<(), InvalidMetadata> {
        match self.as_map().is_some_and(|map| map.values().any(has_inexact)) {
            true => Err(InvalidMetadata::Inexact),
            false => Ok(()),
        }
    }

    /// Approximate size in bytes, for memory limits.
    pub fn size(&self) -> usize {
        self.as_map().map_or(0, |map| map.iter().map(|(key, value)| key.len() + value_size(value)).sum())
    }
}

impl Serialize for Metadata {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.as_map() {
            Some(map) => map.serialize(serializer),
            None => serializer.collect_map(std::iter::empty::<(&str, &str)>()),
        }
    }
}

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(Map::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// Reads 15, 15.0 and "15" as 15; `None` unless it is a whole number from 0 to 2^53.
pub(crate) fn token_count(value: &Value) -> Option<u64> {
    let count = match value {
        Value::Number(number) => number.as_u64().or_else(|| number.as_f64().and_then(whole)),
        Value::String(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok(),
        _ => None,
    };
    count.filter(|count| *count <= MAX_EXACT_INTEGER)
}

fn whole(number: f64) -> Option<u64> {
    let exact = number >= 0.0 && number <= MAX_EXACT_INTEGER as f64 && number.fract() == 0.0;
    exact.then_some(number as u64)
}

pub(crate) fn abbreviate(text: &str) -> String {
    text.chars().take(40).collect()
}

fn has_inexact(value: &Value) -> bool {
    match value {
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(whole), _) => whole > MAX_EXACT_INTEGER,
            (None, Some(whole)) => whole.unsigned_abs() > MAX_EXACT_INTEGER,
            (None, None) => number.as_f64().is_none_or(|number| number.abs() > MAX_EXACT_INTEGER as f64),
        },
        Value::Array(items) => items.iter().any(has_inexact),
        Value::Object(map) => map.values().any(has_inexact),
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}

fn check_map(map: &Map<String, Value>, depth: usize) -> Result<(), InvalidMetadata> {
    map.iter().try_for_each(|(key, value)| check_text(key).and_then(|()| check_value(value, depth)))
}

fn check_text(text: &str) -> Result<(), InvalidMetadata> {
    if text.contains('\0') { Err(InvalidMetadata::Nul) } else { Ok(()) }
}

fn check_value(value: &Value, depth: usize) -> Result<(), InvalidMetadata> {
    let deeper = depth.checked_sub(1).ok_or(InvalidMetadata::TooDeep)?;
    match value {
        Value::Null | Value::Bool(_) => Ok(()),
        Value::Number(number) if number.as_f64().is_some_and(f64::is_finite) => Ok(()),
        Value::Number(_) => Err(InvalidMetadata::Number),
        Value::String(text) => check_text(text),
        Value::Array(items) => items.iter().try_for_each(|item| check_value(item, deeper)),
        Value::Object(map) => check_map(map, deeper),
    }
}

fn value_size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len() + 8,
        Value::Array(items) => items.iter().map(value_size).sum::<usize>() + 8,
        Value::Object(map) => map.iter().map(|(key, value)| key.len() + value_size(value)).sum::<usize>() + 8,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn metadata(value: Value) -> Result<Metadata, InvalidMetadata> {
        Metadata::new(value.as_object().unwrap().clone())
    }

    #[test]
    fn tokens_used_is_a_count_or_an_error() {
        for good in [json!(15), json!(15.0), json!("15")] {
            assert_eq!(metadata(json!({"tokens_used": good})).unwrap().tokens_used(), Ok(Some(15)));
        }
        assert_eq!(Metadata::EMPTY.tokens_used(), Ok(None));
        let bad = [
            json!(null),
            json!(-1),
            json!(9_007_199_254_740_993_u64),
            json!(1.5),
            json!("x"),
            json!(""),
            json!([1]),
        ];
        for bad in bad {
            let outcome = metadata(json!({"tokens_used": bad})).unwrap().tokens_used();
            assert!(matches!(outcome, Err(InvalidMetadata::TokensUsed(_))), "{bad}: {outcome:?}");
        }
    }

    #[test]
    fn numbers_beyond_2_to_the_53_are_refused_however_long_they_are() {
        let check = |text: &str| {
            let value = serde_json::from_str(&format!(r#"{{"a": [{{"b": {text}}}]}}"#)).unwrap();
            metadata(value).unwrap().check_from_client()
        };
        for exact in ["9007199254740992", "-9007199254740992", "0.1", "-0.0", "1e15", "1e-300", r#""1e300""#]
        {
            assert_eq!(check(exact), Ok(()), "{exact}");
        }
        let inexact =
            ["9007199254740993", "-9007199254740993", "9223372036854775808", "18446744073709551615"];
        for inexact in
            inexact.into_iter().chain(["18446744073709551616", "1234567890123456789012345", "-1e16"])
        {
            assert_eq!(check(inexact), Err(InvalidMetadata::Inexact), "{inexact}");
        }
    }

    #[test]
    fn what_the_system_says_of_itself_is_not_for_others_to_say() {
        for (name, value) in [
            ("synthetic", json!(true)),
            ("synthetic", json!(null)),
            ("trigger_type", json!("check_in")),
            ("trigger_reason", json!(1)),
        ] {
            assert_eq!(
                metadata(json!({ name: value })).unwrap().check_from_client(),
                Err(InvalidMetadata::Reserved(name))
            );
        }
        assert_eq!(
            metadata(json!({"a": {"synthetic": true}})).unwrap().check_from_client(),
            Ok(()),
            "only what readers look at"
        );
    }

    #[test]
    fn what_postgres_refuses_is_refused_here() {
        assert_eq!(metadata(json!({"a": "x\0"})), Err(InvalidMetadata::Nul));
        assert_eq!(metadata(json!({"a\0": 1})), Err(InvalidMetadata::Nul));
        let deep = (0..80).fold(json!(1), |inner, _| json!([inner]));
        assert_eq!(metadata(json!({"a": deep})), Err(InvalidMetadata::TooDeep));
    }
}
