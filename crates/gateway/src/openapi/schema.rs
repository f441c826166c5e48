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

/// As JSON. What utoipa has made is always that.
pub(crate) fn written(made: &impl Serialize) -> Value {
    serde_json::to_value(made).unwrap_or_default()
}
