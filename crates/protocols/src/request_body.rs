//! JSON schemas of the bodies that clients of other protocols post, each with an example, for the
//! API document.
//!
//! The properties come from the tables that the parsers use, so the document describes what is
//! accepted.

use serde_json::{Value, json};

use crate::request::{object_schema, shared_schemas};
use crate::{agui, chat_completions, responses, ui_message};

/// A body, by its protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestBody {
    /// What `useChat` posts.
    UiMessage,
    /// `/v1/responses`.
    Responses,
    /// `/v1/chat/completions`.
    Completions,
    /// `RunAgentInput` of AG-UI.
    Run,
    /// The thread and the run of AG-UI that a client follows.
    Connect,
}

impl RequestBody {
    /// The bodies of all protocols.
    pub const ALL: [Self; 5] =
        [Self::UiMessage, Self::Responses, Self::Completions, Self::Run, Self::Connect];

    /// The name of the body's schema.
    pub fn name(self) -> &'static str {
        match self {
            Self::UiMessage => "UiMessageRequest",
            Self::Responses => "ResponseRequest",
            Self::Completions => "CompletionRequest",
            Self::Run => "RunRequest",
            Self::Connect => "ConnectRequest",
        }
    }

    /// The schema of the body, and the schemas to which it refers, with their names. Ids are in
    /// [`crate::schemas`].
    pub fn schemas(self) -> impl Iterator<Item = (String, Value)> {
        shared_schemas().into_iter().chain([(self.name().to_owned(), self.schema())])
    }

    fn schema(self) -> Value {
        match self {
            Self::UiMessage => object_schema(
                "What `useChat` posts. The trigger `regenerate-message` tries a failed turn again. Files, unknown fields and, \
                 unless the agent's settings allow them, system messages are refused.",
                ui_message::request::FIELDS,
            ),
            Self::Responses => object_schema(
                "Sampling, limits and formats go to the agent's workflow. Images, files, several inputs at once, unknown fields \
                 and, unless the agent's settings allow them, instructions are refused.",
                responses::request::FIELDS,
            ),
            Self::Completions => object_schema(
                "Sampling, limits and formats go to the agent's workflow. Images, unknown fields and, unless the agent's settings \
                 allow them, system messages are refused.",
                chat_completions::request::FIELDS,
            ),
            Self::Run => object_schema(
                "`RunAgentInput`. `forwardedProps` goes to the agent's workflow. Parts other than text and unknown fields are refused.",
                agui::request::FIELDS,
            ),
            Self::Connect => object_schema(
                "The thread to follow. Further fields are ignored.",
                agui::request::CONNECT_FIELDS,
            ),
        }
    }

    /// A small body of this protocol.
    pub fn example(self) -> Value {
        let text = "How is the weather?";
        match self {
            Self::UiMessage => json!({
                "id": "hello", "trigger": "submit-message",
                "messages": [{ "id": "m1", "role": "user", "parts": [{ "type": "text", "text": text }] }],
            }),
            Self::Responses => json!({ "model": "ann", "input": text, "conversation": "hello" }),
            Self::Completions => json!({
                "model": "ann", "messages": [{ "role": "user", "content": text }], "metadata": { "thread_id": "hello" },
            }),
            Self::Run => json!({
                "threadId": "hello", "runId": "run-1", "messages": [{ "id": "m1", "role": "user", "content": text }],
                "state": {}, "tools": [], "context": [], "forwardedProps": {},
            }),
            Self::Connect => json!({ "threadId": "hello", "runId": "run-1" }),
        }
    }
}
