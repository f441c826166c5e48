//! Streams of events: what each event of theirs holds.
//!
//! OpenAPI 3.1 has no word for streams; as readers of it do, the schema is that of one event: its `event`, its `id`, and its `data`, which
//! is JSON of the schema in `contentSchema`.

use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::spoken;
use crate::forms;

/// The events of a protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    /// Ours.
    Native,
    /// The UI message stream of the AI SDK.
    UiMessage,
    /// Of OpenAI's Responses.
    Responses,
    /// Of OpenAI's chat completions.
    Completions,
    AgUi,
}

impl Stream {
    pub(super) fn schemas(self) -> Vec<(String, Value)> {
        let mut found = Vec::new();
        match self {
            Self::Native => {
                add::<ChunkEvent>(&mut found);
                add::<CompleteEvent>(&mut found);
                add::<FailedEvent>(&mut found);
                add::<ResetEvent>(&mut found);
            }
            Self::UiMessage => add::<spoken::UiPart>(&mut found),
            Self::Responses => add::<spoken::ResponseEvent>(&mut found),
            Self::Completions => {
                add::<spoken::CompletionChunk>(&mut found);
                add::<spoken::WrappedError>(&mut found);
            }
            Self::AgUi => add::<spoken::RunEvent>(&mut found),
        }
        found
    }

    /// The media type object.
    pub(super) fn media(self) -> Value {
        match self {
            Self::Native => native(),
            Self::UiMessage => media(
                json!({ "anyOf": [data(&["UiPart"]), { "const": "[DONE]" }] }),
                json!({ "type": "text-delta", "id": "p0", "delta": "Sunny" }),
            ),
            Self::Responses => media(
                data(&["ResponseEvent"]),
                json!({
                    "type": "response.output_text.delta", "sequence_number": 4, "item_id": "msg_1",
                    "output_index": 0, "content_index": 0, "delta": "Sunny", "logprobs": [],
                }),
            ),
            Self::Completions => media(
                json!({ "anyOf": [data(&["CompletionChunk", "WrappedError"]), { "const": "[DONE]" }] }),
                json!({
                    "id": "chatcmpl-u01f3-0198c4d2-a", "object": "chat.completion.chunk", "created": 1_795_348_184,
                    "model": "ann",
                    "choices": [{ "index": 0, "delta": { "content": "Sunny" }, "logprobs": null, "finish_reason": null }],
                }),
            ),
            Self::AgUi => media(
                data(&["RunEvent"]),
                json!({ "type": "TEXT_MESSAGE_CONTENT", "messageId": "u01f3-0198c4d2-a-s0", "delta": "Sunny" }),
            ),
        }
    }
}

fn add<T: ToSchema>(found: &mut Vec<(String, Value)>) {
    found.extend(super::schemas_of::<T>());
}

/// Text that is JSON of one of these schemas.
fn data(names: &[&str]) -> Value {
    let one = |name: &&str| json!({ "$ref": format!("#/components/schemas/{name}") });
    let schema = match names {
        [name] => one(name),
        names => json!({ "anyOf": names.iter().map(one).collect::<Vec<_>>() }),
    };
    json!({ "type": "string", "contentMediaType": "application/json", "contentSchema": schema })
}

fn media(data: Value, example: Value) -> Value {
    let properties = json!({ "event": { "type": "string" }, "id": { "type": "string" }, "data": data });
    json!({
        "schema": { "type": "object", "required": ["data"], "properties": properties },
        "example": { "data": example.to_string() },
    })
}

fn native() -> Value {
    let cursor = "How far the reader has read: to be given back as Last-Event-ID.";
    let event = |kind: Value, data: Value| json!({ "properties": { "event": kind, "data": data }, "required": ["data"] });
    let kinds = json!({ "enum": ["message", "reset", "drain"] });
    let is = |name: &str| json!({ "properties": { "event": { "const": name } }, "required": ["event"] });
    let empty = json!({
        "type": "string", "contentMediaType": "application/json",
        "contentSchema": { "type": "object", "maxProperties": 0 },
    });
    let schema = json!({
        "type": "object",
        "description": NATIVE,
        "required": ["data"],
        "properties": {
            "event": kinds,
            "id": { "type": "string", "description": cursor },
            "data": { "type": "string" },
            "retry": { "type": "integer", "minimum": 0, "description": "After so many ms to connect again." },
        },
        "allOf": [
            { "if": is("reset"), "then": event(json!({ "const": "reset" }), data(&["ResetEvent"])) },
            { "if": is("drain"), "then": event(json!({ "const": "drain" }), empty) },
            {
                "if": { "anyOf": [is("reset"), is("drain")] },
                "else": event(json!({ "const": "message" }), data(&["ChunkEvent", "CompleteEvent", "FailedEvent"])),
            },
        ],
    });
    let answer = "u01f3-0198c4d2e5f57a60b1d3c8a94e27f610-a";
    let one = |text: &str, id: &str, data: Value| json!({ "summary": text, "value": { "id": id, "data": data.to_string() } });
    let chunk = json!({
        "session_id": "hello", "message_id": answer, "chunk_id": 0, "chunk": "Sunny", "chunk_type": "content",
        "is_final": false, "metadata": {},
    });
    let complete = json!({
        "chunk_type": "system", "chunk": "message_complete", "session_id": "hello", "message_id": answer,
        "position": "7524873984012345344",
    });
    let failed = json!({
        "chunk_type": "error", "chunk": "nobody answered for 120 s", "is_final": true, "session_id": "hello",
        "message_id": answer, "metadata": { "code": "deadline", "retryable": true },
    });
    let reset = json!({ "session_id": "hello", "message_id": answer, "attempt": 1 });
    let id = "7524873984012345340";
    let mut again = one("the message starts again", id, reset);
    again["value"]["event"] = json!("reset");
    json!({
        "schema": schema,
        "examples": {
            "chunk": one("a chunk", &format!("{id}~{answer}.0.1.5"), chunk),
            "complete": one("the message is stored", "7524873984012345344", complete),
            "failed": one("the message was given up", &format!("{id}~{answer}"), failed),
            "reset": again,
            "drain": {
                "summary": "the gateway stops: connect again, to any",
                "value": { "event": "drain", "data": "{}", "retry": 1_197 },
            },
        },
    })
}

const NATIVE: &str = "\
One event. Without `event` it is a chunk of a message, each once and in order; `message_complete`, which follows the commit; or the \
failure of a message. `reset`: the message starts again with a higher attempt, and what came of it before does not count. `drain`: the gateway \
stops, and the client is to connect again.";

/// A chunk.
#[derive(Serialize, ToSchema)]
struct ChunkEvent {
    /// The thread.
    #[schema(value_type = forms::ThreadName)]
    session_id: String,
    #[schema(value_type = forms::MessageName)]
    message_id: String,
    /// 0, 1, 2, … within its message.
    chunk_id: u32,
    /// The text.
    chunk: String,
    #[schema(value_type = forms::ChunkTypeText)]
    chunk_type: &'static str,
    /// The last of its message.
    is_final: bool,
    #[schema(value_type = Object)]
    metadata: Value,
    /// When it was made, as its publisher said.
    #[schema(nullable = false)]
    timestamp: Option<String>,
    #[schema(nullable = false)]
    correlation_id: Option<String>,
    /// Of the message; absent for 0.
    #[schema(nullable = false, minimum = 1)]
    attempt: Option<u32>,
    /// Absent for the assistant.
    #[schema(value_type = forms::RoleText, required = false)]
    role: &'static str,
    /// True: what the store has of the message beyond what was shown, as one chunk.
    #[schema(nullable = false)]
    compacted: Option<bool>,
}

/// A message is stored.
#[derive(Serialize, ToSchema)]
struct CompleteEvent {
    #[schema(value_type = forms::SystemText)]
    chunk_type: &'static str,
    #[schema(value_type = forms::MessageCompleteText)]
    chunk: &'static str,
    #[schema(value_type = forms::ThreadName)]
    session_id: String,
    #[schema(value_type = forms::MessageName)]
    message_id: String,
    #[schema(value_type = forms::PositionText)]
    position: String,
}

/// A message was given up.
#[derive(Serialize, ToSchema)]
struct FailedEvent {
    #[schema(value_type = forms::ErrorText)]
    chunk_type: &'static str,
    /// Why, for people.
    chunk: String,
    is_final: bool,
    #[schema(value_type = forms::ThreadName)]
    session_id: String,
    #[schema(value_type = forms::MessageName)]
    message_id: String,
    metadata: FailedMetadata,
}

/// Why a message was given up.
#[derive(Serialize, ToSchema)]
struct FailedMetadata {
    /// For programs.
    code: String,
    /// Whether the same again may succeed.
    retryable: bool,
    /// Chunks that never came.
    #[schema(required = false)]
    missing: Vec<MissingChunks>,
}

/// Ids of chunks, both included.
#[derive(Serialize, ToSchema)]
struct MissingChunks {
    first: u32,
    last: u32,
}

/// A message starts again.
#[derive(Serialize, ToSchema)]
struct ResetEvent {
    #[schema(value_type = forms::ThreadName)]
    session_id: String,
    #[schema(value_type = forms::MessageName)]
    message_id: String,
    attempt: u32,
}
