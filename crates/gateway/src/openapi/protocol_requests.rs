//! What is read of the requests of other protocols. What cannot be done and what is not known is
//! refused with its place.

use serde_json::{Value, json};

/// A body, by its name in the description.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProtocolBody {
    UiMessage,
    Responses,
    Completions,
    Run,
    Connect,
}

impl ProtocolBody {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::UiMessage => "UiMessageRequest",
            Self::Responses => "ResponseRequest",
            Self::Completions => "CompletionRequest",
            Self::Run => "RunRequest",
            Self::Connect => "ConnectRequest",
        }
    }

    pub(crate) fn schema(self) -> Value {
        let flag = json!({ "type": ["boolean", "null"] });
        match self {
            Self::UiMessage => object(
                "What `useChat` posts. `regenerate-message` tries a turn again that failed. Refused: `messageId` with another trigger, files, system messages unless the agent's \
                 settings take them, and every further field.",
                &["id", "messages"],
                json!({
                    "id": reference("ThreadName"),
                    "messages": messages("parts"),
                    "agent": or_null(reference("AgentName"), "The agent; without it, the one that answered before."),
                    "trigger": { "enum": ["submit-message", "regenerate-message", null] },
                    "messageId": { "type": ["string", "null"] },
                }),
            ),
            Self::Responses => object(
                "How the model samples, its limits and formats go to the agent's workflow. Refused: instructions unless the agent's settings take \
                 them, `tools`, images and files, several inputs at once, and every field that is not known.",
                &["input"],
                json!({
                    "model": or_null(reference("AgentName"), "The agent; without it, the one that answered before."),
                    "input": { "anyOf": [{ "type": "string", "minLength": 1 }, messages("content")] },
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
                    "temperature": number(0, 2),
                    "top_p": number(0, 1),
                    "max_output_tokens": count(),
                    "reasoning": { "type": ["object", "null"], "properties": { "effort": { "type": ["string", "null"] } } },
                    "text": {
                        "type": ["object", "null"],
                        "properties": { "format": format(), "verbosity": { "enum": ["low", "medium", "high", null] } },
                    },
                    "stream": flag,
                    "background": flag,
                    "metadata": { "type": ["object", "null"] },
                }),
            ),
            Self::Completions => object(
                "How the model samples, its limits and formats go to the agent's workflow. Refused: instructions unless the agent's settings take \
                 them, `tools`, `n` other than 1, images, and every field that is not known.",
                &["model", "messages"],
                json!({
                    "model": reference("AgentName"),
                    "messages": messages("content"),
                    "stream": flag,
                    "stream_options": { "type": ["object", "null"], "properties": { "include_usage": flag } },
                    "metadata": {
                        "type": ["object", "null"],
                        "properties": { "thread_id": or_null(reference("ThreadName"), "The thread.") },
                    },
                    "n": { "enum": [1, null] },
                    "temperature": number(0, 2),
                    "top_p": number(0, 1),
                    "presence_penalty": number(-2, 2),
                    "frequency_penalty": number(-2, 2),
                    "max_tokens": count(),
                    "max_completion_tokens": count(),
                    "seed": { "type": ["integer", "null"] },
                    "stop": {
                        "type": ["string", "array", "null"], "minLength": 1, "minItems": 1, "maxItems": 4,
                        "items": { "type": "string", "minLength": 1 },
                    },
                    "reasoning_effort": { "type": ["string", "null"], "minLength": 1 },
                    "response_format": format(),
                }),
            ),
            Self::Run => object(
                "`RunAgentInput`. `forwardedProps` goes to the agent's workflow. Refused unless empty: `state`, `tools`, `context`, \
                 `parentRunId`, `resume`; other parts than text.",
                &["threadId", "runId", "messages"],
                json!({
                    "threadId": reference("ThreadName"),
                    "runId": { "type": "string", "description": "Said back. The same again is the same input." },
                    "messages": messages("content"),
                }),
            ),
            Self::Connect => object(
                "The thread to follow.",
                &["threadId", "runId"],
                json!({ "threadId": reference("ThreadName"), "runId": { "type": "string" } }),
            ),
        }
    }

    pub(crate) fn example(self) -> Value {
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

fn number(from: i32, to: i32) -> Value {
    json!({ "type": ["number", "null"], "minimum": from, "maximum": to })
}

fn count() -> Value {
    json!({ "type": ["integer", "null"], "minimum": 1 })
}

fn format() -> Value {
    json!({
        "type": ["object", "null"], "required": ["type"],
        "properties": { "type": { "enum": ["text", "json_object", "json_schema"] } },
    })
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn or_null(schema: Value, description: &str) -> Value {
    json!({ "description": description, "anyOf": [schema, { "type": "null" }] })
}

/// The last of them is the new input, with its text in the field `content`. Of those before it only instructions are read.
fn messages(content: &str) -> Value {
    let part = json!({
        "type": "object", "required": ["type"],
        "properties": { "type": { "type": "string" }, "text": { "type": "string" } },
    });
    let text = json!({ "anyOf": [{ "type": "string", "minLength": 1 }, { "type": "array", "minItems": 1, "items": part }] });
    let input = json!({
        "type": "object", "required": ["role", content],
        "properties": { "role": { "const": "user" }, content: text },
    });
    json!({
        "type": "array", "minItems": 1, "contains": input, "items": { "type": "object" },
        "description": "The last one is the user's new message; the history is kept here.",
    })
}
