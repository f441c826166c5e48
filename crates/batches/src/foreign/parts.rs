//! Parts of a message's content, as providers, frameworks and exports write them.
//!
//! [`parts_of`] reads texts, reasoning, calls, results and media of OpenAI (chat, Responses,
//! Assistants), Anthropic, Google, Bedrock, the AI SDK, LangChain and ChatGPT. Anything else
//! becomes [`Part::Unknown`] and is never dropped.

use serde_json::{Map, Value, json};

use super::fields::{first_of, text_at};
use super::media::{is_medium_key, is_medium_kind};
use super::results::{ResultContent, result_content};

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Part {
    Text(String),
    Reasoning(String),
    Call {
        id: String,
        name: String,
        arguments: String,
    },
    Result(PartResult),
    /// An image, a file or a source, as a placeholder such as `[image_url]`.
    Medium(String),
    /// A part without content to keep.
    Mark,
    Unknown(UnknownPart),
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PartResult {
    /// Id of the call; empty if the result does not name it.
    pub(super) id: String,
    pub(super) name: Option<String>,
    pub(super) content: ResultContent,
    pub(super) is_error: bool,
}

/// A part of an unknown type.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct UnknownPart {
    pub(super) kind: String,
    /// The field that seems to hold its text, and that text.
    pub(super) text: Option<(&'static str, String)>,
}

/// Fields that hold texts, in parts of all types.
const TEXT_FIELDS: [&str; 12] = [
    "text",
    "value",
    "content",
    "body",
    "output_text",
    "refusal",
    "markdown",
    "transcript",
    "output_str",
    "result",
    "message",
    "resource",
];
pub(super) const CALL_IDS: [&str; 6] =
    ["call_id", "tool_call_id", "toolCallId", "tool_use_id", "toolUseId", "id"];
pub(super) const NAMES: [&str; 4] = ["name", "toolName", "tool_name", "tool"];
pub(super) const ARGUMENTS: [&str; 7] =
    ["input", "arguments", "args", "parameters", "action", "actions", "queries"];
pub(super) const RESULTS: [&str; 8] =
    ["content", "output", "result", "response", "outputs", "results", "errorText", "value"];
const TEXTS: [&str; 11] = [
    "text",
    "input_text",
    "output_text",
    "summary_text",
    "refusal",
    "markdown",
    "audio_transcription",
    "transcript",
    "execution_output",
    "citable_code_output",
    "resource",
];
const CALLS: [&str; 10] = [
    "tool_use",
    "server_tool_use",
    "mcp_tool_use",
    "toolUse",
    "tool_call",
    "tool-call",
    "function",
    "function_call",
    "functionCall",
    "custom_tool_call",
];
const RESULT_KINDS: [&str; 8] = [
    "tool-result",
    "toolResult",
    "tool-error",
    "function_call_output",
    "functionResponse",
    "function_response",
    "custom_tool_call_output",
    "tool_response",
];
const REASONING: [&str; 9] = [
    "thinking",
    "redacted_thinking",
    "reasoning",
    "redacted-reasoning",
    "reasoning_text",
    "reasoning_content",
    "reasoningContent",
    "reasoning_recap",
    "thoughts",
];
const MARKS: [&str; 9] = [
    "step-start",
    "step-finish",
    "start-step",
    "finish-step",
    "token_budget",
    "flag",
    "cachePoint",
    "cache_point",
    "item_reference",
];
/// Keys that determine the type in parts without one, besides calls, results, reasoning and media.
const OTHER_KEYS: [&str; 4] = ["executableCode", "codeExecutionResult", "tool_result", "resource"];

/// The content of a part. A call that includes its result becomes two parts.
pub(super) fn parts_of(part: &Value) -> Vec<Part> {
    let map = match part {
        Value::String(text) => return vec![Part::Text(text.clone())],
        Value::Object(map) => map,
        Value::Null => return vec![Part::Mark],
        Value::Array(_) => return vec![unknown("a list", &Map::new())],
        Value::Bool(_) | Value::Number(_) => return vec![unknown("no object", &Map::new())],
    };
    match text_at(map, &["type", "content_type", "kind"]) {
        Some(kind) => of_kind(&kind, map),
        None => without_kind(map),
    }
}

/// Reads a part without a type. In the formats of Google and Bedrock, the key determines the type.
fn without_kind(map: &Map<String, Value>) -> Vec<Part> {
    if map.get("thought") == Some(&Value::Bool(true)) {
        return vec![Part::Reasoning(text_in(map, &["text"]).unwrap_or_default())];
    }
    let mut parts: Vec<Part> = text_in(map, &["text", "value"]).map(Part::Text).into_iter().collect();
    for (key, value) in map {
        if let Some(inner) = value.as_object().filter(|_| is_kind_key(key)) {
            parts.extend(of_kind(key, inner));
        }
    }
    match parts.is_empty() {
        false => parts,
        true if map.is_empty() => vec![Part::Mark],
        true => vec![unknown("no type", map)],
    }
}

/// True if a key determines the type. Only whole names count: `datasource` is not a source.
fn is_kind_key(key: &str) -> bool {
    let lists: [&[&str]; 5] = [&CALLS, &RESULT_KINDS, &REASONING, &MARKS, &OTHER_KEYS];
    is_medium_key(key) || lists.iter().any(|list| list.contains(&key))
}

fn of_kind(kind: &str, map: &Map<String, Value>) -> Vec<Part> {
    if let Some(invocation) = map.get("toolInvocation").and_then(Value::as_object) {
        return invocation_parts(invocation);
    }
    if TEXTS.contains(&kind) {
        return vec![match text_in(map, &TEXT_FIELDS) {
            Some(text) => Part::Text(text),
            None if kind == "resource" => Part::Medium("[resource]".to_owned()),
            None => unknown(kind, map),
        }];
    }
    if REASONING.contains(&kind) {
        return vec![Part::Reasoning(reasoning(map))];
    }
    if CALLS.contains(&kind) {
        return vec![call(kind, map)];
    }
    if RESULT_KINDS.contains(&kind) || kind.ends_with("tool_result") || kind.ends_with("_call_output") {
        return vec![Part::Result(result(map))];
    }
    let is_sdk_tool = kind == "dynamic-tool" || kind.starts_with("tool-");
    if (is_sdk_tool && map.contains_key("toolCallId"))
        || kind.ends_with("_call")
        || kind.ends_with(":code_interpreter")
    {
        let name = kind.strip_prefix("tool-").or_else(|| kind.rsplit(':').next()).unwrap_or(kind);
        return call_with_result(name, map);
    }
    if kind == "executableCode" {
        return vec![call("code_execution", map)];
    }
    if kind == "codeExecutionResult" {
        return vec![Part::Result(result(map))];
    }
    if kind == "tether_browsing_display" {
        return vec![text_in(map, &["result", "summary"]).map_or(Part::Mark, Part::Text)];
    }
    if kind == "system_error" {
        let said = [text_at(map, &["name"]), text_at(map, &["text"])];
        return vec![Part::Text(said.into_iter().flatten().collect::<Vec<_>>().join(": "))];
    }
    if MARKS.contains(&kind) {
        return vec![Part::Mark];
    }
    if is_medium_kind(kind) {
        return vec![Part::Medium(format!("[{kind}]"))];
    }
    vec![unknown(kind, map)]
}

fn unknown(kind: &str, map: &Map<String, Value>) -> Part {
    let text = TEXT_FIELDS.into_iter().find_map(|key| Some((key, text_in(map, &[key])?)));
    Part::Unknown(UnknownPart { kind: kind.chars().take(80).collect(), text })
}

/// The text of the first of these keys that has one: a text, an object with its text in `value` or
/// `text`, or a list of parts.
fn text_in(map: &Map<String, Value>, keys: &[&str]) -> Option<String> {
    keys.iter().find_map(|key| match map.get(*key)? {
        Value::String(text) => Some(text.clone()),
        Value::Object(inner) => text_in(inner, &["value", "text"]),
        Value::Array(items) => {
            let texts = items.iter().map(|item| match item {
                Value::String(text) => Some(text.clone()),
                Value::Object(inner) => text_in(inner, &["text", "value"]),
                _ => None,
            });
            texts.collect::<Option<Vec<_>>>().filter(|texts| !texts.is_empty()).map(|texts| texts.join("\n"))
        }
        _ => None,
    })
}

/// Fields of a reasoning part that may hold its text.
pub(super) const REASONING_TEXTS: [&str; 8] =
    ["thinking", "reasoning", "text", "reasoningText", "thoughts", "content", "summary", "summaries"];

fn reasoning(map: &Map<String, Value>) -> String {
    if let Some(thoughts) = map.get("thoughts").and_then(Value::as_array) {
        let thought = |thought: &Value| {
            let said =
                thought.as_object().map(|map| [text_at(map, &["summary"]), text_at(map, &["content"])]);
            said.map(|said| said.into_iter().flatten().collect::<Vec<_>>().join("\n"))
        };
        return thoughts.iter().filter_map(thought).collect::<Vec<_>>().join("\n\n");
    }
    REASONING_TEXTS
        .iter()
        .find_map(|key| text_in(map, &[key]).filter(|text| !text.is_empty()))
        .unwrap_or_default()
}

fn call(kind: &str, map: &Map<String, Value>) -> Part {
    // OpenAI's format nests name and arguments in an object.
    let inner = map.get("function").and_then(Value::as_object).unwrap_or(map);
    let code = || {
        let language = first_of(inner, &["language", "lang"]);
        Some(json!({"language": language, "code": inner.get("code")?}).to_string())
    };
    let said = first_of(inner, &ARGUMENTS).map(|said| arguments(Some(said)));
    Part::Call {
        id: text_at(map, &CALL_IDS).unwrap_or_default(),
        name: text_at(inner, &NAMES).unwrap_or_else(|| kind.to_owned()),
        arguments: said.or_else(code).unwrap_or_default(),
    }
}

/// A call of the AI SDK, with its result if present.
pub(super) fn invocation_parts(invocation: &Map<String, Value>) -> Vec<Part> {
    call_with_result("tool", invocation)
}

fn call_with_result(name: &str, map: &Map<String, Value>) -> Vec<Part> {
    let call = call(name, map);
    let has_result =
        first_of(map, &["output", "outputs", "result", "results", "errorText", "error"]).is_some();
    if !has_result {
        return vec![call];
    }
    let mut result = result(map);
    if name == "image_generation_call" && !result.is_error {
        // The result is the image itself.
        result.content = ResultContent { text: "[image]".to_owned(), kept: vec![Value::Object(map.clone())] };
    }
    vec![call, Part::Result(result)]
}

/// Reads a part that is a result.
pub(super) fn result(map: &Map<String, Value>) -> PartResult {
    let has_error = ["errorText", "error"]
        .iter()
        .any(|key| map.get(*key).is_some_and(|error| !error.is_null() && *error != Value::Bool(false)));
    let is_marked = |key: &str| map.get(key) == Some(&Value::Bool(true));
    let said = first_of(map, &RESULTS).or_else(|| first_of(map, &["error"]));
    let is_output_error =
        said.and_then(|said| said.get("type")?.as_str()).is_some_and(|kind| kind.starts_with("error"));
    PartResult {
        id: text_at(map, &CALL_IDS).unwrap_or_default(),
        name: text_at(map, &NAMES),
        content: said.map(result_content).unwrap_or_default(),
        is_error: has_error || is_output_error || is_marked("is_error") || is_marked("isError"),
    }
}

/// Arguments as text: a string unchanged, an object as JSON.
pub(super) fn arguments(said: Option<&Value>) -> String {
    match said {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}
