//! The same threads in the protocols of other clients.

use http_server::error::ErrorCode;
use protocols::RequestBody;
use protocols::chat_completions::{ApiError, Completion};
use protocols::responses::ResponseObject;
use serde_json::{Value, json};

use crate::api::protocols::models::{ModelView, Models, ModelsQuery};
use crate::api::protocols::responses::ShowQuery;
use crate::api::protocols::ui_message::{StopQuery, UiHistory, UiHistoryQuery};
use crate::api::protocols::{agui, completions, models, responses, ui_message};
use crate::openapi::error_codes::{INPUT, PUBLISH, STREAM};
use crate::openapi::events::Stream;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::response::{Errors, ResponseSpec};
use crate::openapi::tags::{AG_UI, AI_SDK, OPENAI};

/// What a message may lead to, in whatever protocol.
const OPENED: [ErrorCode; 7] = [
    ErrorCode::AgentBackingOff,
    ErrorCode::BudgetExceeded,
    ErrorCode::ThreadBusy,
    ErrorCode::ThreadErased,
    ErrorCode::IdempotencyKeyReused,
    ErrorCode::TurnDeleted,
    ErrorCode::TurnDropped,
];

pub(crate) fn operations() -> Vec<Operation> {
    let mut all = of_the_ai_sdk();
    all.extend(of_openai());
    all.extend(of_ag_ui());
    all
}

impl Operation {
    /// Opens a turn, as a message does.
    fn opens(self) -> Self {
        self.scope(Scope::WriteThreads)
            .input_headers()
            .errors(&INPUT)
            .errors(&PUBLISH)
            .errors(&STREAM)
            .errors(&OPENED)
            .errors(&[ErrorCode::InvalidParameters, ErrorCode::ParametersTooLarge, ErrorCode::StreamAborted])
            .errors(&[ErrorCode::AnswerGoesOn, ErrorCode::InputUnconfirmed])
    }

    /// The answer is a stream of these events.
    fn streams(self, text: &'static str, events: Stream) -> Self {
        self.response_with(ResponseSpec::stream(text, &events)).with_schemas_of(events)
    }
}

fn of_the_ai_sdk() -> Vec<Operation> {
    let header = |operation: Operation| {
        let text = "The version of the protocol.";
        operation.with_header("X-Vercel-AI-UI-Message-Stream", text, json!({ "const": "v1" }))
    };
    let all = [
        header(
            Operation::post(
                "/api/chat",
                "postChat",
                "Send a message and receive the answer as a UI message stream",
                ui_message::post,
            )
            .opens()
            .reads(RequestBody::UiMessage)
            .streams("The answer", Stream::UiMessage),
        ),
        Operation::get(
            "/api/chat/{thread}",
            "listChatMessages",
            "List the messages of a thread as UI messages",
            ui_message::history,
        )
        .scope(Scope::ReadThreads)
        .query::<UiHistoryQuery>()
        .response::<UiHistory>(
            200,
            "Messages, oldest first",
            json!({ "messages": [ui_message()], "next": null }),
        )
        .errors(&[
            ErrorCode::UnknownThread,
            ErrorCode::PartitionUnavailable,
            ErrorCode::InvalidPosition,
            ErrorCode::InvalidLimit,
        ]),
        header(
            Operation::get(
                "/api/chat/{thread}/stream",
                "resumeChat",
                "Stream the answer in progress from its beginning, or the last one if it ended within two minutes",
                ui_message::resume,
            )
            .scope(Scope::ReadThreads)
            .streams("The answer", Stream::UiMessage),
        )
        .response_with(ResponseSpec::nothing("None"))
        .errors(&STREAM)
        .errors(&[ErrorCode::PartitionUnavailable]),
        Operation::post(
            "/api/chat/{thread}/stop",
            "stopChat",
            "Stop an answer that is in progress or pending",
            ui_message::stop,
        )
        .scope(Scope::WriteThreads)
        .query::<StopQuery>()
        .actor_header()
        .no_body()
        .acts()
        .response_with(ResponseSpec::nothing("The answer is neither in progress nor pending"))
        .errors(&[ErrorCode::PartitionUnavailable, ErrorCode::MissingRequiredParameter]),
    ];
    all.map(|operation| operation.tag(AI_SDK).error_format(Errors::Text)).into()
}

fn ui_message() -> Value {
    json!({
        "id": "u01f3-0198c4d2e5f57a60b1d3c8a94e27f610-a", "role": "assistant",
        "parts": [{ "type": "step-start" }, { "type": "text", "text": "Sunny.", "state": "done" }],
    })
}

fn of_openai() -> Vec<Operation> {
    let failed = json!({
        "error": { "message": "the workflow made no progress within its deadline", "type": "server_error", "param": null, "code": "deadline" },
    });
    let all = [
        Operation::post(
            "/v1/chat/completions",
            "createCompletion",
            "Send a message (chat completions)",
            completions::post,
        )
        .opens()
        .thread_header()
        .reads(RequestBody::Completions)
        .response::<Completion<'_>>(200, "The answer; its chunks with `stream`", completion())
        .or_streams(Stream::Completions)
        .with_header("X-Antiphon-Thread", "The thread.", json!({ "type": "string" }))
        .response::<ApiError<'_>>(502, "The turn failed", failed),
        Operation::get("/v1/models", "listModels", "List the agents as models", models::list)
            .scope(Scope::ReadAgents)
            .query::<ModelsQuery>()
            .response::<Models>(
                200,
                "The models",
                json!({ "object": "list", "data": [model()], "has_more": false }),
            )
            .errors(&[ErrorCode::InvalidId]),
        Operation::get("/v1/models/{model}", "showModel", "Show an agent as a model", models::get)
            .scope(Scope::ReadAgents)
            .response::<ModelView>(200, "The model", model())
            .errors(&[ErrorCode::UnknownAgent]),
        Operation::post("/v1/responses", "createResponse", "Send a message (Responses)", responses::create)
            .opens()
            .reads(RequestBody::Responses)
            .response::<ResponseObject<'_>>(200, "The response; its events with `stream`", response())
            .or_streams(Stream::Responses)
            .errors(&[
                ErrorCode::NotTheLastResponse,
                ErrorCode::UnknownResponse,
                ErrorCode::UnknownTurn,
                ErrorCode::PartitionUnavailable,
            ]),
        Operation::get(
            "/v1/responses/{response_id}",
            "showResponse",
            "Show a response, or stream it again",
            responses::get,
        )
        .scope(Scope::ReadThreads)
        .query::<ShowQuery>()
        .response::<ResponseObject<'_>>(200, "The response; its events with `stream`", response())
        .or_streams(Stream::Responses)
        .errors(&STREAM)
        .errors(&[
            ErrorCode::UnknownResponse,
            ErrorCode::UnknownTurn,
            ErrorCode::PartitionUnavailable,
            ErrorCode::StreamAborted,
        ]),
        Operation::post(
            "/v1/responses/{response_id}/cancel",
            "cancelResponse",
            "Stop the turn of a response",
            responses::cancel,
        )
        .scope(Scope::WriteThreads)
        .actor_header()
        .no_body()
        .response::<ResponseObject<'_>>(200, "The response, ended or still in progress", response())
        .errors(&PUBLISH)
        .errors(&[
            ErrorCode::UnknownResponse,
            ErrorCode::UnknownTurn,
            ErrorCode::PartitionUnavailable,
            ErrorCode::StreamAborted,
        ]),
    ];
    all.map(|operation| operation.tag(OPENAI).error_format(Errors::Wrapped)).into()
}

fn of_ag_ui() -> Vec<Operation> {
    let all = [
        Operation::post("/agui", "runAgent", "Send a message and receive the run", agui::post)
            .opens()
            .reads(RequestBody::Run)
            .streams("The run", Stream::AgUi),
        Operation::post(
            "/agui/connect",
            "connectAgent",
            "Stream the run in progress, or the last one, from its beginning",
            agui::connect,
        )
        .scope(Scope::ReadThreads)
        .input_headers()
        .reads(RequestBody::Connect)
        .streams("The run", Stream::AgUi)
        .response_with(ResponseSpec::nothing("None"))
        .errors(&STREAM)
        .errors(&[ErrorCode::PartitionUnavailable]),
    ];
    all.map(|operation| operation.tag(AG_UI).error_format(Errors::RunError)).into()
}

fn model() -> Value {
    json!({ "id": "ann", "object": "model", "created": 1_795_348_184, "owned_by": "antiphon" })
}

fn completion() -> Value {
    json!({
        "id": "chatcmpl-u01f3-0198c4d2e5f57a60b1d3c8a94e27f610-a", "object": "chat.completion",
        "created": 1_795_348_184, "model": "ann",
        "choices": [{
            "index": 0, "message": { "role": "assistant", "content": "Sunny.", "refusal": null }, "logprobs": null,
            "finish_reason": "stop",
        }],
    })
}

fn response() -> Value {
    json!({
        "id": "resp_u01f3-0198c4d2e5f57a60b1d3c8a94e27f610-a", "object": "response", "created_at": 1_795_348_184,
        "status": "completed", "background": false, "conversation": { "id": "hello" }, "error": null,
        "incomplete_details": null, "instructions": null, "max_output_tokens": null, "metadata": {}, "model": "ann",
        "output": [{
            "type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
            "content": [{ "type": "output_text", "text": "Sunny.", "annotations": [], "logprobs": [] }],
        }],
        "parallel_tool_calls": true, "previous_response_id": null, "store": true, "temperature": null,
        "text": { "format": { "type": "text" } }, "tool_choice": "auto", "tools": [], "top_p": null,
        "truncation": "auto", "usage": null,
    })
}
