//! Reads operations from the OpenAPI document.

use std::sync::LazyLock;

use serde_json::Value;

/// The OpenAPI document, built once per process.
static DOCUMENT: LazyLock<Value> = LazyLock::new(gateway::openapi_document);

const EVENTS: &str = "text/event-stream";

#[derive(Debug)]
pub(super) struct Operation {
    pub(super) method: String,
    /// The path, with variables in braces.
    pub(super) path: String,
    pub(super) summary: String,
    pub(super) description: String,
    /// Variables of the path first, then the query, headers, and the fields of the body.
    pub(super) inputs: Vec<OperationInput>,
    pub(super) events: Events,
}

/// Whether the answer is a stream of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Events {
    Never,
    OnRequest,
    Always,
}

/// One value that an operation takes.
#[derive(Debug)]
pub(super) struct OperationInput {
    pub(super) name: String,
    pub(super) place: InputPlace,
    pub(super) kind: ValueKind,
    pub(super) is_required: bool,
    pub(super) help: String,
    /// Maximum of a number.
    pub(super) maximum: Option<u64>,
}

/// Where a value is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InputPlace {
    Path,
    Query,
    Header,
    Body,
}

/// The type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueKind {
    Text,
    Texts,
    /// A time, or a day in UTC.
    Moment,
    Number,
    Boolean,
    Object,
    Json,
}

impl Operation {
    /// The operation with this id.
    pub(super) fn of(id: &str) -> Option<Self> {
        let paths = DOCUMENT["paths"].as_object()?;
        paths.iter().find_map(|(path, item)| {
            let (method, described) =
                item.as_object()?.iter().find(|(_, described)| described["operationId"] == id)?;
            Some(Self::read(method, path, described))
        })
    }

    fn read(method: &str, path: &str, described: &Value) -> Self {
        let parameters = described["parameters"].as_array().into_iter().flatten().map(resolved);
        let mut inputs: Vec<OperationInput> = parameters.filter_map(parameter).collect();
        let body = &resolved(&described["requestBody"])["content"]["application/json"]["schema"];
        let required = resolved(body)["required"].clone();
        for (name, schema) in resolved(body)["properties"].as_object().into_iter().flatten() {
            let is_required = required.as_array().is_some_and(|names| names.iter().any(|of| of == name));
            inputs.push(OperationInput::new(name, InputPlace::Body, schema, is_required, ""));
        }
        let answer = resolved(&described["responses"]["200"])["content"].as_object();
        let is_streamed = answer.is_some_and(|content| content.contains_key(EVENTS));
        let others = described["responses"].as_object().into_iter().flatten();
        let has_other = others.filter(|(status, _)| status.starts_with('2')).any(|(_, answer)| {
            let content = resolved(answer)["content"].as_object();
            content.is_some_and(|content| content.keys().any(|kind| kind != EVENTS))
        });
        let text = |name: &str| described[name].as_str().unwrap_or_default().to_owned();
        Self {
            method: method.to_owned(),
            path: path.to_owned(),
            summary: text("summary"),
            description: text("description"),
            inputs,
            events: match (is_streamed, has_other) {
                (false, _) => Events::Never,
                (true, true) => Events::OnRequest,
                (true, false) => Events::Always,
            },
        }
    }

    /// Whether the query has an input with this name.
    pub(super) fn has_query(&self, name: &str) -> bool {
        self.inputs.iter().any(|input| input.place == InputPlace::Query && input.name == name)
    }

    pub(super) fn has_body(&self) -> bool {
        self.inputs.iter().any(|input| input.place == InputPlace::Body)
    }
}

impl OperationInput {
    fn new(name: &str, place: InputPlace, schema: &Value, is_required: bool, text: &str) -> Self {
        let form = form(schema);
        let texts = [text, schema["description"].as_str().unwrap_or_default()];
        let texts = texts.into_iter().chain(form["description"].as_str());
        let mut help = texts.map(str::trim).find(|text| !text.is_empty()).unwrap_or_default().to_owned();
        let values: Vec<_> =
            form["enum"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        if !values.is_empty() && values.len() < 12 {
            help = format!("{} One of {}.", sentence(&help), values.join(", "));
        }
        let maximum = form["maximum"].as_u64();
        let help = help.trim().to_owned();
        Self { name: name.to_owned(), place, kind: kind(form), is_required, help, maximum }
    }
}

fn sentence(text: &str) -> String {
    if text.is_empty() || text.ends_with('.') { text.to_owned() } else { format!("{text}.") }
}

fn parameter(described: &Value) -> Option<OperationInput> {
    let name = described["name"].as_str()?;
    let place = match described["in"].as_str()? {
        "path" => InputPlace::Path,
        "query" => InputPlace::Query,
        "header" => InputPlace::Header,
        _ => return None,
    };
    let text = described["description"].as_str().unwrap_or_default();
    let is_required = described["required"] == true;
    Some(OperationInput::new(name, place, &described["schema"], is_required, text))
}

/// The target of a reference; any other value is returned as it is.
fn resolved(value: &Value) -> &Value {
    let reference = value["$ref"].as_str().and_then(|to| DOCUMENT.pointer(to.strip_prefix('#')?));
    reference.unwrap_or(value)
}

/// The schema of the value itself: references are resolved, and an alternative `null` is skipped.
fn form(schema: &Value) -> &Value {
    let schema = resolved(schema);
    let alternatives = ["oneOf", "anyOf", "allOf"].iter().find_map(|name| schema[name].as_array());
    let first = alternatives.and_then(|all| all.iter().find(|one| one["type"] != "null"));
    first.map_or(schema, resolved)
}

fn kind(form: &Value) -> ValueKind {
    let types: Vec<_> = match &form["type"] {
        Value::Array(all) => all.iter().filter_map(Value::as_str).collect(),
        one => one.as_str().into_iter().collect(),
    };
    let item = || self::form(&form["items"])["type"].as_str();
    match types.into_iter().find(|name| *name != "null") {
        Some("string") if form["format"] == "date-time" => ValueKind::Moment,
        Some("string") => ValueKind::Text,
        Some("integer" | "number") => ValueKind::Number,
        Some("boolean") => ValueKind::Boolean,
        Some("object") => ValueKind::Object,
        Some("array") if item() == Some("string") => ValueKind::Texts,
        Some(_) => ValueKind::Json,
        None if form.get("properties").is_some() => ValueKind::Object,
        None => ValueKind::Json,
    }
}

/// The ids of all operations that need a credential.
#[cfg(test)]
pub(super) fn secured_operations() -> Vec<String> {
    let paths = DOCUMENT["paths"].as_object().into_iter().flatten();
    let all = paths.flat_map(|(_, item)| item.as_object().into_iter().flat_map(serde_json::Map::values));
    let secured = all.filter(|described| described["security"] != Value::Array(Vec::new()));
    secured.filter_map(|described| described["operationId"].as_str().map(str::to_owned)).collect()
}
