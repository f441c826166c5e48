//! Responses in the document: successes, and refusals in the form of each protocol.

use http_server::error::ProblemBody;
use protocols::chat_completions::ApiError;
use protocols::{ErrorForm, agui};
use serde_json::{Map, Value, json};

use crate::openapi::events::Stream;
use crate::openapi::schema::schemas_of;

pub(crate) const JSON: &str = "application/json";
pub(crate) const PROBLEM: &str = "application/problem+json";
const STREAM: &str = "text/event-stream";

/// A success response.
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

    /// Text of any media type.
    pub(crate) fn text(status: u16, text: &str, kind: &str) -> Self {
        Self::of(status, text, kind, json!({ "schema": { "type": "string" } }))
    }

    /// A response without content.
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

    /// Adds another form of the response.
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

/// The schemas that refusals of this form refer to.
pub(crate) fn error_schemas(form: ErrorForm) -> Vec<(String, Value)> {
    let of_form = match form {
        ErrorForm::Problem | ErrorForm::Text => Vec::new(),
        ErrorForm::Wrapped => schemas_of::<ApiError<'_>>(),
        ErrorForm::RunError => schemas_of::<agui::RunRefusal<'_>>(),
    };
    schemas_of::<ProblemBody<'_>>().into_iter().chain(of_form).collect()
}
