//! The UI message stream of Vercel's AI SDK.

use axum::extract::Extension;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use feed::Subscription;
use http_server::error::{ErrorCode, Problem};
use http_server::extract::body::EmptyBody;
use http_server::extract::path;
use http_server::extract::path::PathParam;
use http_server::extract::query::QueryParams;
use http_server::transport::extensions::ConnectionHandle;
use model::{ControlKind, MessageId, Position, Role, TurnId, TurnOpened};
use protocols::request::BadRequest;
use protocols::ui_message::{HistoryMessage, Regenerated, UiMessageRequest, error_body};
use protocols::{RequestBody, UiMessage};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::{Range, StoredMessage};
use utoipa::{IntoParams, ToSchema};

use crate::api::answer_stream;
use crate::api::answer_stream::ClientConnection;
use crate::api::client_headers;
use crate::api::history;
use crate::api::pending_inputs::PendingInputs;
use crate::api::protocols::{
    ProtocolRequest, TurnAnswer, active, answered, client_idempotency_key, last, open, open_answer, posted,
    resume_answer, stream, with_client_id,
};
use crate::api::respond::json_no_store;
use crate::app::request_context::RequestContext;
use crate::commands::control;
use crate::commands::submit::{Input, Submission};
use crate::commands::validate::TurnParameters;
use crate::openapi::error_codes::STREAM;
use crate::openapi::events::Stream;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::response::ResponseSpec;
use crate::openapi::schemas;
use crate::openapi::tags::AI_SDK;
use crate::streaming::store_reads;

pub(crate) fn operations() -> Vec<Operation> {
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
                post,
            )
            .opens()
            .reads(RequestBody::UiMessage)
            .streams("The answer", Stream::UiMessage),
        ),
        Operation::get(
            "/api/chat/{thread}",
            "listChatMessages",
            "List the messages of a thread as UI messages",
            history,
        )
        .scope(Scope::ReadThreads)
        .query::<UiHistoryQuery>()
        .response::<UiHistory>(
            200,
            "Messages, oldest first",
            json!({ "messages": [ui_message_example()], "owner_status": "available", "next": null }),
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
                resume,
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
            stop,
        )
        .scope(Scope::WriteThreads)
        .query::<StopQuery>()
        .actor_header()
        .no_body()
        .acts()
        .response_with(ResponseSpec::nothing("The answer is neither in progress nor pending"))
        .errors(&[ErrorCode::PartitionUnavailable, ErrorCode::MissingRequiredParameter]),
    ];
    all.map(|operation| operation.tag(AI_SDK)).into()
}

/// An answer is sent again to a returning client for this time (ms) after its end, because the
/// client may have seen only a part. Clients return within seconds of a cut. A client that has the
/// whole answer receives the same message under the same id.
const LATELY_MS: i64 = 120_000;

pub(crate) async fn post(
    ctx: RequestContext,
    Extension(connection): Extension<ConnectionHandle>,
    request: axum::extract::Request,
) -> Response {
    posted(ctx, connection, request, say, error_body).await
}

async fn say(posted: ProtocolRequest) -> Result<Response, Problem> {
    let ProtocolRequest { ctx, connection, key, options, headers, body } = posted;
    let request = UiMessageRequest::parse(&body, ctx.tenant())?;
    if let Some(regenerated) = &request.regenerates {
        return retry(&ctx, connection, &request, regenerated, ctx.actor(&headers)?).await;
    }
    let input = Input {
        user: request.user.or(client_headers::user(&ctx, &headers)?),
        agent: request.agent,
        metadata: with_client_id(request.metadata, request.input_id.as_deref()),
        parameters: TurnParameters::new(request.wanted)?,
        key: key.or_else(|| client_idempotency_key("ui", request.input_id.as_deref())),
        options,
        ..Input::new(request.thread, request.text)
    };
    let (message, answer) = open(&ctx, connection, &input).await?;
    Ok(stream(UiMessage::new(message.clone()), message, answer))
}

/// Another answer to the last input: the next run of a turn that failed. A turn that was answered
/// stays unchanged.
async fn retry(
    ctx: &RequestContext,
    connection: ClientConnection,
    request: &UiMessageRequest,
    regenerated: &Regenerated,
    actor: String,
) -> Result<Response, Problem> {
    let (backend, thread) = (ctx.backend()?, &request.thread);
    let stays =
        |param: &str, why: &'static str| BadRequest::Unsupported { param: param.to_owned(), why: why.into() };
    if active(backend, thread).await?.is_some() {
        let detail = "the thread has a turn under way; when it has failed it can be tried again";
        return Err(Problem::new(ErrorCode::ThreadBusy, detail));
    }
    let Some(failed) = last::failed(backend, thread).await? else {
        return Err(
            stays("trigger", "an answer that is in the history stays there: send a new message").into()
        );
    };
    let failed = failed.opened;
    let is_meant = match &regenerated.message {
        None => true,
        Some(name) if *name == *failed.turn.answer(failed.run).as_str() => true,
        // The name may also be the client's id of the input.
        Some(name) => match client_idempotency_key("ui", Some(name)) {
            Some(key) => {
                backend.store().key_claim(thread, &key).await?.is_some_and(|claim| claim.turn == failed.turn)
            }
            None => false,
        },
    };
    if !is_meant {
        return Err(stays(
            "messageId",
            "only the answer of the last turn can be another, if the turn failed",
        )
        .into());
    }
    if request.text != failed.content {
        return Err(
            stays("messages", "the input of a turn that failed stays as it is: send a new message").into()
        );
    }
    let opened = TurnOpened { run: failed.run + 1, actor: Some(actor.into()), ..failed };
    let message = opened.turn.answer(opened.run);
    let submission = Submission::New(Box::new(opened));
    let subscription = Subscription::Message(message.clone());
    let send_queue = answer_stream::watch(ctx, connection, thread, &submission, subscription, None).await?;
    Ok(stream(UiMessage::new(message.clone()), message, TurnAnswer::Live(send_queue)))
}

/// The answer in progress, from its beginning, or the last one if it ended recently; 204 when there
/// is neither.
pub(crate) async fn resume(
    ctx: RequestContext,
    Extension(connection): Extension<ConnectionHandle>,
    PathParam(thread): PathParam<String>,
) -> Response {
    let outcome = async {
        let thread = ctx.thread(&thread)?;
        let backend = ctx.backend()?;
        let (message, answer) = match active(backend, &thread).await? {
            Some(message) => {
                let answer = resume_answer(&ctx, connection, &thread, &message).await?;
                (message, answer)
            }
            None => match last::answer(backend, &thread).await? {
                Some(last) if backend.now().since_ms(last.at) < LATELY_MS => (last.message, last.answer),
                Some(_) | None => return Ok(StatusCode::NO_CONTENT.into_response()),
            },
        };
        Ok(stream(UiMessage::new(message.clone()), message, answer))
    };
    answered(outcome.await, error_body)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct StopQuery {
    /// The answer to stop, as its `start` named it: a late stop must not stop the next answer.
    #[param(value_type = schemas::MessageIdSchema)]
    message: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct UiHistoryQuery {
    /// `next` of the previous page.
    #[param(value_type = Option<schemas::PositionSchema>)]
    next: Option<String>,
    #[param(value_type = Option<schemas::Limit>)]
    limit: Option<String>,
}

/// A page of a chat's messages, oldest first: those before the previous page, or the last ones.
#[derive(Serialize, ToSchema)]
pub(crate) struct UiHistory {
    /// UI messages, as `useChat` takes them.
    #[schema(value_type = Vec<Object>)]
    messages: Vec<HistoryMessage>,
    /// Only on the page with the newest messages. If it is `unavailable`, questions that wait for
    /// their answers may be missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = schemas::OwnerStatusSchema, required = false)]
    owner_status: Option<&'static str>,
    /// Value of `next` for the next page, with older messages; null on the last page.
    #[schema(required)]
    next: Option<String>,
}

/// The messages that a page shows before it follows the stream: those of the history, then the
/// questions that are not answered yet.
pub(crate) async fn history(
    ctx: RequestContext,
    PathParam(thread): PathParam<String>,
    QueryParams(query): QueryParams<UiHistoryQuery>,
) -> Response {
    let outcome = async {
        let thread = ctx.thread(&thread)?;
        let range = Range { after: None, before: Some(Position::MAX), with_synthetic: false };
        let pending = match query.next {
            None => Some(PendingInputs::read(ctx.backend()?, &thread).await),
            Some(_) => None,
        };
        let owner_status = pending.as_ref().map(|pending| pending.owner_status().name());
        let page = history::PagePlace { next: query.next, limit: query.limit };
        let (rows, _, next, pending) = history::read(&ctx, &thread, range, page, false, pending).await?;
        let mut messages = ui_messages(&rows);
        messages.extend(pending.iter().flat_map(PendingInputs::inputs).map(|input| {
            HistoryMessage::input(&input.turn.input(), Role::User, &input.content, &input.metadata)
        }));
        Ok(json_no_store(UiHistory { messages, owner_status, next }))
    };
    answered(outcome.await, error_body)
}

/// Joins the rows of each answer, with its steps, into one message.
fn ui_messages(rows: &[StoredMessage]) -> Vec<HistoryMessage> {
    let of_answer = |row: &StoredMessage| match row.role {
        Role::User | Role::System => row.message_id.clone(),
        Role::Assistant | Role::Tool => store_reads::answer_of(&row.message_id),
    };
    let message = |rows: &[StoredMessage]| {
        let last = rows.last()?;
        let id = of_answer(last);
        Some(match last.role {
            Role::User | Role::System => HistoryMessage::input(&id, last.role, &last.content, &last.metadata),
            Role::Assistant | Role::Tool => {
                HistoryMessage::answer(&id, &store_reads::answer_of_rows(&id, rows))
            }
        })
    };
    rows.chunk_by(|a, b| of_answer(a) == of_answer(b)).filter_map(message).collect()
}

pub(crate) async fn stop(
    ctx: RequestContext,
    PathParam(thread): PathParam<String>,
    QueryParams(query): QueryParams<StopQuery>,
    headers: HeaderMap,
    _: EmptyBody,
) -> Response {
    let outcome = async {
        let (thread, actor, backend) = (ctx.thread(&thread)?, ctx.actor(&headers)?, ctx.backend()?);
        let Some(named) = query.message else {
            let missing = BadRequest::Missing { param: "message".to_owned() };
            return Err(missing.into());
        };
        let named = path::id("message", &named, MessageId::parse)?;
        let nothing_to_stop = || Ok(StatusCode::NO_CONTENT.into_response());
        let Some((turn, _)) = TurnId::of_answer(&named) else { return nothing_to_stop() };
        if open_answer(backend, &thread, |open| *open == turn).await?.as_ref() != Some(&named) {
            return nothing_to_stop();
        }
        let acted = control::execute(backend, actor, thread.agent(), ControlKind::StopTurn(turn)).await?;
        Ok(acted.into_response())
    };
    answered(outcome.await, error_body)
}

fn ui_message_example() -> Value {
    json!({
        "id": "u01f3-0198c4d2e5f5-a", "role": "assistant",
        "parts": [{ "type": "step-start" }, { "type": "text", "text": "Sunny.", "state": "done" }],
    })
}
