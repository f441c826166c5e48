//! Streams of events: the schemas of their events.
//!
//! OpenAPI 3.1 cannot describe streams. As tools expect, the schema is that of one event: its
//! `event`, its `id`, and its `data`, which is JSON with the schema in `contentSchema`.

use model::WaitReason;
use protocols::{agui, chat_completions, native, responses, ui_message};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::openapi::schemas;

/// The events of a protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    /// The native events.
    Native,
    /// The native events of one answer.
    NativeAnswer,
    /// The UI message stream of the AI SDK.
    UiMessage,
    /// The stream of OpenAI's Responses.
    Responses,
    /// The stream of OpenAI's chat completions.
    Completions,
    AgUi,
}

impl Stream {
    pub(crate) fn schemas(self) -> Vec<(String, Value)> {
        let mut found = Vec::new();
        match self {
            Self::Native | Self::NativeAnswer => {
                add::<native::ChunkEvent<'_>>(&mut found);
                add::<native::CompleteEvent<'_>>(&mut found);
                add::<native::FailedEvent<'_>>(&mut found);
                add::<native::InputEvent<'_>>(&mut found);
                add::<native::InputWithdrawnEvent<'_>>(&mut found);
                add::<native::ReadyEvent<'_>>(&mut found);
                add::<native::ResetEvent<'_>>(&mut found);
                add::<native::RestartEvent<'_>>(&mut found);
                add::<native::WaitingEvent<'_>>(&mut found);
                add::<native::LeftOutEvent<'_>>(&mut found);
                add::<native::RememberedEvent<'_>>(&mut found);
                add::<native::AuthExpiredEvent<'_>>(&mut found);
                add::<schemas::CursorSchema>(&mut found);
            }
            Self::UiMessage => add::<ui_message::UiChunk<'_>>(&mut found),
            Self::Responses => add::<responses::ResponseEvent<'_>>(&mut found),
            Self::Completions => {
                add::<chat_completions::Chunk<'_>>(&mut found);
                add::<chat_completions::ApiError<'_>>(&mut found);
            }
            Self::AgUi => add::<agui::AgUiEvent<'_>>(&mut found),
        }
        let (name, schema) = self.schema();
        found.push((name.to_owned(), schema));
        found
    }

    /// The schema of one event, with its name.
    fn schema(self) -> (&'static str, Value) {
        let or_done = |data: Value| json!({ "anyOf": [data, { "const": "[DONE]" }] });
        match self {
            Self::Native | Self::NativeAnswer => ("ThreadEvent", native_schema()),
            Self::UiMessage => ("UiMessageEvent", event(or_done(data(&["UiPart"])))),
            Self::Responses => ("ResponseStreamEvent", event(data(&["ResponseEvent"]))),
            Self::Completions => {
                ("CompletionEvent", event(or_done(data(&["CompletionChunk", "WrappedError"]))))
            }
            Self::AgUi => ("RunStreamEvent", event(data(&["RunEvent"]))),
        }
    }

    /// The media type object.
    pub(crate) fn media(self) -> Value {
        let schema = json!({ "$ref": format!("#/components/schemas/{}", self.schema().0) });
        let example = match self {
            Self::Native => return json!({ "schema": schema, "examples": native_examples() }),
            // The stream of a thread has the examples.
            Self::NativeAnswer => return json!({ "schema": schema }),
            Self::UiMessage => json!({ "type": "text-delta", "id": "p0", "delta": "Sunny" }),
            Self::Responses => json!({
                "type": "response.output_text.delta", "sequence_number": 4, "item_id": "msg_1", "output_index": 0,
                "content_index": 0, "delta": "Sunny", "logprobs": [],
            }),
            Self::Completions => json!({
                "id": "chatcmpl-u01f3-0198c4d2-a", "object": "chat.completion.chunk", "created": 1_795_348_184, "model": "ann",
                "choices": [{ "index": 0, "delta": { "content": "Sunny" }, "logprobs": null, "finish_reason": null }],
            }),
            Self::AgUi => {
                json!({ "type": "TEXT_MESSAGE_CONTENT", "messageId": "u01f3-0198c4d2-a-s0", "delta": "Sunny" })
            }
        };
        json!({ "schema": schema, "example": { "data": example.to_string() } })
    }
}

fn add<T: ToSchema>(found: &mut Vec<(String, Value)>) {
    found.extend(crate::openapi::schema::schemas_of::<T>());
}

/// A value of one of these schemas.
fn any_of(names: &[&str]) -> Value {
    let one = |name: &&str| json!({ "$ref": format!("#/components/schemas/{name}") });
    match names {
        [name] => one(name),
        names => json!({ "anyOf": names.iter().map(one).collect::<Vec<_>>() }),
    }
}

/// Text that is JSON of one of these schemas.
fn data(names: &[&str]) -> Value {
    json!({ "type": "string", "contentMediaType": JSON, "contentSchema": any_of(names) })
}

const JSON: &str = "application/json";

fn event(data: Value) -> Value {
    let properties = json!({ "event": { "type": "string" }, "id": { "type": "string" }, "data": data });
    json!({ "type": "object", "required": ["data"], "properties": properties })
}

/// The `event` of each event that has one, and the schemas of its data.
const NATIVE_KINDS: [(&str, &[&str]); 10] = [
    ("input", &["InputEvent"]),
    ("input_withdrawn", &["InputWithdrawnEvent"]),
    ("ready", &["ReadyEvent"]),
    ("reset", &["ResetEvent"]),
    ("restart", &["RestartEvent"]),
    ("waiting", &["WaitingEvent"]),
    ("left_out", &["LeftOutEvent"]),
    ("remembered", &["RememberedEvent"]),
    ("auth_expired", &["AuthExpiredEvent"]),
    ("drain", &[]),
];

fn native_schema() -> Value {
    let is = |event: Value| json!({ "properties": { "event": event }, "required": ["event"] });
    let then = |schema: Value| json!({ "properties": { "data": { "contentSchema": schema } } });
    let named = NATIVE_KINDS.map(|(name, _)| name);
    let mut cases: Vec<_> = NATIVE_KINDS
        .iter()
        .map(|(name, schemas)| {
            let schema = match schemas {
                [] => json!({ "type": "object", "maxProperties": 0 }),
                schemas => any_of(schemas),
            };
            json!({ "if": is(json!({ "const": name })), "then": then(schema) })
        })
        .collect();
    let unnamed = any_of(&["ChunkEvent", "CompleteEvent", "FailedEvent"]);
    cases.push(json!({ "if": is(json!({ "enum": named })), "else": then(unnamed) }));
    let kinds = [&["message"], named.as_slice()].concat();
    let cursor = <schemas::CursorSchema as ToSchema>::name();
    json!({
        "type": "object",
        "description": NATIVE,
        "required": ["data"],
        "properties": {
            "event": { "enum": kinds },
            "id": { "$ref": format!("#/components/schemas/{cursor}") },
            "data": { "type": "string", "contentMediaType": JSON },
            "retry": { "type": "integer", "minimum": 0, "description": "Milliseconds to wait before reconnecting." },
        },
        "allOf": cases,
    })
}

fn native_examples() -> Map<String, Value> {
    let turn = "u01f3-0198c4d2e5f5";
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
    let input = json!({
        "thread_id": "hello", "message_id": format!("{turn}-q"), "turn_id": turn, "answer_id": answer, "role": "user",
        "content": "How is the weather?", "metadata": {}, "accepted_at": "2026-11-22T11:49:44.123Z",
    });
    let withdrawn = json!({
        "thread_id": "hello", "message_id": format!("{turn}-q"), "turn_id": turn, "reason": "deadline", "retryable": true,
    });
    let reset = json!({ "thread_id": "hello", "message_id": answer, "attempt": 1 });
    let (before, id) = ("7524873984012345340", "7524873984012345344");
    let named = |name: &str, mut event: Value| {
        event["value"]["event"] = json!(name);
        event
    };
    let input = one("a question is accepted", &format!("{before}~{answer}.0.0.0"), input);
    let withdrawn = one("the question will not be in the history", before, withdrawn);
    let reset = one("the message starts again", &format!("{before}~{answer}.1.0.0"), reset);
    let ready = json!({ "thread_id": "hello", "after": before });
    let ready = one("a stream without a cursor begins after this position", before, ready);
    let reason = WaitReason::NoWorkflow;
    let waiting = json!({
        "thread_id": "hello", "message_id": answer, "turn_id": turn, "reason": reason.name(), "message": reason.message(),
    });
    let left_out = json!({
        "thread_id": "hello", "shown": 64,
        "message": "more than 64 messages of the thread are open: the others are shown once one of these has ended",
    });
    let remembered = json!({
        "thread_id": "hello", "message_id": answer, "turn_id": turn, "facts": [{
            "fact_id": format!("{answer}-f0"), "agent_id": "ann", "text": "The user lives in Bern.", "kind": "place",
            "source_message_id": format!("{turn}-q"),
            "undo": { "method": "DELETE", "path": format!("/v1/agents/ann/memory/{answer}-f0?restore=true") },
        }],
    });
    let restart = json!({ "thread_id": "hello", "after": before });
    let restart = one("what the client has received after this position is no longer valid", before, restart);
    let examples = [
        ("chunk", one("a chunk", &format!("{before}~{answer}.0.1.5"), chunk)),
        ("rest", one("the rest of a text, from the store", &format!("{before}~{answer}.0.1.6.f"), rest)),
        ("complete", one("the message is stored", id, complete)),
        ("stopped", one("the partial message is stored", id, stopped)),
        ("failed", one("the message failed", id, failed)),
        ("input", named("input", input)),
        ("input_withdrawn", named("input_withdrawn", withdrawn)),
        ("ready", named("ready", ready)),
        ("reset", named("reset", reset)),
        ("restart", named("restart", restart)),
        (
            "waiting",
            json!({
                "summary": "no workflow service takes the request",
                "value": { "event": "waiting", "data": waiting.to_string() },
            }),
        ),
        (
            "left_out",
            json!({
                "summary": "more messages are open than the stream shows",
                "value": { "event": "left_out", "data": left_out.to_string() },
            }),
        ),
        (
            "remembered",
            json!({
                "summary": "facts that the agent remembered since an answer",
                "value": { "event": "remembered", "data": remembered.to_string() },
            }),
        ),
        (
            "auth_expired",
            json!({
                "summary": "the credential of the stream is no longer valid, and the stream ends",
                "value": { "event": "auth_expired", "data": json!({ "code": "credential_revoked" }).to_string() },
            }),
        ),
        (
            "drain",
            json!({
                "summary": "the gateway is shutting down: reconnect to any gateway",
                "value": { "event": "drain", "data": "{}", "retry": 1_197 },
            }),
        ),
    ];
    examples.map(|(name, example)| (name.to_owned(), example)).into_iter().collect()
}

const NATIVE: &str = "\
One event. Without `event` it is one of three: a chunk of a message, sent once and in order; `message_complete`, sent after the commit; or the \
failure of a message. Every end of a message has a position in the thread. A client that reconnects with the id of an event receives all later \
ends in order. `input`: a person's question is accepted; its answer follows, and the history shows the question once the answer has ended. \
`input_withdrawn`: the question will not be in the history, because its turn failed; the failure follows. `ready` is the first event of a stream without a cursor; its id is the one to reconnect with if nothing follows. `reset`: the \
message starts again; discard what was received of it. `restart`: what the client has received is no longer valid. It discards everything after \
the position `after` and all open messages, and continues with what follows. `waiting`: why an answer produces no chunks, repeated about every \
ten seconds meanwhile; it has no id and ends nothing. `left_out`: more messages of the thread are open than the stream shows; it has no id. \
`remembered`: facts that the agent remembered since an answer, the source messages, and the requests that undo them. It has no id; a client that \
was disconnected finds the facts in the history, with the answer. `drain`: the gateway is shutting down, and the client should reconnect. \
`auth_expired` is the last event of a stream whose credential is no longer valid.";
