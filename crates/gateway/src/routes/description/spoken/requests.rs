//! What is read of the requests of other protocols. Further fields may be there: those that say how a model samples are not read, and
//! what cannot be done is refused with its place.

use serde_json::{Value, json};

/// A body, by its name in the description.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Request {
    UiMessage,
    Responses,
    Completions,
    Run,
    Connect,
}

impl Request {
    pub(in super::super) fn name(self) -> &'static str {
        match self {
            Self::UiMessage => "UiMessageRequest",
            Self::Responses => "ResponseRequest",
            Self::Completions => "CompletionRequest",
            Self::Run => "RunRequest",
            Self::Connect => "ConnectRequest",
        }
    }

    pub(in super::super) fn schema(self) -> Value {
        let flag = json!({ "type": ["boolean", "null"] });
        match self {
            Self::UiMessage => object(
                "What `useChat` posts. Refused: `trigger: regenerate-message`, `messageId`, files.",
                &["id", "messages"],
                json!({
                    "id": reference("ThreadName"),
                    "messages": messages("parts", false),
                    "trigger": { "enum": ["submit-message", null] },
                    "messageId": { "type": "null" },
                }),
            ),
            Self::Responses => object(
                "Refused: `tools`, `prompt`, other formats of `text`, images and files, several inputs at once.",
                &["input"],
                json!({
                    "model": or_null(reference("AgentName"), "The agent; without it, whoever answered before."),
                    "input": { "anyOf": [{ "type": "string", "minLength": 1 }, messages("content", true)] },
                    "conversation": {
                        "description": "The thread. Without one, and without `previous_response_id`, it is a new one.",
                        "anyOf": [
                            reference("ThreadName"),
                            { "type": "object", "required": ["id"], "properties": { "id": reference("ThreadName") } },
                            { "type": "null" },
                        ],
                    },
                    "previous_response_id": {
                        "description": "The last response of its thread; not together with `conversation`.",
                        "type": ["string", "null"],
                    },
                    "instructions": { "type": ["string", "null"] },
                    "stream": flag,
                    "background": flag,
                    "metadata": { "type": ["object", "null"] },
                }),
            ),
            Self::Completions => object(
                "Refused: `tools`, `functions`, `n` other than 1, `audio`, `logprobs`, other formats than text, images.",
                &["model", "messages"],
                json!({
                    "model": reference("AgentName"),
                    "messages": messages("content", true),
                    "stream": flag,
                    "stream_options": { "type": ["object", "null"], "properties": { "include_usage": flag } },
                    "metadata": {
                        "type": ["object", "null"],
                        "properties": { "thread_id": or_null(reference("ThreadName"), "The thread.") },
                    },
                    "n": { "enum": [1, null] },
                }),
            ),
            Self::Run => object(
                "`RunAgentInput`. Not read: `state`, `tools`, `context`. Refused: `resume`, other parts than text.",
                &["threadId", "runId", "messages"],
                json!({
                    "threadId": reference("ThreadName"),
                    "runId": { "type": "string", "description": "Said back. The same again is the same input." },
                    "messages": messages("content", false),
                }),
            ),
            Self::Connect => object(
                "The thread to follow.",
                &["threadId", "runId"],
                json!({ "threadId": reference("ThreadName"), "runId": { "type": "string" } }),
            ),
        }
    }

    pub(in super::super) fn example(self) -> Value {
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

fn object(description: &str, required: &[&str], properties: Value) -> Value {
    json!({ "type": "object", "description": description, "required": required, "properties": properties })
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn or_null(schema: Value, description: &str) -> Value {
    json!({ "description": description, "anyOf": [schema, { "type": "null" }] })
}

/// The last of them is the new input, with its text in the field `content`. Of those before it, instructions are read by some protocols.
fn messages(content: &str, reads_all: bool) -> Value {
    let part = json!({
        "type": "object", "required": ["type"],
        "properties": { "type": { "type": "string" }, "text": { "type": "string" } },
    });
    let text = json!({ "anyOf": [{ "type": "string", "minLength": 1 }, { "type": "array", "minItems": 1, "items": part }] });
    let input = json!({
        "type": "object", "required": ["role", content],
        "properties": { "role": { "const": "user" }, content: text },
    });
    let mut messages = json!({
        "type": "array", "minItems": 1, "contains": input,
        "description": "The last one is the user's new message; the history is kept here.",
    });
    if reads_all {
        messages["items"] = json!({ "type": "object" });
    }
    messages
}
