//! AG-UI.

use axum::extract::Extension;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use http_server::error::{ErrorCode, Problem};
use http_server::transport::extensions::ConnectionHandle;
use model::{MessageId, Metadata, QueryTarget, ThreadId, TurnId};
use protocols::agui::{AgUiRequest, error_body};
use protocols::{AgUi, RequestBody};

use crate::api::protocols::{
    ProtocolRequest, Repeats, TurnAnswer, active, client_idempotency_key, enter, last, open, posted,
    resume_answer, stream,
};
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
    let ProtocolRequest { ctx, connection, key, options, body, .. } = posted;
    let request = AgUiRequest::parse(&body, ctx.tenant())?;
    let input = Input {
        thread: request.thread.clone(),
        agent: None,
        policy: None,
        content: request.text,
        metadata: Metadata::EMPTY,
        parameters: TurnParameters::new(request.wanted)?,
        key: key.or_else(|| client_idempotency_key("agui", Some(&request.run))),
        options,
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
    Ok(stream(AgUi::new(thread, run, message.clone()), message, answer))
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
