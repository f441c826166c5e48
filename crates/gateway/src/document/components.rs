//! Components: parts that several operations share are described once, and the operations refer to
//! them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// Shorter parts are not worth a reference.
const LEAST_BYTES: usize = 100;

/// Calls the second argument with each part of a kind in an operation, or in the components.
type Visit = fn(&mut Value, &mut dyn FnMut(&mut Value, Vec<String>));

/// Moves parts that several operations share to the components. If different parts have the same
/// name, the most frequent one is moved.
pub(super) fn share(mut operations: Vec<&mut Value>, components: &mut Value) {
    for is_list in [false, true] {
        for operation in &mut operations {
            examples_to_schemas(operation, is_list, &mut components["schemas"]);
        }
    }
    share_kind("parameters", 0, parameters, &mut operations, components);
    share_kind("requestBodies", LEAST_BYTES, request_bodies, &mut operations, components);
    share_kind("responses", LEAST_BYTES, responses, &mut operations, components);
    share_kind("headers", LEAST_BYTES, headers, &mut operations, components);
    // The components that were just created have shared examples, too.
    let mut shared =
        json!({ "responses": components["responses"], "requestBodies": components["requestBodies"] });
    let mut holders: Vec<_> = operations.into_iter().chain([&mut shared]).collect();
    share_kind("examples", LEAST_BYTES, examples, &mut holders, components);
    components["responses"] = shared["responses"].take();
    components["requestBodies"] = shared["requestBodies"].take();
}

/// Moves the examples of responses to their schemas, because several responses have the same
/// schema. The example of a list's item moves to the schema of the item. A second, different
/// example stays in its response.
fn examples_to_schemas(operation: &mut Value, is_list: bool, schemas: &mut Value) {
    let responses = operation.get_mut("responses").and_then(Value::as_object_mut);
    let contents = responses.into_iter().flat_map(Map::values_mut).filter_map(|one| one.get_mut("content"));
    for media in contents.filter_map(Value::as_object_mut).flat_map(Map::values_mut) {
        let (Some(schema), Some(media)) = (name_of(&media["schema"]), media.as_object_mut()) else {
            continue;
        };
        let Some(example) = media.get("example").filter(|example| example.is_object()) else { continue };
        let item = only_item(example);
        if item.is_some() != is_list {
            continue;
        }
        let place = match item {
            None => Some((schema, example.clone())),
            Some((list, item)) => {
                let items = &schemas[schema]["properties"][list]["items"];
                name_of(items).map(|of_item| (of_item, item.clone()))
            }
        };
        let Some((schema, example)) = place else { continue };
        let known = &mut schemas[schema]["examples"];
        if known.is_null() {
            *known = json!([example]);
        }
        if known[0] == example {
            media.remove("example");
        }
    }
}

/// The list of a page and its one item, if everything else in it is empty.
fn only_item(page: &Value) -> Option<(&str, &Value)> {
    let is_empty = |value: &Value| value.is_null() || *value == json!(false);
    let mut fields = page.as_object()?.iter().filter(|(_, value)| !is_empty(value));
    let (list, items) = fields.next()?;
    match (items.as_array().map(Vec::as_slice), fields.next()) {
        (Some([item]), None) => Some((list, item)),
        _ => None,
    }
}

fn share_kind(
    kind: &str,
    least_bytes: usize,
    visit: Visit,
    operations: &mut [&mut Value],
    components: &mut Value,
) {
    let mut counts = BTreeMap::<String, (usize, Value, Vec<String>)>::new();
    for operation in &mut *operations {
        visit(operation, &mut |part, names| {
            counts.entry(part.to_string()).or_insert_with(|| (0, part.clone(), names)).0 += 1;
        });
    }
    let mut repeated: Vec<_> =
        counts.into_iter().filter(|(text, (count, ..))| *count > 1 && text.len() > least_bytes).collect();
    repeated.sort_by_key(|(_, (count, ..))| Reverse(*count));
    let mut shared = match components[kind].take() {
        Value::Object(shared) => shared,
        _ => Map::new(),
    };
    let mut references = BTreeMap::new();
    for (text, (_, part, names)) in repeated {
        let free = names.into_iter().find(|name| !shared.contains_key(name));
        if let Some(name) = free {
            references.insert(text, json!({ "$ref": format!("#/components/{kind}/{name}") }));
            shared.insert(name, part);
        }
    }
    for operation in operations {
        visit(operation, &mut |part, _| {
            if let Some(reference) = references.get(&part.to_string()) {
                *part = reference.clone();
            }
        });
    }
    components[kind] = Value::Object(shared);
}

/// Visits the parameters. The component is named after the parameter, or after it and its schema.
fn parameters(operation: &mut Value, found: &mut dyn FnMut(&mut Value, Vec<String>)) {
    let all = operation.get_mut("parameters").and_then(Value::as_array_mut);
    for parameter in all.into_iter().flatten().filter(|parameter| !is_reference(parameter)) {
        let name = parameter["name"].as_str().unwrap_or_default().to_owned();
        let with_schema = name_of(&parameter["schema"]).map(|schema| format!("{name}-{schema}"));
        found(parameter, [name].into_iter().chain(with_schema).collect());
    }
}

/// Visits the request bodies. The component is named after the schema.
fn request_bodies(operation: &mut Value, found: &mut dyn FnMut(&mut Value, Vec<String>)) {
    let Some(body) = operation.get_mut("requestBody").filter(|body| !is_reference(body)) else { return };
    let schema = name_of(&body["content"]["application/json"]["schema"]);
    found(body, vec![schema.unwrap_or_else(|| "EmptyBody".to_owned())]);
}

/// Visits the responses. The component is named after the schema and the status.
fn responses(operation: &mut Value, found: &mut dyn FnMut(&mut Value, Vec<String>)) {
    let all = operation.get_mut("responses").and_then(Value::as_object_mut);
    for (status, response) in all.into_iter().flatten().filter(|(_, response)| !is_reference(response)) {
        let mut contents = response["content"].as_object().into_iter().flat_map(Map::values);
        let schema = contents.find_map(|media| name_of(&media["schema"]));
        found(response, schema.map(|schema| format!("{schema}{status}")).into_iter().collect());
    }
}

/// Visits the headers. The component is named after the header.
fn headers(operation: &mut Value, found: &mut dyn FnMut(&mut Value, Vec<String>)) {
    let all = operation.get_mut("responses").and_then(Value::as_object_mut);
    let headers = all
        .into_iter()
        .flat_map(Map::values_mut)
        .filter_map(|response| response.get_mut("headers").and_then(Value::as_object_mut));
    for (name, header) in headers.flatten().filter(|(_, header)| !is_reference(header)) {
        found(header, vec![name.clone()]);
    }
}

/// Visits the examples. The component is named after the schema.
fn examples(holder: &mut Value, found: &mut dyn FnMut(&mut Value, Vec<String>)) {
    let object = holder.as_object_mut();
    let parts = object.into_iter().flatten().flat_map(|(name, part)| match name.as_str() {
        "requestBody" => vec![part],
        "responses" | "requestBodies" => part.as_object_mut().into_iter().flat_map(Map::values_mut).collect(),
        _ => Vec::new(),
    });
    let contents = parts.filter_map(|part| part.get_mut("content").and_then(Value::as_object_mut));
    for media in contents.flat_map(Map::values_mut) {
        let names: Vec<_> = name_of(&media["schema"]).into_iter().collect();
        let Some(media) = media.as_object_mut() else { continue };
        let Some(value) = media.get("example") else { continue };
        let mut example = json!({ "value": value });
        found(&mut example, names);
        if is_reference(&example) {
            media.remove("example");
            media.insert("examples".to_owned(), json!({ "example": example }));
        }
    }
}

fn is_reference(part: &Value) -> bool {
    part.get("$ref").is_some()
}

/// The name of the component that a schema refers to.
fn name_of(schema: &Value) -> Option<String> {
    Some(schema["$ref"].as_str()?.rsplit('/').next()?.to_owned())
}
