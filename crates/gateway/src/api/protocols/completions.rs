//! OpenAI's chat completions.

use axum::extract::Extension;
use axum::http::HeaderMap;
use axum::response::Response;
use http_server::error::{ErrorCode, Problem};
use http_server::transport::extensions::ConnectionHandle;
use model::ThreadId;
use protocols::chat_completions::{ApiError, Completion, CompletionOptions, CompletionRequest, error_body};
use protocols::{ChatCompletions, RequestBody};
use serde_json::{Value, json};

use crate::api::client_headers;
use crate::api::protocols::{
    ProtocolRequest, Repeats, client_history, collect_answer, enter, failed, json, posted, resolve, stream,
};
use crate::app::request_context::RequestContext;
use crate::commands::models;
use crate::commands::submit::{Input, Submission};
use crate::commands::validate::TurnParameters;
use crate::openapi::events::Stream;
use crate::openapi::operation::Operation;
use crate::openapi::tags::OPENAI;

pub(crate) fn operations() -> Vec<Operation> {
    let failed = json!({
        "error": { "message": "the workflow made no progress within its deadline", "type": "server_error", "param": null, "code": "deadline" },
    });
    let all = [Operation::post(
        "/v1/chat/completions",
        "createCompletion",
        "Send a message (chat completions)",
        post,
    )
    .opens()
    .thread_header()
    .reads(RequestBody::Completions)
    .response::<Completion<'_>>(200, "The answer; its chunks with `stream`", completion_example())
    .or_streams(Stream::Completions)
    .with_header("X-Antiphon-Thread", "The thread.", json!({ "type": "string" }))
    .response::<ApiError<'_>>(502, "The turn failed", failed)];
    all.map(|operation| operation.tag(OPENAI)).into()
}

/// Header that names the thread of a completion, as `metadata.thread_id` does.
const THREAD: &str = "x-antiphon-thread";

pub(crate) async fn post(
    ctx: RequestContext,
    Extension(connection): Extension<ConnectionHandle>,
    request: axum::extract::Request,
) -> Response {
    posted(ctx, connection, request, complete, error_body).await
}

async fn complete(posted: ProtocolRequest) -> Result<Response, Problem> {
    let ProtocolRequest { ctx, connection, key, options, headers, body } = posted;
    let mut request = CompletionRequest::parse(&body, named(&ctx, &headers)?, ctx.tenant())?;
    let backend = ctx.backend()?;
    let agent = models::agent_of_model(backend, ctx.tenant(), &request.model).await?;
    let repeats = Repeats::of_key(key.as_deref());
    let mut chat = client_headers::chat(&ctx, &headers)?;
    let user = request.user.or(chat.user.take());
    let is_auxiliary = request.thread.is_none()
        && request.wanted.history.is_none()
        && client_headers::is_auxiliary(&request.text);
    let wanted = client_history::PlaceRequest {
        thread: request.thread,
        headers: chat,
        agent: Some(&agent),
        key: key.as_deref(),
        is_temporary: request.is_temporary || is_auxiliary,
        history: request.wanted.history.take(),
    };
    let place = client_history::place(&ctx, wanted).await?;
    let thread = place.thread.clone();
    let input = Input {
        agent: Some(agent),
        user,
        is_temporary: place.is_temporary,
        history: place.history,
        metadata: request.metadata,
        parameters: TurnParameters::new(request.wanted)?,
        key,
        options,
        ..Input::new(thread.clone(), request.text)
    };
    let submission = resolve(&ctx, &input).await?;
    // A refused input leaves no thread.
    if let Submission::New(turn) = &submission {
        place.write(&ctx, &turn.agent).await?;
    }
    let (message, answer) = enter(&ctx, connection, &thread, submission, repeats).await?;
    let terms = CompletionOptions {
        message: message.clone(),
        model: request.model,
        created_at: backend.now(),
        include_usage: request.include_usage,
    };
    let mut response = if request.stream {
        stream(ChatCompletions::new(terms), message, answer)
    } else {
        match collect_answer(ChatCompletions::new(terms), &message, answer)
            .await
            .as_ref()
            .and_then(|fold| fold.object())
        {
            Some(Ok(object)) => json(object),
            Some(Err(failure)) => failed(failure, error_body),
            None => return Err(repeats.cut(&thread, &message)),
        }
    };
    if let Ok(thread) = thread.name().parse() {
        response.headers_mut().insert(THREAD, thread);
    }
    Ok(response)
}

fn named(ctx: &RequestContext, headers: &HeaderMap) -> Result<Option<ThreadId>, Problem> {
    let Some(value) = headers.get(THREAD) else { return Ok(None) };
    let text = value.to_str().map_err(|_| Problem::new(ErrorCode::InvalidId, "the thread is not ASCII"))?;
    ctx.thread(text).map(Some)
}

fn completion_example() -> Value {
    json!({
        "id": "chatcmpl-u01f3-0198c4d2e5f5-a", "object": "chat.completion",
        "created": 1_795_348_184, "model": "ann",
        "choices": [{
            "index": 0, "message": { "role": "assistant", "content": "Sunny.", "refusal": null }, "logprobs": null,
            "finish_reason": "stop",
        }],
    })
}
