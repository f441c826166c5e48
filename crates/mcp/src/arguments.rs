//! Validates the arguments of a call. Unknown arguments are refused, so that a misspelled name does
//! not silently select a default.

use model::{Position, ReasoningSessionId, Tenant};
use rmcp::model::JsonObject;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::answer::ToolError;

/// Maximum bytes of an id, a token or a name.
const MAX_NAME_BYTES: usize = 128;
/// Maximum characters of a memory query.
pub(crate) const MAX_QUERY_CHARS: usize = 2_000;
/// Maximum bytes of a fact's id.
pub(crate) const MAX_FACT_ID_BYTES: usize = 512;
/// Maximum number of facts in one answer.
pub(crate) const MAX_FOUND: u32 = 50;

#[derive(Debug)]
pub(crate) struct ToolArguments {
    values: JsonObject,
}

impl ToolArguments {
    /// Refuses arguments that the tool does not have.
    pub(crate) fn new(values: Option<JsonObject>, known: &[&str]) -> Result<Self, ToolError> {
        let values = values.unwrap_or_default();
        match values.keys().find(|name| !known.contains(&name.as_str())) {
            None => Ok(Self { values }),
            Some(unknown) => {
                let (unknown, known) = (shortened(unknown), known.join(", "));
                Err(ToolError::argument(format!("there is no argument {unknown:?}; there are {known}")))
            }
        }
    }

    fn value(&self, name: &str) -> Option<&Value> {
        self.values.get(name).filter(|value| !value.is_null())
    }

    /// The session of a tenant. An invalid id is reported like an unknown session.
    pub(crate) fn session(&self, tenant: Option<&Tenant>) -> Result<ReasoningSessionId, ToolError> {
        let name = self.required_text("session_id")?;
        ReasoningSessionId::of_tenant(tenant, name).map_err(|_| ToolError::no_session())
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<&str>, ToolError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(ToolError::argument(format!("{name} must be a string"))),
        }
    }

    pub(crate) fn required_text(&self, name: &str) -> Result<&str, ToolError> {
        self.text(name)?.ok_or_else(|| missing(name))
    }

    /// A string, or an object as the text of its JSON.
    pub(crate) fn text_or_object(&self, name: &str) -> Result<Option<String>, ToolError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(object @ Value::Object(_)) => Ok(Some(object.to_string())),
            Some(_) => Err(ToolError::argument(format!("{name} must be a string or an object"))),
        }
    }

    /// A string that is a name or id.
    pub(crate) fn name(&self, name: &str) -> Result<Option<&str>, ToolError> {
        let text = self.text(name)?;
        match text.is_some_and(|text| {
            text.is_empty() || text.len() > MAX_NAME_BYTES || text.chars().any(char::is_control)
        }) {
            false => Ok(text),
            true => Err(ToolError::argument(format!(
                "{name} must have 1 to {MAX_NAME_BYTES} bytes and no control characters"
            ))),
        }
    }

    pub(crate) fn flag(&self, name: &str) -> Result<bool, ToolError> {
        match self.value(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(ToolError::argument(format!("{name} must be true or false"))),
        }
    }

    pub(crate) fn integer(&self, name: &str) -> Result<Option<i64>, ToolError> {
        self.value(name).map(|value| integer(name, value)).transpose()
    }

    /// A number, perhaps with a fraction.
    pub(crate) fn number(&self, name: &str) -> Result<Option<f64>, ToolError> {
        let wrong = || ToolError::argument(format!("{name} must be a number"));
        self.value(name).map(|value| value.as_f64().ok_or_else(wrong)).transpose()
    }

    pub(crate) fn required_integer(&self, name: &str) -> Result<i64, ToolError> {
        self.integer(name)?.ok_or_else(|| missing(name))
    }

    pub(crate) fn integers(&self, name: &str) -> Result<Option<Vec<i64>>, ToolError> {
        match self.list(name)? {
            Some(values) => {
                values.iter().map(|value| integer(name, value)).collect::<Result<_, _>>().map(Some)
            }
            None => Ok(None),
        }
    }

    pub(crate) fn list(&self, name: &str) -> Result<Option<&[Value]>, ToolError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Array(values)) => Ok(Some(values)),
            Some(_) => Err(ToolError::argument(format!("{name} must be a list"))),
        }
    }

    /// The objects of a list; `known` are the arguments that each may have.
    pub(crate) fn objects(&self, name: &str, known: &[&str]) -> Result<Option<Vec<Self>>, ToolError> {
        let Some(values) = self.list(name)? else { return Ok(None) };
        let object = |value: &Value| match value {
            Value::Object(object) => Self::new(Some(object.clone()), known),
            _ => Err(ToolError::argument(format!("{name} must be a list of objects"))),
        };
        values.iter().map(object).collect::<Result<_, _>>().map(Some)
    }

    /// A position: a decimal string, as everywhere in JSON.
    pub(crate) fn position(&self, name: &str) -> Result<Option<Position>, ToolError> {
        let wrong = || ToolError::argument(format!("{name} must be the id of a batch, a string of digits"));
        let parsed = |text: &str| text.parse().ok().filter(|number: &i64| *number >= 0).ok_or_else(wrong);
        Ok(self.text(name)?.map(parsed).transpose()?.map(Position::from_stored))
    }

    /// Digest of the tool and the arguments, regardless of their order.
    pub(crate) fn digest(&self, tool: &str) -> String {
        let mut sorted: Vec<(&String, &Value)> =
            self.values.iter().filter(|(name, _)| *name != "request_id").collect();
        sorted.sort_by_key(|(name, _)| *name);
        let text = serde_json::to_string(&(tool, sorted)).unwrap_or_default();
        hex(&Sha256::digest(text.as_bytes()))
    }
}

/// The bytes as hexadecimal text.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn missing(name: &str) -> ToolError {
    ToolError::argument(format!("{name} is missing"))
}

/// Reads a whole number. A number beyond the range becomes the largest one, so that it is refused
/// like any number beyond the thread.
fn integer(name: &str, value: &Value) -> Result<i64, ToolError> {
    let whole = |number: f64| (number.is_finite() && number.fract() == 0.0).then_some(number as i64);
    let number = value
        .as_i64()
        .or_else(|| value.as_u64().map(|_| i64::MAX))
        .or_else(|| value.as_f64().and_then(whole));
    number.ok_or_else(|| ToolError::argument(format!("{name} must be a whole number")))
}

/// The beginning of an argument, for error texts.
fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}
