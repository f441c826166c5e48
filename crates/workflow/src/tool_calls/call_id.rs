//! Identifies a tool call in every run and attempt of its turn (pure).
//!
//! The id is built from the step, the tool, the canonical arguments and a number among equal calls
//! of the step. Provider ids differ in each response, and so may the order of calls. A model that
//! repeats its calls gets the kept results.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Bytes of the digest in an id.
const DIGEST_BYTES: usize = 16;

/// The ids of the calls of a step, each given as (tool, arguments).
pub(crate) fn call_ids<'a>(step: u32, calls: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    let mut equal: HashMap<(&str, String), u32> = HashMap::new();
    let ids = calls.into_iter().map(|(tool, arguments)| {
        let arguments = canonical(arguments);
        let number = equal.entry((tool, arguments.clone())).or_default();
        let digest = Sha256::digest(serde_json::json!([tool, arguments, *number]).to_string());
        *number += 1;
        let hex: String = digest.iter().take(DIGEST_BYTES).map(|byte| format!("{byte:02x}")).collect();
        format!("{step}-{hex}")
    });
    ids.collect()
}

/// A text that is the same for equal JSON, regardless of key order and white space.
fn canonical(arguments: &str) -> String {
    match serde_json::from_str::<Value>(arguments) {
        Ok(value) => {
            let mut text = String::new();
            write(&value, &mut text);
            text
        }
        Err(_) => arguments.to_owned(),
    }
}

fn write(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            out.push('{');
            for (key, value) in map.iter().collect::<BTreeMap<_, _>>() {
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push(':');
                write(value, out);
                out.push(',');
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for item in items {
                write(item, out);
                out.push(',');
            }
            out.push(']');
        }
        other => out.push_str(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_the_same_in_another_order_and_another_form() {
        let first = call_ids(1, [("pay", r#"{"to":"ann","list":[{"b":1,"a":2}]}"#), ("look", "{}")]);
        let again =
            call_ids(1, [("look", " { } "), ("pay", r#"{ "list": [{"a": 2, "b": 1}], "to": "ann" }"#)]);
        assert_eq!(first, [again[1].clone(), again[0].clone()]);
        assert!(first.iter().all(|id| id.len() == 2 + 2 * DIGEST_BYTES && id.starts_with("1-")), "{first:?}");
    }

    #[test]
    fn other_calls_have_other_ids() {
        let all: Vec<String> = [
            call_ids(
                0,
                [("pay", r#"{"n":1}"#), ("pay", r#"{"n":1}"#), ("pay", r#"{"n":2}"#), ("look", r#"{"n":1}"#)],
            ),
            call_ids(
                1,
                [("pay", r#"{"n":1}"#), ("pay", r#"{"n":[1]}"#), ("pay", r#"{"n":"1"}"#), ("pay", "{")],
            ),
        ]
        .concat();
        let different: std::collections::HashSet<&String> = all.iter().collect();
        assert_eq!(different.len(), all.len(), "{all:?}");
        // The first of several equal calls keeps its id, however many there are.
        assert_eq!(call_ids(0, [("pay", r#"{"n":1}"#)])[0], all[0]);
    }
}
