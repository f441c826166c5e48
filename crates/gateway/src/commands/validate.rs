//! Validation of texts and fields that people and services write, by the rules of the owner, so
//! that nothing accepted here is refused later.

use http_server::error::{ErrorCode, Problem};
use model::{InvalidMetadata, Metadata, TurnOptions};
use protocols::request::{Instructions, MAX_USER_BYTES, Wanted};
use serde_json::{Map, Value};

/// Largest body with an input: escapes may make its text six times longer.
pub(crate) const MAX_INPUT_BODY: usize = 2 << 20;
/// The parameter with instructions for the model.
const INSTRUCTIONS: &str = "instructions";
/// Largest metadata of an input or a thread.
const MAX_METADATA_BYTES: usize = 64 << 10;

/// Turn parameters of an input, as they travel with the turn.
#[derive(Debug, Clone, Default)]
pub(crate) struct TurnParameters {
    /// The parameters, including the instructions.
    pub(crate) values: Metadata,
    /// The field with the instructions; the agent's settings decide whether it is allowed.
    pub(crate) instructions: Option<String>,
}

impl TurnParameters {
    /// Checks what a request asks for, as the owner of its thread will.
    pub(crate) fn new(wanted: Wanted) -> Result<Self, Problem> {
        let Wanted { parameters, instructions, .. } = wanted;
        let (param, text) = instructions.map(|Instructions { param, text }| (param, text)).unzip();
        let mut map = parameters.as_map().cloned().unwrap_or_default();
        map.extend(text.map(|text| (INSTRUCTIONS.to_owned(), Value::String(text))));
        Ok(Self { values: checked(map)?, instructions: param })
    }

    /// Checks `parameters` of a message of the native API.
    pub(crate) fn of_parameters(map: Option<Map<String, Value>>) -> Result<Self, Problem> {
        let map = map.unwrap_or_default();
        let param = match map.get(INSTRUCTIONS) {
            None => None,
            Some(Value::String(_)) => Some(format!("parameters.{INSTRUCTIONS}")),
            Some(_) => {
                let detail = format!("parameters.{INSTRUCTIONS} must be a string");
                return Err(Problem::new(ErrorCode::InvalidParameters, detail));
            }
        };
        Ok(Self { values: checked(map)?, instructions: param })
    }
}

fn checked(map: Map<String, Value>) -> Result<Metadata, Problem> {
    let invalid = |error: InvalidMetadata| {
        let what = error.to_string();
        let what = what.strip_prefix("metadata error: ").unwrap_or(&what).replace("metadata", "an object");
        Problem::new(ErrorCode::InvalidParameters, format!("parameters: {what}"))
    };
    let parameters = Metadata::new(map).map_err(invalid)?;
    parameters.check_numbers().map_err(invalid)?;
    match parameters.size() {
        size if size > TurnOptions::MAX_PARAMETERS => {
            let most = TurnOptions::MAX_PARAMETERS;
            let detail = format!("what is asked of the model has {size} bytes; at most {most} are allowed");
            Err(Problem::new(ErrorCode::ParametersTooLarge, detail))
        }
        _ => Ok(parameters),
    }
}

/// Checks the text of an input or a task.
pub(crate) fn content(text: &str) -> Result<(), Problem> {
    wire::check_input(text).map_err(|invalid| match invalid {
        wire::InvalidCommand::EmptyInput => Problem::new(ErrorCode::EmptyInput, "content is empty"),
        wire::InvalidCommand::InputTooLarge(_) => {
            Problem::new(ErrorCode::InputTooLarge, format!("content: {invalid}"))
        }
        _ => Problem::new(ErrorCode::InvalidContent, invalid.to_string()),
    })
}

/// Checks the name of a user, which `field` contains.
pub(crate) fn user(field: &str, name: &str) -> Result<String, Problem> {
    match (1..=MAX_USER_BYTES).contains(&name.len()) && !name.contains('\0') {
        true => Ok(name.to_owned()),
        false => {
            let detail = format!("{field} must have 1 to {MAX_USER_BYTES} bytes, and no NUL character");
            Err(Problem::new(ErrorCode::InvalidId, detail))
        }
    }
}

/// Checks the metadata of an input, a task or a thread.
pub(crate) fn metadata(map: Option<Map<String, Value>>) -> Result<Metadata, Problem> {
    let invalid = |error: InvalidMetadata| Problem::new(ErrorCode::InvalidMetadata, error.to_string());
    let metadata = Metadata::new(map.unwrap_or_default()).map_err(invalid)?;
    client_metadata(&metadata)?;
    Ok(metadata)
}

/// Checks metadata that comes from a client, whatever its protocol.
pub(crate) fn client_metadata(metadata: &Metadata) -> Result<(), Problem> {
    let invalid = |error: InvalidMetadata| Problem::new(ErrorCode::InvalidMetadata, error.to_string());
    metadata.tokens_used().map_err(invalid)?;
    metadata.check_from_client().map_err(invalid)?;
    match metadata.size() {
        size if size > MAX_METADATA_BYTES => Err(Problem::new(
            ErrorCode::MetadataTooLarge,
            format!("metadata has {size} bytes; at most {MAX_METADATA_BYTES} are allowed"),
        )),
        _ => Ok(()),
    }
}
