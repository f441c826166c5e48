//! Converts results of calls to texts. Other values are kept as JSON. Media become placeholders,
//! and their parts are kept.

use serde_json::{Map, Value};

use super::fields::first_of;
use super::media::{is_medium_key, is_medium_kind};

/// The content of a result.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ResultContent {
    pub(super) text: String,
    /// All parts, if there are media among them.
    pub(super) kept: Vec<Value>,
}

/// Reads the content of a result.
pub(super) fn result_content(said: &Value) -> ResultContent {
    let mut has_media = false;
    let text = text_of(said, &mut has_media);
    let kept = match said {
        _ if !has_media => Vec::new(),
        Value::Array(items) => items.clone(),
        other => vec![other.clone()],
    };
    ResultContent { text, kept }
}

fn text_of(said: &Value, has_media: &mut bool) -> String {
    match said {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let texts = items.iter().map(|item| text_of(item, has_media)).filter(|text| !text.is_empty());
            texts.collect::<Vec<_>>().join("\n")
        }
        Value::Object(map) => {
            if let Some(kind) = medium(map) {
                *has_media = true;
                return format!("[{kind}]");
            }
            match inner_of(map) {
                Some(inner) => text_of(inner, has_media),
                None => said.to_string(),
            }
        }
        other => other.to_string(),
    }
}

/// The text or the parts inside a wrapper object.
fn inner_of(map: &Map<String, Value>) -> Option<&Value> {
    match map.get("type").and_then(Value::as_str) {
        // Outputs of the AI SDK, and text parts.
        Some("text" | "error-text" | "json" | "error-json" | "content") => first_of(map, &["value", "text"]),
        Some("input_text" | "output_text") => map.get("text"),
        Some(_) => None,
        // Parts of Bedrock, or an output in a single wrapper.
        None if map.len() == 1 => first_of(map, &["text", "json", "output", "result"]),
        None => None,
    }
}

/// The type of an image, file or other medium, if the object has its data or a reference to it.
/// JSON from a tool that only has such a type, such as a list of files, is not a medium.
fn medium(map: &Map<String, Value>) -> Option<&str> {
    let Some(kind) = map.get("type").and_then(Value::as_str) else {
        let (key, inner) = map.iter().next().filter(|_| map.len() == 1)?;
        return (is_medium_key(key) && inner.as_object().is_some_and(has_data)).then_some(key);
    };
    let is_blob = kind == "resource" && map.get("resource").is_some_and(|inner| inner.get("blob").is_some());
    (is_blob || is_medium_kind(kind) && has_data(map)).then_some(kind)
}

fn has_data(map: &Map<String, Value>) -> bool {
    map.iter().any(|(key, value)| match (key.as_str(), value) {
        (_, Value::String(text)) if text.starts_with("data:") => true,
        ("data" | "bytes" | "blob" | "image_url" | "file_data" | "file_id" | "fileUri", value) => {
            !value.is_null()
        }
        ("source" | "image" | "audio" | "video" | "file" | "input_audio", Value::Object(_)) => true,
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn media_are_placeholders_and_json_of_tools_stays_json() {
        let base64 = "iVBORw0KGgo".repeat(1000);
        for (said, text) in [
            (
                json!([{"type": "text", "text": "Seen:"}, {"type": "image", "source": {"type": "base64", "data": base64}}]),
                "Seen:\n[image]",
            ),
            (
                json!({"type": "computer_screenshot", "image_url": format!("data:image/png;base64,{base64}")}),
                "[computer_screenshot]",
            ),
            (json!([{"type": "image", "data": base64, "mimeType": "image/png"}]), "[image]"),
            (json!([{"type": "input_image", "file_id": "file_1"}]), "[input_image]"),
            (json!([{"type": "image_url", "image_url": {"url": base64}}]), "[image_url]"),
            (json!({"type": "content", "value": [{"type": "media", "data": base64}]}), "[media]"),
            (json!([{"text": "a"}, {"image": {"format": "png", "source": {"bytes": base64}}}]), "a\n[image]"),
            (json!([{"type": "image", "url": format!("data:image/png;base64,{base64}")}]), "[image]"),
            (json!([{"type": "resource", "resource": {"uri": "x", "blob": base64}}]), "[resource]"),
        ] {
            let read = result_content(&said);
            assert_eq!(read.text, text);
            assert!(json!(read.kept).to_string().len() > 20, "the parts are kept: {text}");
        }
        for said in [
            json!({"type": "file", "name": "a.txt", "size": 3}),
            json!({"type": "image", "url": "https://example.org/a.png"}),
            json!({"type": "document", "source": "wiki"}),
            json!({"source": {"id": 1}}),
            json!({"file": "a.txt"}),
        ] {
            let read = result_content(&said);
            assert_eq!((read.text, read.kept), (said.to_string(), Vec::new()));
        }
    }
}
