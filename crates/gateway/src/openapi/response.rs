//! Answers: good ones, and refusals in the form of each protocol.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::StatusCode;
use protocols::chat_completions::ApiError;
use protocols::request::{ErrorBody, RequestRejection};
use protocols::{agui, responses, ui_message};
use serde_json::{Map, Value, json};

use crate::error::{ErrorCode, ProblemBody};
use crate::openapi::events::Stream;
use crate::openapi::schema::schemas_of;

const JSON: &str = "application/json";
const PROBLEM: &str = "application/problem+json";
const STREAM: &str = "text/event-stream";

/// A good answer.
pub(crate) struct ResponseSpec {
    pub(crate) status: u16,
    text: String,
    pub(crate) headers: Map<String, Value>,
    content: Map<String, Value>,
}

impl ResponseSpec {
    pub(crate) fn json(status: u16, text: &str, schema: Value, example: Value) -> Self {
        Self::of(status, text, JSON, json!({ "schema": schema, "example": example }))
    }

    /// Text of whatever kind.
    pub(crate) fn text(status: u16, text: &str, kind: &str) -> Self {
        Self::of(status, text, kind, json!({ "schema": { "type": "string" } }))
    }

    /// No content.
    pub(crate) fn nothing(text: &str) -> Self {
        Self { status: 204, text: text.to_owned(), headers: Map::new(), content: Map::new() }
    }

    /// A stream of events and nothing else.
    pub(crate) fn stream(text: &str, events: &Stream) -> Self {
        let mut answer =
            Self { status: 200, text: text.to_owned(), headers: Map::new(), content: Map::new() };
        answer.add_stream(events);
        answer
    }

    fn of(status: u16, text: &str, kind: &str, media: Value) -> Self {
        let content = Map::from_iter([(kind.to_owned(), media)]);
        Self { status, text: text.to_owned(), headers: Map::new(), content }
    }

    /// Or in another form.
    pub(crate) fn or(mut self, kind: &str, schema: Value) -> Self {
        self.content.insert(kind.to_owned(), json!({ "schema": schema }));
        self
    }

    pub(crate) fn add_stream(&mut self, events: &Stream) {
        self.content.insert(STREAM.to_owned(), events.media());
    }

    pub(crate) fn to_json(&self) -> Value {
        let mut object = Map::from_iter([("description".to_owned(), json!(self.text))]);
        if !self.headers.is_empty() {
            object.insert("headers".to_owned(), json!(self.headers));
        }
        if !self.content.is_empty() {
            object.insert("content".to_owned(), json!(self.content));
        }
        Value::Object(object)
    }
}

/// The form of refusals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Errors {
    /// RFC 9457.
    Problem,
    /// The text alone, as the AI SDK shows it.
    Text,
    /// `{"error": …}`, as OpenAI's libraries read it.
    Wrapped,
    /// The fields of AG-UI's `RUN_ERROR`.
    RunError,
}

impl Errors {
    /// How the authorization layer writes them; `None`: as problems.
    pub(crate) fn body(self) -> Option<fn(&RequestRejection) -> ErrorBody> {
        match self {
            Self::Problem => None,
            Self::Text => Some(ui_message::error_body),
            Self::Wrapped => Some(responses::error_body),
            Self::RunError => Some(agui::error_body),
        }
    }

    /// What they refer to.
    pub(crate) fn schemas(self) -> Vec<(String, Value)> {
        let of_form = match self {
            Self::Problem | Self::Text => Vec::new(),
            Self::Wrapped => schemas_of::<ApiError<'_>>(),
            Self::RunError => schemas_of::<agui::RunRefusal<'_>>(),
        };
        schemas_of::<ProblemBody<'_>>().into_iter().chain(of_form).collect()
    }

    /// The refusals of an operation with these codes.
    pub(crate) fn answers(self, codes: &BTreeSet<ErrorCode>) -> Vec<(u16, Value)> {
        let mut by_status: BTreeMap<u16, Vec<ErrorCode>> = BTreeMap::new();
        for &code in codes {
            by_status.entry(code.status().as_u16()).or_default().push(code);
        }
        by_status.into_iter().map(|(status, codes)| (status, self.answer(&codes))).collect()
    }

    /// The refusals of one status.
    fn answer(self, codes: &[ErrorCode]) -> Value {
        let lines: Vec<_> =
            codes.iter().map(|code| format!("* `{}`: {}", code.name(), code.meaning())).collect();
        let names: Vec<_> = codes.iter().map(|code| code.name()).collect();
        let examples: Map<String, Value> =
            codes.iter().map(|code| (code.name().to_owned(), json!({ "value": problem(*code) }))).collect();
        let schema = json!({
            "allOf": [{ "$ref": "#/components/schemas/Problem" }],
            "properties": { "code": { "enum": names } },
        });
        let mut content =
            Map::from_iter([(PROBLEM.to_owned(), json!({ "schema": schema, "examples": examples }))]);
        content.extend(self.protocol_content(codes));
        let mut object = json!({ "description": lines.join("\n"), "content": content });
        if codes.iter().any(|code| code.retry_after_s().is_some()) {
            object["headers"] = retry_after(codes.iter().all(|code| code.retry_after_s().is_some()));
        }
        if codes.iter().any(|code| code.status() == StatusCode::UNAUTHORIZED) {
            let schema = json!({ "type": "string" });
            let how =
                json!({ "description": "How to show a credential.", "required": true, "schema": schema });
            object["headers"] = json!({ "WWW-Authenticate": how });
        }
        object
    }

    /// The form of a protocol. What is refused before its own handler is reached has the form of a problem there, too.
    fn protocol_content(self, codes: &[ErrorCode]) -> Option<(String, Value)> {
        let (kind, schema, wrap): (&str, &str, fn(ErrorCode) -> Value) = match self {
            Self::Problem => return None,
            Self::Text => {
                return Some(("text/plain".to_owned(), json!({ "schema": { "type": "string" } })));
            }
            Self::Wrapped => (JSON, "WrappedError", |code| {
                let kind =
                    if code.status().is_server_error() { "server_error" } else { "invalid_request_error" };
                json!({ "error": { "message": code.meaning(), "type": kind, "param": null, "code": code.name() } })
            }),
            Self::RunError => {
                (JSON, "RunRefusal", |code| json!({ "message": code.meaning(), "code": code.name() }))
            }
        };
        let mut media = json!({ "schema": { "$ref": format!("#/components/schemas/{schema}") } });
        let examples: Map<String, Value> =
            codes.iter().map(|code| (code.name().to_owned(), json!({ "value": wrap(*code) }))).collect();
        if !examples.is_empty() {
            media["examples"] = Value::Object(examples);
        }
        Some((kind.to_owned(), media))
    }
}

fn problem(code: ErrorCode) -> Value {
    json!({
        "type": "about:blank",
        "title": code.status().canonical_reason(),
        "status": code.status().as_u16(),
        "code": code.name(),
        "retryable": code.retry_after_s().is_some(),
        "detail": code.meaning(),
    })
}

fn retry_after(is_required: bool) -> Value {
    let text = "Seconds after which the same request may succeed.";
    let schema = json!({ "type": "integer", "minimum": 0 });
    json!({ "Retry-After": { "description": text, "required": is_required, "schema": schema } })
}
