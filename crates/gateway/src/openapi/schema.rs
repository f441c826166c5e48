//! Schemas of types as JSON.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// The schema of a type, and those that it refers to, by their names.
pub(crate) fn schemas_of<T: ToSchema>() -> Vec<(String, Value)> {
    let mut found = vec![(T::name().into_owned(), T::schema())];
    T::schemas(&mut found);
    found.into_iter().map(|(name, schema)| (name, written(&schema))).collect()
}

/// A value of utoipa as JSON. Serializing one never fails.
pub(crate) fn written(made: &impl Serialize) -> Value {
    serde_json::to_value(made).unwrap_or_default()
}

/// Declares for each object without named fields that it accepts any field. Without this,
/// generators of clients assume that the object must be empty.
pub(crate) fn open_free_objects(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(open_free_objects),
        Value::Object(fields) => {
            let kind = fields.get("type");
            let is_object = kind.is_some_and(|kind| match kind {
                Value::Array(kinds) => kinds.contains(&Value::from("object")),
                kind => *kind == "object",
            });
            let is_bounded = ["properties", "additionalProperties", "maxProperties"]
                .iter()
                .any(|name| fields.contains_key(*name));
            if is_object && !is_bounded {
                fields.insert("additionalProperties".to_owned(), Value::Bool(true));
            }
            let schemas = fields.iter_mut().filter(|(name, _)| !name.starts_with("example"));
            schemas.for_each(|(_, inner)| open_free_objects(inner));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_objects_without_fields_take_any() {
        let mut schema = json!({"type": "object", "properties": {
            "free": {"type": ["object", "null"]},
            "empty": {"type": "object", "maxProperties": 0},
            "numbers": {"type": "object", "additionalProperties": {"type": "number"}},
            "text": {"type": "string"},
        }, "examples": [{"type": "object"}]});
        let mut expected = schema.clone();
        expected["properties"]["free"]["additionalProperties"] = json!(true);
        open_free_objects(&mut schema);
        assert_eq!(schema, expected);
    }
}
