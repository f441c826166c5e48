//! AG-UI.

use axum::extract::Extension;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use batches::Item;
use http_server::error::{ErrorCode, Problem};
use http_server::transport::extensions::ConnectionHandle;
use model::{MessageId, Metadata, Position, QueryTarget, Role, ThreadId, TurnId};
use protocols::agui::{AgUiMessage, AgUiRequest, error_body};
use protocols::ui_message::CLIENT_MESSAGE_ID;
use protocols::{AgUi, RequestBody};
use serde_json::Value;
use store::{Range, StoredMessage};

use crate::api::client_headers;
use crate::api::history;
use crate::api::history::PagePlace;
use crate::api::pending_inputs::PendingInputs;
use crate::api::protocols::{
    ProtocolRequest, Repeats, TurnAnswer, active, client_idempotency_key, enter, last, open, posted,
    resume_answer, stream, with_client_id,
};
use crate::api::views;
use crate::app::request_context::RequestContext;
use crate::backend::Backend;
use crate::commands::owner_query;
use crate::commands::submit::{Input, Submission};
use crate::commands::validate::TurnParameters;
use crate::openapi::error_codes::STREAM;
use crate::openapi::events::Stream;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::response::ResponseSpec;
use crate::openapi::tags::AG_UI;
use crate::streaming::store_reads;

pub(crate) fn operations() -> Vec<Operation> {
    let all = [
        Operation::post("/agui", "runAgent", "Send a message and receive the run", post)
            .opens()
            .reads(RequestBody::Run)
            .streams("The run", Stream::AgUi),
        Operation::post(
            "/agui/connect",
            "connectAgent",
            "Stream the run in progress, or the last one, from its beginning",
            connect,
        )
        .scope(Scope::ReadThreads)
        .input_headers()
        .reads(RequestBody::Connect)
        .streams("The run", Stream::AgUi)
        .response_with(ResponseSpec::nothing("None"))
        .errors(&STREAM)
        .errors(&[ErrorCode::PartitionUnavailable]),
    ];
    all.map(|operation| operation.tag(AG_UI)).into()
}

pub(crate) async fn post(
    ctx: RequestContext,
    Extension(connection): Extension<ConnectionHandle>,
    request: axum::extract::Request,
) -> Response {
    posted(ctx, connection, request, say, error_body).await
}

async fn say(posted: ProtocolRequest) -> Result<Response, Problem> {
    let ProtocolRequest { ctx, connection, key, options, headers, body } = posted;
    let request = AgUiRequest::parse(&body, ctx.tenant())?;
    let metadata = Metadata::EMPTY.with_author(request.author.as_ref());
    let input = Input {
        user: client_headers::user(&ctx, &headers)?,
        metadata: with_client_id(metadata, request.input_id.as_deref()),
        parameters: TurnParameters::new(request.wanted)?,
        key: key.or_else(|| client_idempotency_key("agui", Some(&request.run))),
        options,
        ..Input::new(request.thread.clone(), request.text)
    };
    let (message, answer) = open(&ctx, connection, &input).await?;
    Ok(stream(AgUi::new(request.thread, request.run, message.clone()), message, answer))
}

pub(crate) async fn connect(
    ctx: RequestContext,
    Extension(connection): Extension<ConnectionHandle>,
    request: axum::extract::Request,
) -> Response {
    posted(ctx, connection, request, follow, error_body).await
}

/// The answer of the run. If that run is unknown: the answer in progress, or the last one of the
/// thread, from its beginning; 204 when there is none.
async fn follow(posted: ProtocolRequest) -> Result<Response, Problem> {
    let ProtocolRequest { ctx, connection, body, .. } = posted;
    let (thread, run) = AgUiRequest::parse_connect(&body, ctx.tenant())?;
    let backend = ctx.backend()?;
    let connection = connection.reading();
    let found = match named(&ctx, connection.clone(), &thread, &run).await? {
        Some(found) => Some(found),
        None => match active(backend, &thread).await? {
            Some(message) => {
                let answer = resume_answer(&ctx, connection, &thread, &message).await?;
                Some((message, answer))
            }
            None => last::answer(backend, &thread).await?.map(|last| (last.message, last.answer)),
        },
    };
    let Some((message, answer)) = found else { return Ok(StatusCode::NO_CONTENT.into_response()) };
    let before = before(&ctx, &thread, &message).await?;
    Ok(stream(AgUi::connected(thread, run, message.clone(), Some(before)), message, answer))
}

/// The last messages of the thread before an answer, with the question that it answers.
async fn before(
    ctx: &RequestContext,
    thread: &ThreadId,
    answer: &MessageId,
) -> Result<Vec<AgUiMessage>, Problem> {
    let backend = ctx.backend()?;
    let pending = Some(PendingInputs::read(backend, thread).await);
    // The named run may be an earlier one.
    let end = backend.store().end_of(thread, answer).await?;
    let range = Range { after: None, before: Some(end.unwrap_or(Position::MAX)), with_synthetic: false };
    let page = PagePlace { next: None, limit: Some(MAX_SNAPSHOT.to_string()) };
    let (mut rows, _, _, pending) = history::read(ctx, thread, range, page, false, pending).await?;
    views::withhold(&mut rows);
    // The input of a failed turn is in no history.
    let unanswered = TurnId::of_answer(answer).map(|(turn, _)| turn);
    let unanswered = unanswered.filter(|turn| rows.iter().all(|row| row.message_id != turn.input()));
    let is_of_answer = |row: &StoredMessage| match row.role {
        Role::User | Role::System => false,
        Role::Assistant | Role::Tool => store_reads::answer_of(&row.message_id) == *answer,
    };
    let mut messages: Vec<AgUiMessage> =
        rows.into_iter().take_while(|row| !is_of_answer(row)).map(message).collect();
    let question = pending.iter().flat_map(PendingInputs::inputs).find(|input| input.answer() == *answer);
    if let Some(input) = question {
        let id = client_id(&input.metadata).unwrap_or_else(|| input.turn.input().as_str().to_owned());
        messages.push(AgUiMessage::User { id, content: input.content.clone() });
    } else if let Some(turn) = unanswered
        && let Some(content) = backend.store().input_of_turn(thread, &turn).await?
    {
        messages.push(AgUiMessage::User { id: turn.input().as_str().to_owned(), content });
    }
    Ok(messages)
}

/// Messages of a snapshot, at most. Older ones are in the history.
const MAX_SNAPSHOT: u32 = 200;

fn message(row: StoredMessage) -> AgUiMessage {
    let Item { message_id, role, content, tool_calls, tool_call_id, metadata, .. } = row.into();
    let id = message_id.as_str().to_owned();
    match role {
        Role::User => AgUiMessage::User { id: client_id(&metadata).unwrap_or(id), content },
        Role::System => AgUiMessage::System { id, content },
        Role::Assistant => {
            let answer = store_reads::answer_of(&message_id);
            AgUiMessage::assistant(id, &answer, content, tool_calls.as_ref())
        }
        Role::Tool => {
            let answer = store_reads::answer_of(&message_id);
            AgUiMessage::result(id, &answer, tool_call_id.as_deref().unwrap_or_default(), content)
        }
    }
}

/// The client's own id of its message.
fn client_id(metadata: &Metadata) -> Option<String> {
    metadata.get(CLIENT_MESSAGE_ID).and_then(Value::as_str).map(str::to_owned)
}

/// The answer of the turn that a run opened. Returning clients send the id of the run that they
/// began, or a new id for the connection, which has no turn.
async fn named(
    ctx: &RequestContext,
    connection: ConnectionHandle,
    thread: &ThreadId,
    run: &str,
) -> Result<Option<(MessageId, TurnAnswer)>, Problem> {
    let Some(key) = client_idempotency_key("agui", Some(run)) else { return Ok(None) };
    let backend = ctx.backend()?;
    let Some(claim) = backend.store().key_claim(thread, &key).await? else { return Ok(None) };
    let mut state = backend.store().turn_state(thread, &claim.turn).await?;
    if state.is_none() && !is_known(backend, thread, &claim.turn).await? {
        // The turn has ended in the meantime, or its gateway died before the turn began.
        state = backend.store().turn_state(thread, &claim.turn).await?;
        if state.is_none() {
            return Ok(None);
        }
    }
    let known = Submission::Duplicate(claim.turn, state);
    enter(ctx, connection.into(), thread, known, Repeats::Same).await.map(Some)
}

/// Whether a turn that is not in the store is in progress or waits.
async fn is_known(backend: &Backend, thread: &ThreadId, turn: &TurnId) -> Result<bool, Problem> {
    let about = QueryTarget::Thread(thread.clone());
    let explained = owner_query::explain_up_to_date(backend, thread, &about).await?;
    Ok(owner_query::has_turn(&explained, turn))
}
