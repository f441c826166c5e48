//! OpenAI's Responses.

use std::time::Duration;

use axum::extract::Extension;
use axum::http::HeaderMap;
use axum::response::Response;
use bytes::Bytes;
use http_server::error::{ErrorCode, Problem};
use http_server::extract::body::EmptyBody;
use http_server::extract::path::PathParam;
use http_server::extract::query::QueryParams;
use http_server::transport::extensions::ConnectionHandle;
use model::{ControlKind, MessageId, Metadata, QueryTarget, ThreadId, Timestamp, TurnId};
use protocols::responses::{
    Follows, ResponseObject, ResponseOptions, ResponseRequest, Resume, error_body, message_of,
};
use protocols::{RequestBody, Responses};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::AskedResponse;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::api::client_headers;
use crate::api::pending_inputs::PendingInputs;
use crate::api::protocols::{
    ProtocolRequest, Repeats, TurnAnswer, answered, client_history, collect_answer, enter, json, posted,
    resolve, resume_answer, stream,
};
use crate::api::respond::json_no_store;
use crate::api::turns;
use crate::app::request_context::RequestContext;
use crate::backend::Backend;
use crate::commands::submit::{Input, Submission};
use crate::commands::validate::TurnParameters;
use crate::commands::{control, models, owner_query, thread_agent};
use crate::openapi::error_codes::{PUBLISH, STREAM};
use crate::openapi::events::Stream;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::schemas;
use crate::openapi::tags::OPENAI;
use crate::streaming::store_reads;

pub(crate) fn operations() -> Vec<Operation> {
    let all = [
        Operation::post("/v1/responses", "createResponse", "Send a message (Responses)", create)
            .opens()
            .reads(RequestBody::Responses)
            .response::<ResponseObject<'_>>(200, "The response; its events with `stream`", response_example())
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
            get,
        )
        .scope(Scope::ReadThreads)
        .query::<ShowQuery>()
        .response::<ResponseObject<'_>>(200, "The response; its events with `stream`", response_example())
        .or_streams(Stream::Responses)
        .errors(&STREAM)
        .errors(&[
            ErrorCode::UnknownResponse,
            ErrorCode::UnknownTurn,
            ErrorCode::PartitionUnavailable,
            ErrorCode::StreamAborted,
        ]),
        Operation::get(
            "/v1/responses/{response_id}/input_items",
            "listInputItems",
            "List the input of a response",
            input_items,
        )
        .scope(Scope::ReadThreads)
        .query::<InputItemsQuery>()
        .response::<InputItems>(200, "The input", input_items_example())
        .errors(&[
            ErrorCode::UnknownResponse,
            ErrorCode::UnknownTurn,
            ErrorCode::PartitionUnavailable,
        ]),
        Operation::post(
            "/v1/responses/{response_id}/cancel",
            "cancelResponse",
            "Stop the turn of a response",
            cancel,
        )
        .scope(Scope::WriteThreads)
        .actor_header()
        .no_body()
        .response::<ResponseObject<'_>>(200, "The response, ended or still in progress", response_example())
        .errors(&PUBLISH)
        .errors(&[
            ErrorCode::UnknownResponse,
            ErrorCode::UnknownTurn,
            ErrorCode::PartitionUnavailable,
            ErrorCode::StreamAborted,
        ]),
    ];
    all.map(|operation| operation.tag(OPENAI)).into()
}

/// Number of checks whether a cancelled response has ended, so that the reply can show its final
/// state.
const CANCEL_LOOKS: u32 = 20;
const CANCEL_PAUSE: Duration = Duration::from_millis(100);

pub(crate) async fn create(
    ctx: RequestContext,
    Extension(connection): Extension<ConnectionHandle>,
    request: axum::extract::Request,
) -> Response {
    posted(ctx, connection, request, respond, error_body).await
}

async fn respond(posted: ProtocolRequest) -> Result<Response, Problem> {
    let ProtocolRequest { ctx, connection, key, options, headers, body } = posted;
    let mut request = ResponseRequest::parse(&body, ctx.tenant())?;
    let backend = ctx.backend()?;
    let repeats = Repeats::of_key(key.as_deref());
    let named = named_thread(&ctx, &request, key.as_deref()).await?;
    let mut chat = client_headers::chat(&ctx, &headers)?;
    let user = request.user.take().or(chat.user.take());
    let is_auxiliary =
        named.is_none() && request.wanted.history.is_none() && client_headers::is_auxiliary(&request.text);
    let agent = match &request.model {
        Some(model) => Some(models::agent_of_model(backend, ctx.tenant(), model).await?),
        None => None,
    };
    let wanted = client_history::PlaceRequest {
        thread: named,
        headers: chat,
        agent: agent.as_ref(),
        key: key.as_deref(),
        is_temporary: request.is_temporary || is_auxiliary,
        history: request.wanted.history.take(),
    };
    let place = client_history::place(&ctx, wanted).await?;
    let thread = place.thread.clone();
    let input = Input {
        agent,
        user,
        is_temporary: place.is_temporary,
        history: place.history,
        metadata: request.metadata.clone(),
        parameters: TurnParameters::new(request.wanted.clone())?,
        key,
        options,
        ..Input::new(thread.clone(), request.text.clone())
    };
    let submission = resolve(&ctx, &input).await?;
    // A refused input leaves no thread.
    if let Submission::New(turn) = &submission {
        place.write(&ctx, &turn.agent).await?;
    }
    let model = match request.model {
        Some(model) => model,
        None => model_of(backend, &thread).await?,
    };
    let previous_response_id = match request.follows {
        Follows::Response(before) => Some(before),
        Follows::Thread(_) | Follows::Nothing => None,
    };
    let background = request.background;
    let (metadata, options) = (request.metadata, request.shown);
    let asked = AskedResponse { model, background, previous_response_id, metadata, options };
    // Stored before the turn begins: a client with the id then finds the whole response on any
    // gateway.
    let row = backend.store().put_response(&thread, submission.turn(), &asked).await?;
    let (message, answer) = enter(&ctx, connection, &thread, submission, repeats).await?;
    let terms = terms(&thread, &message, row.asked, row.created_at);
    let answer = match answer {
        TurnAnswer::Live(send_queue) if request.background && !request.stream => {
            send_queue.discard();
            return Ok(json(Responses::under_way(terms, false)));
        }
        answer => answer,
    };
    let fold = Responses::new(terms, Resume::Start);
    if request.stream {
        return Ok(stream(fold, message, answer));
    }
    object(fold, &thread, &message, answer, repeats).await
}

/// Waits for the end of the answer and returns the whole response.
async fn object(
    fold: Responses,
    thread: &ThreadId,
    message: &MessageId,
    answer: TurnAnswer,
    repeats: Repeats,
) -> Result<Response, Problem> {
    match collect_answer(fold, message, answer).await {
        Some(fold) => Ok(json(fold.object())),
        None => Err(repeats.cut(thread, message)),
    }
}

/// The thread that the request names.
async fn named_thread(
    ctx: &RequestContext,
    request: &ResponseRequest,
    key: Option<&str>,
) -> Result<Option<ThreadId>, Problem> {
    let backend = ctx.backend()?;
    let before = match &request.follows {
        Follows::Thread(thread) => return Ok(Some(thread.clone())),
        Follows::Response(before) => before,
        Follows::Nothing => return Ok(None),
    };
    let (turn, message) = named(before)?;
    let thread = thread_of(ctx, &turn, &message).await?;
    if let Some(key) = key
        && backend.store().key_claim(&thread, key).await?.is_some()
    {
        // The request is a repetition: the response that it follows was the last one then, but need
        // not be the last one now.
        return Ok(Some(thread));
    }
    if last_turn(backend, &thread).await?.as_ref() != Some(&turn) {
        let detail =
            "previous_response_id must be the last response of its conversation: a thread has no branches";
        return Err(Problem::new(ErrorCode::NotTheLastResponse, detail));
    }
    Ok(Some(thread))
}

/// The newest turn that a client opened: the last one that waits, or the one in progress, or the
/// last that was answered. No client has the id of a follow-up or a continuation.
async fn last_turn(backend: &Backend, thread: &ThreadId) -> Result<Option<TurnId>, Problem> {
    let about = QueryTarget::Thread(thread.clone());
    let explained = owner_query::explain_up_to_date(backend, thread, &about).await?;
    let open = owner_query::turns_with_people(&explained).filter(|turn| !turn.is_continuation());
    if let Some(last) = open.last() {
        return Ok(Some(last.clone()));
    }
    let answered = backend.store().last_answer(thread, false).await?;
    Ok(answered.and_then(|(message, _)| TurnId::of_answer(&message)).map(|(turn, _)| turn))
}

/// Further fields are the protocol's own (`include`), and are ignored.
#[derive(Debug, Deserialize, IntoParams)]
pub(crate) struct ShowQuery {
    /// Whether to return the response as a stream of events.
    stream: Option<bool>,
    /// Only events after this number; with `stream`.
    #[param(value_type = Option<schemas::EventNumber>)]
    starting_after: Option<u64>,
}

pub(crate) async fn get(
    ctx: RequestContext,
    Extension(connection): Extension<ConnectionHandle>,
    PathParam(response): PathParam<String>,
    QueryParams(query): QueryParams<ShowQuery>,
) -> Response {
    answered(shown(&ctx, connection, &response, query).await, error_body)
}

async fn shown(
    ctx: &RequestContext,
    connection: ConnectionHandle,
    response: &str,
    query: ShowQuery,
) -> Result<Response, Problem> {
    let backend = ctx.backend()?;
    let (turn, message) = named(response)?;
    let thread = thread_of(ctx, &turn, &message).await?;
    let terms = known_terms(backend, &thread, &turn, &message).await?;
    let answer = ended(backend, &thread, &turn, &message).await?;
    let streams = query.stream.unwrap_or(false);
    let answer = match answer {
        Some(answer) => answer,
        // A request that does not stream takes no subscriber's permit.
        None if !streams => return Ok(json(under_way(backend, terms, &turn).await)),
        None => resume_answer(ctx, connection, &thread, &message).await?,
    };
    if streams {
        let resume = query.starting_after.map_or(Resume::Again, Resume::After);
        return Ok(stream(Responses::new(terms, resume), message, answer));
    }
    let fold = Responses::new(terms, Resume::Start);
    object(fold, &thread, &message, answer, Repeats::Same).await
}

pub(crate) async fn cancel(
    ctx: RequestContext,
    PathParam(response): PathParam<String>,
    headers: HeaderMap,
    _: EmptyBody,
) -> Response {
    let outcome = async {
        let (actor, backend) = (ctx.actor(&headers)?, ctx.backend()?);
        let (turn, message) = named(&response)?;
        let thread = thread_of(&ctx, &turn, &message).await?;
        let terms = known_terms(backend, &thread, &turn, &message).await?;
        let mut answer = ended(backend, &thread, &turn, &message).await?;
        if answer.is_none() {
            control::execute(backend, actor, thread.agent(), ControlKind::StopTurn(turn.clone())).await?;
        }
        for _ in 0..CANCEL_LOOKS {
            if answer.is_some() {
                break;
            }
            tokio::time::sleep(CANCEL_PAUSE).await;
            answer = ended(backend, &thread, &turn, &message).await?;
        }
        match answer {
            Some(answer) => {
                let fold = Responses::new(terms, Resume::Start);
                object(fold, &thread, &message, answer, Repeats::Same).await
            }
            None => Ok(json(under_way(backend, terms, &turn).await)),
        }
    };
    answered(outcome.await, error_body)
}

#[derive(Debug, Deserialize, IntoParams)]
pub(crate) struct InputItemsQuery {
    /// The id of an item, behind which the list begins.
    #[param(max_length = 300)]
    after: Option<String>,
    /// A response has one item, so `limit` and `order` change nothing.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u32>,
    /// `asc` or `desc`.
    #[param(pattern = "^(asc|desc)$")]
    order: Option<String>,
}

/// The input of a response: the message that it answers.
#[derive(Serialize, ToSchema)]
pub(crate) struct InputItems {
    /// `list`.
    object: &'static str,
    data: Vec<InputItem>,
    #[schema(required)]
    first_id: Option<String>,
    #[schema(required)]
    last_id: Option<String>,
    has_more: bool,
}

/// A message of a person.
#[derive(Serialize, ToSchema)]
struct InputItem {
    id: String,
    /// `message`.
    r#type: &'static str,
    /// `completed`.
    status: &'static str,
    /// `user`.
    role: &'static str,
    content: [InputTextPart; 1],
}

/// The text of a message.
#[derive(Serialize, ToSchema)]
struct InputTextPart {
    /// `input_text`.
    r#type: &'static str,
    text: String,
}

pub(crate) async fn input_items(
    ctx: RequestContext,
    PathParam(response): PathParam<String>,
    QueryParams(query): QueryParams<InputItemsQuery>,
) -> Response {
    answered(items_of(&ctx, &response, query).await, error_body)
}

async fn items_of(ctx: &RequestContext, response: &str, query: InputItemsQuery) -> Result<Response, Problem> {
    let invalid = |detail: &str| Problem::new(ErrorCode::InvalidQuery, detail);
    if query.limit.is_some_and(|limit| !(1..=100).contains(&limit)) {
        return Err(invalid("limit must be from 1 to 100"));
    }
    if query.order.is_some_and(|order| order != "asc" && order != "desc") {
        return Err(invalid("order must be asc or desc"));
    }
    let backend = ctx.backend()?;
    let (turn, message) = named(response)?;
    let thread = thread_of(ctx, &turn, &message).await?;
    let text = match backend.store().input_of_turn(&thread, &turn).await? {
        Some(text) => text,
        None => {
            let pending = PendingInputs::read(backend, &thread).await;
            let open =
                pending.inputs().find(|input| input.turn == turn).map(|input| input.content.to_string());
            // The turn may have ended in the meantime.
            let stored =
                if open.is_some() { open } else { backend.store().input_of_turn(&thread, &turn).await? };
            stored.ok_or_else(|| {
                let detail = "the turn has not ended, and no worker that knows its input answers";
                Problem::new(ErrorCode::PartitionUnavailable, detail)
            })?
        }
    };
    let id = format!("msg_{}", turn.input());
    if query.after.as_ref().is_some_and(|after| *after != id) {
        return Err(invalid("after must be the id of an item of this response"));
    }
    let part = InputTextPart { r#type: "input_text", text };
    let item =
        InputItem { id: id.clone(), r#type: "message", status: "completed", role: "user", content: [part] };
    let data: Vec<InputItem> = if query.after.is_some() { vec![] } else { vec![item] };
    let id = data.first().map(|item| item.id.clone());
    Ok(json_no_store(InputItems { object: "list", data, first_id: id.clone(), last_id: id, has_more: false }))
}

fn input_items_example() -> Value {
    json!({
        "object": "list", "first_id": "msg_u01f3-0198c4d2e5f5-q", "last_id": "msg_u01f3-0198c4d2e5f5-q", "has_more": false,
        "data": [{
            "id": "msg_u01f3-0198c4d2e5f5-q", "type": "message", "status": "completed", "role": "user",
            "content": [{ "type": "input_text", "text": "How is the weather?" }],
        }],
    })
}

fn unknown() -> Problem {
    Problem::from(ErrorCode::UnknownResponse)
}

/// The turn and the answer that a response id names.
fn named(response: &str) -> Result<(TurnId, MessageId), Problem> {
    let message = message_of(response).ok_or_else(unknown)?;
    let (turn, _) = TurnId::of_answer(&message).ok_or_else(unknown)?;
    Ok((turn, message))
}

async fn thread_of(ctx: &RequestContext, turn: &TurnId, message: &MessageId) -> Result<ThreadId, Problem> {
    let store = ctx.store()?;
    if let Some(thread) = store.thread_of_turn(turn, message).await? {
        return ctx.in_own_tenant(thread).ok_or_else(unknown);
    }
    // The request of a response is stored before its turn begins.
    let looked_for = match store.is_response(turn).await? {
        true => turns::thread_of(ctx, turn).await,
        false => turns::thread_if_known(ctx, turn).await,
    };
    let problem = match looked_for {
        Ok(thread) => return Ok(thread),
        Err(problem) => problem,
    };
    // The turn may have ended in the meantime.
    let found = store.thread_of_turn(turn, message).await?.and_then(|thread| ctx.in_own_tenant(thread));
    found.ok_or(problem)
}

/// The outcome of the answer, if it has ended.
async fn ended(
    backend: &Backend,
    thread: &ThreadId,
    turn: &TurnId,
    message: &MessageId,
) -> Result<Option<TurnAnswer>, Problem> {
    if let Some(stored) = store_reads::answer(backend.store(), thread, message).await? {
        return Ok(Some(TurnAnswer::Stored(stored)));
    }
    let run = TurnId::of_answer(message).map_or(0, |(_, run)| run);
    let failure = backend.store().run_failure(thread, turn, run).await?;
    Ok(failure.map(TurnAnswer::of_failure))
}

/// The options of the stored request. An input of another protocol, or an old one, has no stored
/// options: then the result has the options that are known.
async fn known_terms(
    backend: &Backend,
    thread: &ThreadId,
    turn: &TurnId,
    message: &MessageId,
) -> Result<ResponseOptions, Problem> {
    if let Some(row) = backend.store().response(thread, turn).await? {
        return Ok(terms(thread, message, row.asked, row.created_at));
    }
    let asked = AskedResponse {
        model: model_of(backend, thread).await?,
        background: false,
        previous_response_id: None,
        metadata: Metadata::EMPTY,
        options: Metadata::EMPTY,
    };
    Ok(terms(thread, message, asked, opened_at(turn)))
}

fn terms(
    thread: &ThreadId,
    message: &MessageId,
    asked: AskedResponse,
    created_at: Timestamp,
) -> ResponseOptions {
    ResponseOptions {
        thread: thread.clone(),
        message: message.clone(),
        model: asked.model,
        created_at,
        background: asked.background,
        previous_response_id: asked.previous_response_id,
        metadata: asked.metadata,
        shown: asked.options,
    }
}

/// The name by which clients know the agent of the thread.
async fn model_of(backend: &Backend, thread: &ThreadId) -> Result<String, Problem> {
    let row = backend.store().thread(thread).await?;
    Ok(thread_agent::of_thread(backend, thread, row.as_ref()).await?.name().to_owned())
}

/// The response of a turn that has not ended. An owner that does not answer is waited for only
/// briefly.
async fn under_way(backend: &Backend, terms: ResponseOptions, turn: &TurnId) -> Bytes {
    let about = QueryTarget::Thread(terms.thread.clone());
    let explained = owner_query::explain(backend, terms.thread.bucket(), &about).await;
    let is_running =
        explained.is_some_and(|explained| explained.active.is_some_and(|active| active.turn == *turn));
    Responses::under_way(terms, is_running)
}

/// When the turn was opened. The id of a turn without an idempotency key contains the time (a UUID
/// of version 7). For other turns the time is unknown: 0.
fn opened_at(turn: &TurnId) -> Timestamp {
    let unique = turn.as_str().split_once('-').map(|(_, unique)| unique).unwrap_or_default();
    let id = Uuid::try_parse(unique).ok().filter(|id| id.get_version_num() == 7);
    let time = id.and_then(|id| id.get_timestamp());
    Timestamp(time.map_or(0, |time| {
        let (seconds, nanos) = time.to_unix();
        i64::try_from(seconds).unwrap_or(0) * 1_000 + i64::from(nanos) / 1_000_000
    }))
}

fn response_example() -> Value {
    json!({
        "id": "resp_u01f3-0198c4d2e5f5-a", "object": "response", "created_at": 1_795_348_184,
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
