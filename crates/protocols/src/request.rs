//! Requests of clients. In every protocol, a request has one new input for a thread.
//!
//! Entry types: [`BadRequest`] and [`RequestRejection`]; each protocol has a request type of its
//! own. The server keeps the history, so only the last of the messages in a request is the input. A
//! field that is not supported is refused with its path in the body, and is never dropped silently:
//! each protocol has a table of the fields that it knows ([`Known`]), and unknown fields are
//! refused, too. Parameters for the model go to the agent's workflow with the turn ([`Wanted`]).

use std::borrow::Cow;

use bytes::Bytes;
use model::{InputAuthor, InvalidId, InvalidMetadata, Metadata, quoting};
use serde_json::{Map, Value};

mod field;

pub(crate) use field::{
    CONTENT, FieldShape, KEPT, Known, LAST_MESSAGE, NOT_HERE, PARALLEL_TOOL_CALLS, PARTS, PENALTY,
    PROBABILITY, PROMPT_CACHE_KEY, PROMPT_CACHE_RETENTION, ReadShape, SAFETY_IDENTIFIER, SETTINGS, STORE,
    TEMPERATURE, TOOL_CHOICE, TOOLS, USER, Use, VERBOSITY, handed, handed_as, object_schema, only, read,
    refused, required, shared_schemas,
};

/// Longest name of a model, in bytes.
pub const MAX_MODEL_BYTES: usize = 256;
/// Longest name of a user, in bytes.
pub const MAX_USER_BYTES: usize = 256;

/// Why a body is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadRequest {
    /// Not JSON, or not an object.
    #[error("the body must be a JSON object: {0}")]
    NotAnObject(String),
    /// A required field is missing.
    #[error("`{param}` is missing")]
    Missing { param: String },
    /// A field has another type, or a value that the protocol does not have.
    #[error("`{param}` must be {expected}")]
    Invalid {
        param: String,
        /// What the field must be.
        expected: &'static str,
    },
    /// A field that must hold one of our ids does not.
    #[error("`{param}`: {source}")]
    InvalidId {
        param: String,
        /// What is wrong with the id.
        source: InvalidId,
    },
    /// Metadata that cannot be stored.
    #[error("`{param}`: {source}")]
    InvalidMetadata {
        param: String,
        /// What is wrong with the metadata.
        source: InvalidMetadata,
    },
    /// The protocol has this field or value, but it is not supported here.
    #[error("`{param}`: {why}")]
    Unsupported {
        param: String,
        /// Why it is not supported, or what to do instead.
        why: Cow<'static, str>,
    },
    /// No agent has this alias, and no agent can have this id.
    #[error(
        "`{param}`: no agent has the alias {model}; add it to the setting `aliases` of an agent with PUT /v1/agents/{{agent}}"
    )]
    UnknownModel {
        /// The field with the model.
        param: String,
        /// What the field contains.
        model: String,
    },
    /// The last message is not the user's, so there is nothing to answer.
    #[error("`{param}` must end with a message of the user")]
    NoInput {
        /// The field with the messages.
        param: String,
    },
    /// The input has no text.
    #[error("`{param}` has no text")]
    EmptyInput {
        /// The field with the input.
        param: String,
    },
    /// The request has earlier messages but names no thread that could contain them.
    #[error("`{param}` has earlier messages, but the request names no thread: {name}")]
    NoThread {
        /// The field with the messages.
        param: String,
        /// How to name a thread.
        name: &'static str,
    },
}

impl BadRequest {
    /// The field at fault, as a path into the body.
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::NotAnObject(_) => None,
            Self::Missing { param }
            | Self::Invalid { param, .. }
            | Self::InvalidId { param, .. }
            | Self::InvalidMetadata { param, .. }
            | Self::Unsupported { param, .. }
            | Self::UnknownModel { param, .. }
            | Self::NoInput { param }
            | Self::EmptyInput { param }
            | Self::NoThread { param, .. } => Some(param),
        }
    }
}

/// A refusal, before a protocol encodes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestRejection {
    /// The HTTP status.
    pub status: u16,
    /// A code for programs.
    pub code: String,
    /// A text for people.
    pub message: String,
    /// The field that is at fault.
    pub param: Option<String>,
}

impl RequestRejection {
    /// A refusal that concerns no single field.
    pub fn new(status: u16, code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { status, code: code.into(), message: message.into(), param: None }
    }
}

/// The body of a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorBody {
    /// Its media type.
    pub content_type: &'static str,
    pub bytes: Bytes,
}

/// What a request asks for besides an answer to its input.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Wanted {
    /// Parameters for the workflow, such as sampling and limits. In all protocols they have the
    /// names of OpenAI's chat completions.
    pub parameters: Metadata,
    /// Instructions for the model in addition to the agent's own. The agent's settings decide
    /// whether they are accepted.
    pub instructions: Option<Instructions>,
    /// Earlier messages that came with the input.
    pub history: Option<SentHistory>,
}

/// The earlier messages of a request. A thread that has messages has them already.
#[derive(Debug, Clone, PartialEq)]
pub struct SentHistory {
    /// The field with the messages.
    pub param: &'static str,
    /// The messages without instructions, in the form of chat completions, each with its index in
    /// the field.
    pub messages: Vec<(usize, Value)>,
    /// How a client names a thread.
    pub hint: &'static str,
}

impl SentHistory {
    /// The refusal of earlier messages that belong to no thread.
    pub fn refusal(&self) -> BadRequest {
        BadRequest::NoThread { param: self.param.to_owned(), name: self.hint }
    }
}

/// Instructions of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instructions {
    /// The first field with instructions.
    pub param: String,
    /// The texts of all these fields, in order.
    pub text: String,
}

impl Instructions {
    /// Adds a text of instructions, which is empty in some requests.
    pub(crate) fn add(all: &mut Option<Self>, param: String, text: &str) {
        match all {
            _ if text.trim().is_empty() => {}
            Some(known) => {
                known.text.push_str("\n\n");
                known.text.push_str(text);
            }
            None => *all = Some(Self { param, text: text.to_owned() }),
        }
    }
}

/// An object of the body, with the path that leads to it.
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
    path: String,
}

/// The body as a JSON object.
pub(crate) fn object(body: &[u8]) -> Result<Map<String, Value>, BadRequest> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(BadRequest::NotAnObject("it is another JSON value".to_owned())),
        Err(error) => Err(BadRequest::NotAnObject(error.to_string())),
    }
}

impl<'a> Fields<'a> {
    pub(crate) fn of(map: &'a Map<String, Value>) -> Self {
        Self { map, path: String::new() }
    }

    /// An object inside of the body, at this path.
    pub(crate) fn inside(path: String, value: &'a Value) -> Result<Self, BadRequest> {
        match value {
            Value::Object(map) => Ok(Self { map, path }),
            _ => Err(BadRequest::Invalid { param: path, expected: "an object" }),
        }
    }

    pub(crate) fn path(&self, key: &str) -> String {
        match self.path.as_str() {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        }
    }

    /// The value; `null` is the same as nothing.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>, BadRequest> {
        self.typed(key, "a string", Value::as_str)
    }

    pub(crate) fn flag(&self, key: &str) -> Result<bool, BadRequest> {
        Ok(self.typed(key, "true or false", Value::as_bool)?.unwrap_or(false))
    }

    pub(crate) fn array(&self, key: &str) -> Result<Option<&'a Vec<Value>>, BadRequest> {
        self.typed(key, "an array", Value::as_array)
    }

    pub(crate) fn object(&self, key: &str) -> Result<Option<Fields<'a>>, BadRequest> {
        self.get(key).map(|value| Self::inside(self.path(key), value)).transpose()
    }

    pub(crate) fn required<T>(&self, key: &str, value: Option<T>) -> Result<T, BadRequest> {
        value.ok_or_else(|| BadRequest::Missing { param: self.path(key) })
    }

    /// The id in a field, as `parse` reads it.
    pub(crate) fn id<T>(
        &self,
        key: &str,
        parse: impl Fn(&str) -> Result<T, InvalidId>,
    ) -> Result<Option<T>, BadRequest> {
        let invalid = |source| BadRequest::InvalidId { param: self.path(key), source };
        self.text(key)?.map(|text| parse(text).map_err(invalid)).transpose()
    }

    /// A model in a field: the id or an alias of an agent.
    pub(crate) fn model(&self, key: &str) -> Result<Option<String>, BadRequest> {
        let is_valid =
            |name: &str| (1..=MAX_MODEL_BYTES).contains(&name.len()) && !name.chars().any(char::is_control);
        match self.text(key)? {
            Some(name) if !is_valid(name) => {
                Err(self.invalid(key, "1 to 256 bytes without control characters"))
            }
            name => Ok(name.map(str::to_owned)),
        }
    }

    /// Free metadata, as an object.
    pub(crate) fn metadata(&self, key: &str) -> Result<Metadata, BadRequest> {
        let invalid = |source| BadRequest::InvalidMetadata { param: self.path(key), source };
        match self.object(key)? {
            Some(fields) => Metadata::new(fields.map.clone()).map_err(invalid),
            None => Ok(Metadata::EMPTY),
        }
    }

    /// Refuses a field that is present and not empty.
    pub(crate) fn refuse(&self, key: &str, why: &'static str) -> Result<(), BadRequest> {
        let is_empty = |value: &Value| match value {
            Value::Array(items) => items.is_empty(),
            Value::Object(map) => map.is_empty(),
            Value::Bool(flag) => !flag,
            _ => false,
        };
        match self.get(key) {
            Some(value) if !is_empty(value) => Err(self.unsupported(key, why)),
            _ => Ok(()),
        }
    }

    /// Refuses unknown and unsupported fields, and adds the fields for the workflow to
    /// `parameters`.
    pub(crate) fn take(&self, known: &Known, parameters: &mut Map<String, Value>) -> Result<(), BadRequest> {
        for (key, value) in self.map.iter().filter(|(_, value)| !value.is_null()) {
            match known.iter().find(|field| field.name == key).map(|field| field.used) {
                Some(Use::Read(_) | Use::Required(_)) => {}
                Some(Use::Handed(name, shape)) if shape.has(value) => {
                    parameters.insert(name.to_owned(), value.clone());
                }
                Some(Use::Handed(_, shape)) => return Err(self.invalid(key, shape.expected())),
                Some(Use::Only(values, _)) if values.contains(&value.to_string().as_str()) => {}
                // An empty list asks for nothing.
                Some(Use::Only(..)) if value.as_array().is_some_and(Vec::is_empty) => {}
                Some(Use::Only(_, why)) => return Err(self.unsupported(key, why)),
                Some(Use::Refused(why)) => self.refuse(key, why)?,
                None => return Err(self.unsupported(key, "there is no such field here")),
            }
        }
        Ok(())
    }

    pub(crate) fn unsupported(&self, key: &str, why: &'static str) -> BadRequest {
        BadRequest::Unsupported { param: self.path(key), why: why.into() }
    }

    pub(crate) fn invalid(&self, key: &str, expected: &'static str) -> BadRequest {
        BadRequest::Invalid { param: self.path(key), expected }
    }

    /// The user in a field, as budgets and facts name users. An empty text names none.
    pub(crate) fn user(&self, key: &str) -> Result<Option<String>, BadRequest> {
        match self.text(key)? {
            Some(name) if name.len() > MAX_USER_BYTES || name.contains('\0') => {
                Err(self.invalid(key, "at most 256 bytes without a NUL character"))
            }
            name => Ok(name.filter(|name| !name.is_empty()).map(str::to_owned)),
        }
    }

    /// The parameters for the workflow, as the turn carries them.
    pub(crate) fn parameters(&self, parameters: Map<String, Value>) -> Result<Metadata, BadRequest> {
        let invalid = |source| BadRequest::InvalidMetadata { param: self.path("parameters"), source };
        Metadata::new(parameters).map_err(invalid)
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &'static str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, BadRequest> {
        self.get(key).map(|value| read(value).ok_or_else(|| self.invalid(key, expected))).transpose()
    }
}

/// How a protocol writes the content of a message.
pub(crate) struct ContentRules {
    /// The type of a part with text, whose field is `text`.
    pub(crate) text_types: &'static [&'static str],
    /// Whether a type of part is ignored, because it contains nothing for the model.
    pub(crate) ignored: fn(&str) -> bool,
}

/// The text of the input. Whatever is not text is refused.
pub(crate) fn input_of(message: &Fields<'_>, key: &str, rules: &ContentRules) -> Result<String, BadRequest> {
    let text = text_of(message, key, rules)?;
    if text.trim().is_empty() {
        return Err(BadRequest::EmptyInput { param: message.path(key) });
    }
    Ok(text)
}

/// The text of a message: a string, or parts with text.
pub(crate) fn text_of(message: &Fields<'_>, key: &str, rules: &ContentRules) -> Result<String, BadRequest> {
    let text = match message.get(key) {
        None => return Err(BadRequest::Missing { param: message.path(key) }),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => text_of_parts(&message.path(key), parts, rules)?,
        Some(_) => return Err(message.invalid(key, "a string or an array of parts")),
    };
    if text.contains('\0') {
        return Err(message.invalid(key, "text without a NUL character"));
    }
    Ok(text)
}

fn text_of_parts(path: &str, parts: &[Value], rules: &ContentRules) -> Result<String, BadRequest> {
    let mut texts = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        let part = Fields::inside(format!("{path}[{index}]"), part)?;
        let kind = part.required("type", part.text("type")?)?;
        if rules.text_types.contains(&kind) {
            texts.push(part.required("text", part.text("text")?)?);
        } else if !(rules.ignored)(kind) {
            return Err(part.unsupported("type", "only text can be sent"));
        }
    }
    Ok(texts.join("\n"))
}

/// The last of the messages, which must be the user's, and those before it.
pub(crate) fn last_message<'a>(
    fields: &Fields<'a>,
    key: &str,
) -> Result<(Fields<'a>, &'a [Value]), BadRequest> {
    let messages = fields.required(key, fields.array(key)?)?;
    let no_input = || BadRequest::NoInput { param: fields.path(key) };
    let (last, earlier) = messages.split_last().ok_or_else(no_input)?;
    let message = Fields::inside(format!("{}[{}]", fields.path(key), earlier.len()), last)?;
    match message.required("role", message.text("role")?)? {
        "user" => Ok((message, earlier)),
        _ => Err(no_input()),
    }
}

/// Adds the texts of the system and developer messages among these, and returns the indexes of the
/// others.
pub(crate) fn instructions(
    path: &str,
    messages: &[Value],
    key: &str,
    rules: &ContentRules,
    all: &mut Option<Instructions>,
) -> Result<Vec<usize>, BadRequest> {
    let mut others = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        let message = Fields::inside(format!("{path}[{index}]"), message)?;
        if matches!(message.text("role")?, Some("system" | "developer")) {
            Instructions::add(all, message.path(key), &text_of(&message, key, rules)?);
        } else {
            others.push(index);
        }
    }
    Ok(others)
}

/// What a person says without an answer: the last message, and those right before it.
pub(crate) struct Unanswered {
    pub(crate) text: String,
    /// `None` if several people wrote: the text names them.
    pub(crate) author: Option<InputAuthor>,
    /// Indexes of the messages before the last one.
    pub(crate) before: Vec<usize>,
}

/// Fields of a message that can be a part of the input.
const FIELDS_OF_PLAIN: [&str; 6] = ["content", "id", "name", "role", "status", "type"];

/// Reads what `message` and the messages right before it say. Together they are the input, because
/// models do not read an input that has no answer.
pub(crate) fn unanswered(
    path: &str,
    earlier: &[Value],
    message: &Fields<'_>,
    rules: &ContentRules,
) -> Result<Unanswered, BadRequest> {
    let is_plain = |item: &Value| {
        let map = item.as_object().filter(|_| item["role"] == "user");
        map.is_some_and(|map| map.keys().all(|key| FIELDS_OF_PLAIN.contains(&key.as_str())))
    };
    let is_instruction = |item: &Value| matches!(item["role"].as_str(), Some("system" | "developer"));
    let last =
        earlier.iter().enumerate().rev().take_while(|(_, item)| is_plain(item) || is_instruction(item));
    let mut before: Vec<usize> = last.filter(|(_, item)| is_plain(item)).map(|(index, _)| index).collect();
    before.reverse();
    let mut said = Vec::new();
    for index in &before {
        let item = Fields::inside(format!("{path}[{index}]"), &earlier[*index])?;
        said.push((author(&item)?, text_of(&item, "content", rules)?));
    }
    let by = author(message)?;
    said.push((by.clone(), input_of(message, "content", rules)?));
    let is_of_one = said.iter().all(|(author, _)| *author == by);
    let texts = said.into_iter().map(|(author, text)| match author.filter(|_| !is_of_one) {
        Some(author) => quoting::said_by(&author.name, &text),
        None => text,
    });
    let text = texts.collect::<Vec<_>>().join("\n\n");
    Ok(Unanswered { text, author: by.filter(|_| is_of_one), before })
}

/// The author of a message, from its field `name`.
pub(crate) fn author(message: &Fields<'_>) -> Result<Option<InputAuthor>, BadRequest> {
    let name = message.user("name")?;
    Ok(name.map(|name| InputAuthor { id: None, name }))
}

/// The end user of a request in OpenAI's protocols.
pub(crate) fn user(fields: &Fields<'_>) -> Result<Option<String>, BadRequest> {
    let safety_identifier = fields.user("safety_identifier")?;
    Ok(fields.user("user")?.or(safety_identifier))
}

/// Whether a request in OpenAI's protocols asks for a thread that is not kept.
pub(crate) fn is_temporary(fields: &Fields<'_>, names_thread: bool) -> Result<bool, BadRequest> {
    let is_temporary = fields.get("store").is_some() && !fields.flag("store")?;
    if is_temporary && names_thread {
        return Err(fields.unsupported("store", KEPT));
    }
    Ok(is_temporary)
}

#[cfg(test)]
mod tests;
