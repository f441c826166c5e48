//! Streams of events: what each event of theirs holds.
//!
//! OpenAPI 3.1 has no word for streams; as readers of it do, the schema is that of one event: its `event`, its `id`, and its `data`, which
//! is JSON of the schema in `contentSchema`.

use serde::Serialize;
use serde_json::{Value, json};
use utoipa::{PartialSchema, ToSchema};

use crate::api::schemas;
use crate::openapi::protocol_schemas;

/// The events of a protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
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
    pub(crate) fn schemas(self) -> Vec<(String, Value)> {
        let mut found = Vec::new();
        match self {
            Self::Native => {
                add::<ChunkEvent>(&mut found);
                add::<CompleteEvent>(&mut found);
                add::<FailedEvent>(&mut found);
                add::<ResetEvent>(&mut found);
                add::<RestartEvent>(&mut found);
            }
            Self::UiMessage => add::<protocol_schemas::UiPart>(&mut found),
            Self::Responses => add::<protocol_schemas::ResponseEvent>(&mut found),
            Self::Completions => {
                add::<protocol_schemas::CompletionChunk>(&mut found);
                add::<protocol_schemas::WrappedError>(&mut found);
            }
            Self::AgUi => add::<protocol_schemas::RunEvent>(&mut found),
        }
        found
    }

    /// The media type object.
    pub(crate) fn media(self) -> Value {
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
    found.extend(crate::openapi::schema::schemas_of::<T>());
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
    let event = |kind: Value, data: Value| json!({ "properties": { "event": kind, "data": data }, "required": ["data"] });
    let kinds = json!({ "enum": ["message", "reset", "restart", "drain"] });
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
            "id": <schemas::CursorSchema as PartialSchema>::schema(),
            "data": { "type": "string" },
            "retry": { "type": "integer", "minimum": 0, "description": "After so many ms to connect again." },
        },
        "allOf": [
            { "if": is("reset"), "then": event(json!({ "const": "reset" }), data(&["ResetEvent"])) },
            { "if": is("restart"), "then": event(json!({ "const": "restart" }), data(&["RestartEvent"])) },
            { "if": is("drain"), "then": event(json!({ "const": "drain" }), empty) },
            {
                "if": { "anyOf": [is("reset"), is("restart"), is("drain")] },
                "else": event(json!({ "const": "message" }), data(&["ChunkEvent", "CompleteEvent", "FailedEvent"])),
            },
        ],
    });
    let turn = "u01f3-0198c4d2e5f57a60b1d3c8a94e27f610";
    let answer = &format!("{turn}-a");
    let one = |text: &str, id: &str, data: Value| json!({ "summary": text, "value": { "id": id, "data": data.to_string() } });
    let chunk = json!({
        "session_id": "hello", "message_id": answer, "chunk_id": 0, "chunk": "Sunny", "chunk_type": "content",
        "is_final": false, "metadata": {}, "role": "assistant", "batch_type": "user_request", "turn_id": turn,
    });
    let mut rest = chunk.clone();
    (rest["chunk"], rest["is_final"], rest["compacted"]) = (json!("Sunny."), json!(true), json!(true));
    let complete = json!({
        "chunk_type": "system", "chunk": "message_complete", "session_id": "hello", "message_id": answer,
        "position": "7524873984012345344", "status": "completed", "role": "assistant",
        "batch_type": "user_request", "turn_id": turn,
    });
    let mut stopped = complete.clone();
    stopped["status"] = json!("stopped");
    let failed = json!({
        "chunk_type": "error", "chunk": "the workflow made no progress within its deadline", "is_final": true, "session_id": "hello",
        "message_id": answer, "metadata": { "code": "deadline", "retryable": true },
        "position": "7524873984012345344", "role": "assistant", "batch_type": "user_request", "turn_id": turn,
    });
    let reset = json!({ "thread_id": "hello", "message_id": answer, "attempt": 1 });
    let (before, id) = ("7524873984012345340", "7524873984012345344");
    let named = |name: &str, mut event: Value| {
        event["value"]["event"] = json!(name);
        event
    };
    let reset = one("the message starts again", &format!("{before}~{answer}.1.0.0"), reset);
    let restart = json!({ "thread_id": "hello", "after": before });
    let restart = one("what the reader has after this position does not exist", before, restart);
    json!({
        "schema": schema,
        "examples": {
            "chunk": one("a chunk", &format!("{before}~{answer}.0.1.5"), chunk),
            "rest": one("what is left of a text, from the store", &format!("{before}~{answer}.0.1.6.f"), rest),
            "complete": one("the message is stored", id, complete),
            "stopped": one("the message is stored as far as it had come", id, stopped),
            "failed": one("the message was given up", id, failed),
            "reset": named("reset", reset),
            "restart": named("restart", restart),
            "drain": {
                "summary": "the gateway stops: connect again, to any",
                "value": { "event": "drain", "data": "{}", "retry": 1_197 },
            },
        },
    })
}

const NATIVE: &str = "\
One event. Without `event` it is a chunk of a message, each once and in order; `message_complete`, which follows the commit; or the \
failure of a message. Every end has a position in the thread, and a client that comes back with the id of an event gets all ends after it, in \
their order. `reset`: the message starts again, and what came of it before does not count. `restart`: what the client has does not exist any \
more; it forgets all that came after the position `after`, and all that is open, and goes on with what follows. `drain`: the gateway stops, and \
the client is to connect again.";

/// A chunk.
#[derive(Serialize, ToSchema)]
struct ChunkEvent {
    /// The thread.
    #[schema(value_type = schemas::ThreadIdSchema)]
    session_id: String,
    #[schema(value_type = schemas::MessageIdSchema)]
    message_id: String,
    /// 0, 1, 2, … within its message.
    chunk_id: u32,
    /// The text.
    chunk: String,
    #[schema(value_type = schemas::ChunkTypeSchema)]
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
    #[schema(value_type = schemas::RoleSchema)]
    role: &'static str,
    #[schema(value_type = schemas::BatchTypeSchema)]
    batch_type: &'static str,
    /// The turn whose answer it is; absent when no turn asked for the message.
    #[schema(value_type = schemas::TurnIdSchema, required = false)]
    turn_id: String,
    /// True: what the store has of a text, a call or a result beyond what was shown, as one chunk. Pieces are not kept.
    #[schema(nullable = false)]
    compacted: Option<bool>,
}

/// A message is stored.
#[derive(Serialize, ToSchema)]
struct CompleteEvent {
    #[schema(value_type = schemas::SystemSchema)]
    chunk_type: &'static str,
    #[schema(value_type = schemas::MessageCompleteSchema)]
    chunk: &'static str,
    #[schema(value_type = schemas::ThreadIdSchema)]
    session_id: String,
    #[schema(value_type = schemas::MessageIdSchema)]
    message_id: String,
    #[schema(value_type = schemas::PositionSchema)]
    position: String,
    #[schema(value_type = schemas::StatusSchema)]
    status: &'static str,
    #[schema(value_type = schemas::RoleSchema)]
    role: &'static str,
    #[schema(value_type = schemas::BatchTypeSchema)]
    batch_type: &'static str,
    /// The turn whose answer it is; absent when no turn asked for the message.
    #[schema(value_type = schemas::TurnIdSchema, required = false)]
    turn_id: String,
}

/// A message was given up.
#[derive(Serialize, ToSchema)]
struct FailedEvent {
    #[schema(value_type = schemas::ErrorSchema)]
    chunk_type: &'static str,
    /// Why, for people.
    chunk: String,
    is_final: bool,
    #[schema(value_type = schemas::ThreadIdSchema)]
    session_id: String,
    #[schema(value_type = schemas::MessageIdSchema)]
    message_id: String,
    metadata: FailedMetadata,
    #[schema(value_type = schemas::PositionSchema)]
    position: String,
    #[schema(value_type = schemas::RoleSchema)]
    role: &'static str,
    #[schema(value_type = schemas::BatchTypeSchema)]
    batch_type: &'static str,
    /// The turn whose answer it is; absent when no turn asked for the message.
    #[schema(value_type = schemas::TurnIdSchema, required = false)]
    turn_id: String,
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
    #[schema(value_type = schemas::ThreadIdSchema)]
    thread_id: String,
    #[schema(value_type = schemas::MessageIdSchema)]
    message_id: String,
    attempt: u32,
}

/// What the client has does not exist any more.
#[derive(Serialize, ToSchema)]
struct RestartEvent {
    #[schema(value_type = schemas::ThreadIdSchema)]
    thread_id: String,
    /// All that ended up to here stays; 0 when nothing does.
    #[schema(value_type = schemas::PositionSchema)]
    after: String,
}
