//! Builds requests from the description of the API, each with every field of its schema.

use serde_json::{Map, Value, json};

/// Values of fields that the schema does not bound closely enough, by schema and field.
const VALUES: &[(&str, &str, &str)] = &[
    ("AcknowledgeBody", "partition", r#""all""#),
    ("AgentSettings", "backoff_cap_ms", "86400000"),
    ("AgentSettings", "client_instructions", r#""append""#),
    ("AgentSettings", "compaction", r#"{"strategy": "drop_oldest"}"#),
    ("AgentSettings", "context_tokens", "4000"),
    ("AgentSettings", "deadline_ms", "60000"),
    ("AgentSettings", "follow_ups", r#"{"enabled": true}"#),
    ("AgentSettings", "memory", "false"),
    ("AgentSettings", "retention", r#"{"max_batches": 1000}"#),
    ("AgentSettings", "turn_budget", r#"{"tokens": 100000, "calls": 10}"#),
    ("CompletionRequest", "logit_bias", r#"{"50256": -100}"#),
    ("ScheduleBody", "at", r#""2036-01-01T09:00:00""#),
    ("ScheduleBody", "cron", r#""0 9 * * *""#),
];
/// Fields of a schema that exclude each other, with their values if those differ: a request for
/// each alternative.
type Alternatives = &'static [&'static [(&'static str, Option<&'static str>)]];
const ALTERNATIVES: &[(&str, Alternatives)] = &[
    ("BudgetBody", &[&[("tokens", None), ("agent_id", None)], &[("cost", None), ("user_id", None)]]),
    ("FactBody", &[&[("user_id", None)], &[("thread_id", None)]]),
    ("ResponseRequest", &[&[("conversation", None)], &[("previous_response_id", None)]]),
    ("ScheduleBody", &[&[("cron", None)], &[("at", None)]]),
    ("SnoozeBody", &[&[("seconds", None)], &[("until", None)]]),
    ("ToolDecisionBody", &[&[("run_again", None)], &[("result", None), ("is_error", None)]]),
    (
        "UiMessageRequest",
        &[
            &[("trigger", Some(r#""submit-message""#))],
            &[("trigger", Some(r#""regenerate-message""#)), ("messageId", None)],
        ],
    ),
];
/// Parameters of paths, where no text will do.
const PATHS: &[(&str, &str)] =
    &[("letter", "message:0:none"), ("number", "1"), ("batch", "7524873984012345344")];

/// A call of an operation.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) operation: String,
    pub(super) tag: String,
    pub(super) method: String,
    pub(super) path: String,
    /// The parameters of the path.
    pub(super) of_path: Map<String, Value>,
    /// The parameters of the query that every request needs.
    pub(super) of_query: Map<String, Value>,
    pub(super) body: Option<Value>,
    /// The content type and the text of a body that is not one JSON value.
    pub(super) lines: Option<(String, String)>,
    /// The statuses that the description names; refusals may also have those of `default`.
    pub(super) statuses: Vec<u64>,
    /// Whether the answer to this call is a stream that does not end.
    pub(super) is_endless: bool,
}

/// A description of an API.
pub(super) struct Description<'a> {
    pub(super) api: &'a Value,
    /// A time that is near enough for any act.
    pub(super) soon: &'a str,
}

impl Description<'_> {
    /// Calls of all operations; those with a body together have every field of its schema.
    pub(super) fn calls(&self) -> Vec<Call> {
        let mut calls = Vec::new();
        for (path, operations) in self.api["paths"].as_object().unwrap() {
            for (method, operation) in operations.as_object().unwrap() {
                let contents = &self.resolved(&operation["requestBody"]).1["content"];
                let content = &contents["application/json"];
                let lines = contents.as_object().into_iter().flatten().find(|_| content.is_null());
                let lines =
                    lines.map(|(kind, of)| (kind.clone(), of["example"].as_str().unwrap().to_owned()));
                let bodies = match content.is_null() {
                    true => vec![None],
                    false => self.bodies(content).into_iter().map(Some).collect(),
                };
                let responses = operation["responses"].as_object().unwrap();
                let is_stream = responses.get("200").is_some_and(|ok| {
                    let kinds = self.resolved(ok).1["content"].as_object();
                    kinds.is_some_and(|kinds| kinds.keys().all(|kind| kind == "text/event-stream"))
                });
                for body in bodies {
                    calls.push(Call {
                        operation: operation["operationId"].as_str().unwrap().to_owned(),
                        tag: operation["tags"][0].as_str().unwrap().to_owned(),
                        method: method.to_uppercase(),
                        path: path.clone(),
                        of_path: self.parameters(operation, "path"),
                        of_query: self.parameters(operation, "query"),
                        body,
                        lines: lines.clone(),
                        statuses: responses.keys().filter_map(|status| status.parse().ok()).collect(),
                        is_endless: is_stream && method == "get",
                    });
                }
            }
        }
        // The other calls need what these erase.
        calls.sort_by_key(|call| call.tag == "erasures");
        calls
    }

    /// The parameters of a path or a query that an operation needs.
    fn parameters(&self, operation: &Value, place: &str) -> Map<String, Value> {
        let all = operation["parameters"].as_array().into_iter().flatten().map(|of| self.resolved(of).1);
        let needed = all.filter(|parameter| parameter["in"] == place && parameter["required"] == true);
        let known = |name: &str| PATHS.iter().find(|(of, _)| *of == name).map(|(_, value)| json!(value));
        needed
            .map(|parameter| {
                let name = parameter["name"].as_str().unwrap();
                let value = known(name).unwrap_or_else(|| self.value(&parameter["schema"]));
                (name.to_owned(), value)
            })
            .collect()
    }

    /// Bodies with every field; the values of the example come first.
    fn bodies(&self, content: &Value) -> Vec<Value> {
        let (name, schema) = self.resolved(&content["schema"]);
        let Some(fields) = schema["properties"].as_object() else { return vec![json!({})] };
        let mut whole = Map::new();
        // An example of several operations is a component.
        let shared = &self.resolved(&content["examples"]["example"]).1["value"];
        for (field, schema) in fields {
            // An example has some of the fields of an object that is named field by field.
            let is_whole = |value: &&Value| !value.is_null() && !self.has_fields(schema);
            let given = content["example"].get(field).or_else(|| shared.get(field)).filter(is_whole);
            let value =
                self.known_value(&name, field).or(given.cloned()).unwrap_or_else(|| self.value(schema));
            whole.insert(field.clone(), value);
        }
        let alternatives = ALTERNATIVES.iter().find(|(of, _)| *of == name).map_or(&[][..], |(_, all)| all);
        let of_alternative = |chosen: &[(&str, Option<&str>)]| {
            let mut body = whole.clone();
            for (field, _) in alternatives.iter().copied().flatten() {
                match chosen.iter().find(|(name, _)| name == field) {
                    Some((_, Some(value))) => _ = body.insert((*field).to_owned(), parsed(value)),
                    Some((_, None)) => {}
                    None => _ = body.remove(*field),
                }
            }
            Value::Object(body)
        };
        match alternatives {
            [] => vec![Value::Object(whole)],
            some => some.iter().map(|chosen| of_alternative(chosen)).collect(),
        }
    }

    /// The schema that a reference names, and its name.
    fn resolved<'b>(&'b self, schema: &'b Value) -> (String, &'b Value) {
        let (mut name, mut schema) = (String::new(), schema);
        while let Some(reference) = schema["$ref"].as_str() {
            let pointer = reference.trim_start_matches('#');
            pointer.rsplit('/').next().unwrap().clone_into(&mut name);
            schema = self.api.pointer(pointer).unwrap_or_else(|| panic!("{reference} leads to nothing"));
        }
        (name, schema)
    }

    fn has_fields(&self, schema: &Value) -> bool {
        let (_, schema) = self.resolved(schema);
        let alternatives = schema["oneOf"].as_array().into_iter().flatten();
        schema["properties"].is_object() || alternatives.into_iter().any(|one| self.has_fields(one))
    }

    /// A value that the schema allows, with every field.
    fn value(&self, schema: &Value) -> Value {
        let own = schema;
        let (name, schema) = self.resolved(schema);
        for example in [&own["example"], &own["examples"][0], &schema["example"], &schema["examples"][0]] {
            if !example.is_null() {
                return example.clone();
            }
        }
        if let Some(constant) = schema.get("const") {
            return constant.clone();
        }
        for kind in ["oneOf", "anyOf"] {
            let mut alternatives = schema[kind].as_array().into_iter().flatten();
            if let Some(first) = alternatives.find(|one| self.resolved(one).1["type"] != "null") {
                return self.value(first);
            }
        }
        if let Some(first) = schema["enum"].as_array().and_then(|all| all.iter().find(|one| !one.is_null())) {
            return first.clone();
        }
        if let Some(fields) = schema["properties"].as_object() {
            let field = |(field, schema): (&String, &Value)| {
                (field.clone(), self.known_value(&name, field).unwrap_or_else(|| self.value(schema)))
            };
            return fields.iter().map(field).collect::<Map<_, _>>().into();
        }
        if let Some(default) = schema.get("default").filter(|default| !default.is_null()) {
            return default.clone();
        }
        let kinds = schema["type"].as_array().map_or(vec![&schema["type"]], |kinds| kinds.iter().collect());
        match kinds.into_iter().filter_map(Value::as_str).find(|kind| *kind != "null") {
            Some("integer" | "number") => json!(schema["minimum"].as_i64().unwrap_or(1).max(1)),
            Some("boolean") => json!(true),
            Some("array") if schema["maxItems"] == 0 => json!([]),
            Some("array") => json!([self.value(&schema["items"])]),
            Some("object") => json!({}),
            Some("string") if schema["format"] == "date-time" => json!("2036-01-01T09:00:00Z"),
            Some("string") => json!("a".repeat(schema["minLength"].as_u64().unwrap_or(1).max(1) as usize)),
            _ => json!([]),
        }
    }

    fn known_value(&self, schema: &str, field: &str) -> Option<Value> {
        if (schema, field) == ("SnoozeBody", "until") {
            return Some(json!(self.soon));
        }
        let known = VALUES.iter().find(|(of, name, _)| (*of, *name) == (schema, field));
        known.map(|(_, _, value)| parsed(value))
    }
}

fn parsed(value: &str) -> Value {
    serde_json::from_str(value).unwrap()
}
