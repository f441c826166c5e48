//! The fields of requests: how each is handled, and which values it can have. Parsers and the JSON
//! schemas of the API document use them.
//!
//! Each protocol has one table of its fields ([`Known`]). A field that is in no table is refused.

use serde_json::{Map, Value, json};

use super::MAX_MODEL_BYTES;

/// A field of a request, or of an object inside of one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) used: Use,
    /// One sentence for the API document.
    about: &'static str,
}

/// The fields of an object that are known.
pub(crate) type Known = [Field];

/// How a field is handled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Use {
    /// The field is read; its value may be refused.
    Read(ReadShape),
    /// The field is read, and it is required.
    Required(ReadShape),
    /// The field is passed to the workflow under this name, if its value has this shape.
    Handed(&'static str, FieldShape),
    /// The field is accepted only with one of these values (as JSON), which ask for the only
    /// supported behaviour. The text is the reason why other values are refused.
    Only(&'static [&'static str], &'static str),
    /// The field is refused unless it is empty; the text is the reason.
    Refused(&'static str),
}

pub(crate) const fn read(name: &'static str, shape: ReadShape, about: &'static str) -> Field {
    Field { name, used: Use::Read(shape), about }
}

pub(crate) const fn required(name: &'static str, shape: ReadShape, about: &'static str) -> Field {
    Field { name, used: Use::Required(shape), about }
}

pub(crate) const fn handed(name: &'static str, shape: FieldShape, about: &'static str) -> Field {
    handed_as(name, name, shape, about)
}

/// A field that is passed to the workflow under the name `to`.
pub(crate) const fn handed_as(
    name: &'static str,
    to: &'static str,
    shape: FieldShape,
    about: &'static str,
) -> Field {
    Field { name, used: Use::Handed(to, shape), about }
}

pub(crate) const fn only(name: &'static str, values: &'static [&'static str], why: &'static str) -> Field {
    Field { name, used: Use::Only(values, why), about: why }
}

pub(crate) const fn refused(name: &'static str, why: &'static str) -> Field {
    Field { name, used: Use::Refused(why), about: why }
}

/// The shape of a value that is read. The parser of the protocol checks it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ReadShape {
    Flag,
    /// A text, which may be empty.
    Text,
    OneOf(&'static [&'static str]),
    /// The version number 1.
    Version,
    /// The id of a thread.
    Thread,
    /// The id of an agent.
    Agent,
    /// The id or an alias of an agent.
    Model,
    /// The id of a thread, alone or in an object.
    Conversation,
    /// Messages. The text of a message is in the field of this name.
    Messages(&'static str),
    /// A text, or messages.
    Input,
    /// The format of an answer.
    Format,
    /// Free metadata, of which `thread_id` names the thread.
    ThreadMetadata,
    Metadata,
    /// An object with these fields.
    Fields(&'static Known),
}

/// The shape of a value that is passed to the workflow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum FieldShape {
    /// A number between the first two values; the text describes the range.
    Number(f64, f64, &'static str),
    /// A whole number above 0.
    Count,
    Integer,
    Flag,
    Text,
    /// One of these texts; the second field describes them.
    OneOf(&'static [&'static str], &'static str),
    /// A text, or one to four of them.
    Texts,
    /// An object with numbers.
    NumberMap,
    Object,
}

impl FieldShape {
    pub(crate) fn has(self, value: &Value) -> bool {
        match (self, value) {
            (Self::Number(from, to, _), Value::Number(number)) => {
                number.as_f64().is_some_and(|number| (from..=to).contains(&number))
            }
            (Self::Count, Value::Number(number)) => number.as_u64().is_some_and(|number| number > 0),
            (Self::Integer, Value::Number(number)) => number.is_i64() || number.is_u64(),
            (Self::Flag, Value::Bool(_)) | (Self::Object, Value::Object(_)) => true,
            (Self::Text | Self::Texts, Value::String(text)) => !text.is_empty(),
            (Self::OneOf(all, _), Value::String(text)) => all.contains(&text.as_str()),
            (Self::Texts, Value::Array(texts)) => {
                (1..=4).contains(&texts.len())
                    && texts.iter().all(|text| text.as_str().is_some_and(|text| !text.is_empty()))
            }
            (Self::NumberMap, Value::Object(map)) => map.values().all(Value::is_number),
            _ => false,
        }
    }

    pub(crate) fn expected(self) -> &'static str {
        match self {
            Self::Number(_, _, expected) | Self::OneOf(_, expected) => expected,
            Self::Count => "a whole number above 0",
            Self::Integer => "a whole number",
            Self::Flag => "true or false",
            Self::Text => "a string that is not empty",
            Self::Texts => "a string, or one to four of them, none of them empty",
            Self::NumberMap => "an object with numbers",
            Self::Object => "an object",
        }
    }

    /// The schema without `null`, which counts as absent.
    fn schema(self) -> Value {
        match self {
            Self::Number(from, to, _) => json!({ "type": "number", "minimum": from, "maximum": to }),
            Self::Count => json!({ "type": "integer", "minimum": 1 }),
            Self::Integer => json!({ "type": "integer" }),
            Self::Flag => json!({ "type": "boolean" }),
            Self::Text => json!({ "type": "string", "minLength": 1 }),
            Self::OneOf(all, _) => json!({ "type": "string", "enum": all }),
            Self::Texts => json!({
                "type": ["string", "array"], "minLength": 1, "minItems": 1, "maxItems": 4,
                "items": { "type": "string", "minLength": 1 },
            }),
            Self::NumberMap => json!({ "type": "object", "additionalProperties": { "type": "number" } }),
            Self::Object => json!({ "type": "object" }),
        }
    }
}

impl ReadShape {
    fn schema(self) -> Value {
        match self {
            Self::Flag => json!({ "type": "boolean" }),
            Self::Text => json!({ "type": "string" }),
            Self::OneOf(all) => json!({ "type": "string", "enum": all }),
            Self::Version => json!({ "type": "string", "pattern": "^1(\\.|$)", "examples": ["1.0"] }),
            Self::Thread => reference("ThreadName"),
            Self::Agent => reference("AgentName"),
            Self::Model => {
                json!({ "type": "string", "minLength": 1, "maxLength": MAX_MODEL_BYTES, "examples": ["ann"] })
            }
            Self::Conversation => json!({ "anyOf": [
                reference("ThreadName"),
                { "type": "object", "required": ["id"], "properties": { "id": reference("ThreadName") } },
            ] }),
            Self::Messages(content) => reference(messages_name(content)),
            Self::Input => json!({
                "anyOf": [{ "type": "string", "minLength": 1 }, reference(messages_name(CONTENT))],
            }),
            Self::Format => json!({
                "type": "object", "required": ["type"],
                "properties": { "type": { "enum": ["text", "json_object", "json_schema"] } },
            }),
            Self::ThreadMetadata => {
                let thread = or_null(reference("ThreadName"));
                json!({ "type": "object", "properties": { "thread_id": thread } })
            }
            Self::Metadata => json!({ "type": "object" }),
            Self::Fields(known) => {
                let properties: Map<String, Value> = known.iter().map(Field::property).collect();
                json!({ "type": "object", "properties": properties })
            }
        }
    }
}

impl Field {
    /// The name and the schema of the field.
    fn property(&self) -> (String, Value) {
        let (mut schema, about) = match self.used {
            Use::Required(shape) => (shape.schema(), self.about.to_owned()),
            Use::Read(shape) => (or_null(shape.schema()), self.about.to_owned()),
            Use::Handed(_, shape) => (or_null(shape.schema()), self.about.to_owned()),
            Use::Only(values, why) => {
                let values: Vec<Value> =
                    values.iter().filter_map(|value| serde_json::from_str(value).ok()).collect();
                (only_schema(values), format!("No other value: {why}."))
            }
            // The usual reason is in the schema itself.
            Use::Refused(NOT_HERE) => return (self.name.to_owned(), reference(EMPTY)),
            Use::Refused(why) => (reference(EMPTY), must_be_empty(why)),
        };
        schema["description"] = Value::String(about);
        (self.name.to_owned(), schema)
    }
}

/// The schema of an object with these fields.
pub(crate) fn object_schema(about: &str, known: &Known) -> Value {
    let properties: Map<String, Value> = known.iter().map(Field::property).collect();
    let required = known.iter().filter(|field| matches!(field.used, Use::Required(_)));
    let required: Vec<_> = required.map(|field| field.name).collect();
    json!({ "type": "object", "description": about, "required": required, "properties": properties })
}

/// Name of the schema for the values that a refused field may have.
const EMPTY: &str = "EmptyValue";

/// The schemas to which the schemas of fields refer, besides those of ids.
pub(crate) fn shared_schemas() -> [(String, Value); 3] {
    let of_messages = |content| (messages_name(content).to_owned(), messages(content));
    [(EMPTY.to_owned(), empty_schema()), of_messages(CONTENT), of_messages(PARTS)]
}

fn must_be_empty(why: &str) -> String {
    format!("Must be empty: {why}.")
}

/// The schema of values that count as empty.
fn empty_schema() -> Value {
    json!({
        "description": must_be_empty(NOT_HERE),
        "anyOf": [
            { "type": "null" },
            { "type": "boolean", "const": false },
            { "type": "array", "maxItems": 0, "items": {} },
            { "type": "object", "maxProperties": 0 },
        ],
    })
}

/// Generators of clients support only enumerations of texts or of numbers.
fn only_schema(values: Vec<Value>) -> Value {
    match values.as_slice() {
        [Value::Array(items)] => json!({
            "type": ["array", "null"], "minItems": items.len(), "maxItems": items.len(), "items": { "enum": items },
        }),
        [Value::Bool(value)] => or_null(json!({ "anyOf": [{ "type": "boolean", "const": value }] })),
        _ => json!({ "enum": values.into_iter().chain([Value::Null]).collect::<Vec<_>>() }),
    }
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// Adds `null` to a schema, because `null` counts as absent.
fn or_null(mut schema: Value) -> Value {
    let kinds = match schema.get("type") {
        Some(Value::String(kind)) => vec![kind.clone(), "null".to_owned()],
        Some(Value::Array(kinds)) => {
            kinds.iter().filter_map(Value::as_str).chain(["null"]).map(str::to_owned).collect()
        }
        _ => match schema.get_mut("anyOf").and_then(Value::as_array_mut) {
            Some(variants) => {
                variants.push(json!({ "type": "null" }));
                return schema;
            }
            None => return json!({ "anyOf": [schema, { "type": "null" }] }),
        },
    };
    schema["type"] = json!(kinds);
    if let Some(values) = schema.get_mut("enum").and_then(Value::as_array_mut) {
        values.push(Value::Null);
    }
    schema
}

/// The field of a message with its text.
pub(crate) const CONTENT: &str = "content";
/// The same field in the AI SDK.
pub(crate) const PARTS: &str = "parts";

fn messages_name(content: &str) -> &'static str {
    if content == PARTS { "UiInputMessages" } else { "InputMessages" }
}

/// The last message is the new input, with its text in the field `content`. Of those before it only
/// instructions are read.
fn messages(content: &str) -> Value {
    let part = json!({
        "type": "object", "required": ["type"],
        "properties": { "type": { "type": "string" }, "text": { "type": "string" } },
    });
    let text = json!({ "anyOf": [{ "type": "string", "minLength": 1 }, { "type": "array", "minItems": 1, "items": part }] });
    let input = json!({
        "type": "object", "required": ["role", content],
        "properties": { "role": { "const": "user" }, content: text },
    });
    json!({ "type": "array", "minItems": 1, "contains": input, "items": { "type": "object" } })
}

pub(crate) const PENALTY: FieldShape = FieldShape::Number(-2.0, 2.0, "a number from -2 to 2");
pub(crate) const TEMPERATURE: FieldShape = FieldShape::Number(0.0, 2.0, "a number from 0 to 2");
pub(crate) const PROBABILITY: FieldShape = FieldShape::Number(0.0, 1.0, "a number from 0 to 1");
pub(crate) const VERBOSITY: FieldShape = FieldShape::OneOf(&["low", "medium", "high"], "low, medium or high");
/// Choices that force a call are refused, because the model would call the tool in every step.
pub(crate) const TOOL_CHOICE: FieldShape = FieldShape::OneOf(
    &["auto", "none"],
    "auto or none: tools belong to the agent's workflow and are called there",
);

/// Reason for refusing a setting that belongs to the operator.
pub(crate) const SETTINGS: &str = "it belongs to the agent's settings";
/// Reason for refusing tools of the client.
pub(crate) const TOOLS: &str = "tools belong to the agent's workflow and are called there";
/// Reason for refusing an unsupported field.
pub(crate) const NOT_HERE: &str = "not supported";
/// Reason for refusing a request not to store its content.
/// Why `store: false` is refused in a thread.
pub(crate) const KEPT: &str = "what is said in a thread is kept: send it without naming a thread";

pub(crate) const STORE: Field = read("store", ReadShape::Flag, "False: a temporary thread.");

pub(crate) const LAST_MESSAGE: &str =
    "The last message is the new input. Earlier ones are read if the thread has none.";

/// Fields that several protocols have.
pub(crate) const PARALLEL_TOOL_CALLS: Field =
    handed("parallel_tool_calls", FieldShape::Flag, "Whether the model may call several tools at once.");
pub(crate) const PROMPT_CACHE_KEY: Field =
    handed("prompt_cache_key", FieldShape::Text, "Key by which the provider caches prompts.");
pub(crate) const PROMPT_CACHE_RETENTION: Field =
    handed("prompt_cache_retention", FieldShape::Text, "How long the provider caches prompts.");
pub(crate) const SAFETY_IDENTIFIER: Field =
    handed("safety_identifier", FieldShape::Text, "Stable id of the end user, as `user`.");
pub(crate) const USER: Field =
    handed("user", FieldShape::Text, "Stable id of the end user, who becomes that of a new thread.");
