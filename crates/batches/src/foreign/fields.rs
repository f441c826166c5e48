//! Reads fields of messages and parts that have one of several names.

use serde_json::{Map, Value};

/// The first of these fields that is not null.
pub(super) fn first_of<'a>(map: &'a Map<String, Value>, keys: &[&str]) -> Option<&'a Value> {
    keys.iter().find_map(|key| map.get(*key).filter(|value| !value.is_null()))
}

/// The first of these fields that is a non-empty string.
pub(super) fn text_at(map: &Map<String, Value>, keys: &[&str]) -> Option<String> {
    keys.iter().find_map(|key| map.get(*key)?.as_str().filter(|text| !text.is_empty())).map(str::to_owned)
}
