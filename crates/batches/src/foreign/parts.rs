//! What the formats have in common.

use model::{Metadata, Timestamp};
use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::FormatError;

/// The text of a message's content, and the original parts if they are more than text.
pub(super) fn text_of(content: Option<&Value>) -> Result<(String, Option<Value>), FormatError> {
    match content {
        None | Some(Value::Null) => Ok((String::new(), None)),
        Some(Value::String(text)) => Ok((text.clone(), None)),
        Some(Value::Array(parts)) => {
            let texts: Vec<&str> = parts.iter().filter_map(text_of_part).collect();
            let is_plain = parts.len() == texts.len();
            let kept = (!is_plain).then(|| Value::Array(parts.clone()));
            // Media without text get a placeholder, so that the message is not empty.
            let words: Vec<String> = if texts.is_empty() {
                parts.iter().filter_map(medium).collect()
            } else {
                texts.into_iter().map(str::to_owned).collect()
            };
            Ok((words.join("\n"), kept))
        }
        Some(_) => Err(FormatError::Content),
    }
}

fn text_of_part(part: &Value) -> Option<&str> {
    let is_text =
        matches!(part.get("type").and_then(Value::as_str), Some("text" | "input_text" | "output_text"));
    part.as_str().or_else(|| part.get("text").filter(|_| is_text)?.as_str())
}

/// A placeholder for media, such as `[image_url]`. Calls and reasoning among the parts get none: other fields have them as well.
fn medium(part: &Value) -> Option<String> {
    let kind = part.get("type")?.as_str()?;
    let is_medium = ["image", "audio", "video", "file", "document"].iter().any(|word| kind.contains(word));
    is_medium.then(|| format!("[{kind}]"))
}

/// Milliseconds, seconds, or RFC 3339, as it comes under any of the usual names.
pub(super) fn time_of(map: &Map<String, Value>) -> Option<Timestamp> {
    let said = ["created_at", "createdAt", "created", "timestamp"].iter().find_map(|key| map.get(*key))?;
    if let Some(text) = said.as_str() {
        let parsed = OffsetDateTime::parse(text, &Rfc3339).ok()?;
        return Some(Timestamp((parsed.unix_timestamp_nanos() / 1_000_000) as i64));
    }
    let number = said.as_f64().filter(|number| number.is_finite() && *number > 0.0)?;
    // Seconds reach this in the year 5138, milliseconds had it in 1973.
    let ms = if number < 1e11 { number * 1_000.0 } else { number };
    Some(Timestamp(ms as i64))
}

/// Converts calls from OpenAI's form to the stored form.
pub(super) fn openai_calls(calls: &Value) -> Result<Vec<Value>, FormatError> {
    let call = |call: &Value| {
        let function =
            call.get("function").filter(|function| function.is_object()).ok_or(FormatError::Calls)?;
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok(json!({
            "id": text(call.get("id")),
            "name": text(function.get("name")),
            "arguments": arguments(function.get("arguments")),
        }))
    };
    calls.as_array().ok_or(FormatError::Calls)?.iter().map(call).collect()
}

/// Arguments as a text: as the model wrote them, or an object as JSON.
pub(super) fn arguments(said: Option<&Value>) -> String {
    match said {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

/// The message's fields that are not empty, except these keys.
pub(super) fn rest(map: &Map<String, Value>, without: &[&str]) -> Map<String, Value> {
    let is_rest = |(key, value): &(&String, &Value)| {
        let is_empty = value.is_null()
            || value.as_array().is_some_and(Vec::is_empty)
            || value.as_object().is_some_and(Map::is_empty);
        !without.contains(&key.as_str()) && !is_empty
    };
    map.iter().filter(is_rest).map(|(key, value)| (key.clone(), value.clone())).collect()
}

pub(super) fn metadata(mut map: Map<String, Value>, parts: Option<Value>) -> Result<Metadata, FormatError> {
    if let Some(parts) = parts {
        map.insert("content_parts".to_owned(), parts);
    }
    Ok(Metadata::new(map)?)
}
