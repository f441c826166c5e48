//! AG-UI.

use axum::extract::Extension;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use model::{MessageId, Metadata, ThreadId, TurnId};
use protocols::AgUi;
use protocols::agui::{Request, error_body};

use crate::api::protocols::{
    Answer, Posted, Trouble, active, enter, find, last, open, own_key, posted, stream,
};
use crate::app::request_context::Desk;
use crate::backend::Backend;
use crate::commands::owner_query;
use crate::commands::submit::{Input, Standing};
use crate::commands::validate::TurnParameters;
use crate::http::extensions::ConnectionHandle;

pub(crate) async fn post(
    desk: Desk,
    Extension(connection): Extension<ConnectionHandle>,
    request: axum::extract::Request,
) -> Response {
    posted(desk, connection, request, say, error_body).await
}

async fn say(posted: Posted) -> Result<Response, Trouble> {
    let Posted { desk, connection, key, correlation_id, body, .. } = posted;
    let request = Request::parse(&body, desk.tenant())?;
    let input = Input {
        thread: request.thread.clone(),
        agent: None,
        policy: None,
        content: request.text,
        metadata: Metadata::EMPTY,
        parameters: TurnParameters::new(request.wanted)?,
        key: key.or_else(|| own_key("agui", Some(&request.run))),
        correlation_id,
    };
    let (message, answer) = open(&desk, connection, &input).await?;
    Ok(stream(AgUi::new(request.thread, request.run, message.clone()), message, answer))
}

pub(crate) async fn connect(
    desk: Desk,
    Extension(connection): Extension<ConnectionHandle>,
    request: axum::extract::Request,
) -> Response {
    posted(desk, connection, request, follow, error_body).await
}

/// The answer of the run, or without one of this name that under way, or the last one of the thread, from its beginning; 204 when
/// there is none.
async fn follow(posted: Posted) -> Result<Response, Trouble> {
    let Posted { desk, connection, body, .. } = posted;
    let (thread, run) = Request::parse_connect(&body, desk.tenant())?;
    let backend = desk.backend()?;
    let found = match named(&desk, connection.clone(), &thread, &run).await? {
        Some(found) => Some(found),
        None => match active(backend, &thread).await? {
            Some((_, message)) => {
                let answer = find(&desk, connection, &thread, &message).await?;
                Some((message, answer))
            }
            None => last::answer(backend, &thread).await?.map(|last| (last.message, last.answer)),
        },
    };
    let Some((message, answer)) = found else { return Ok(StatusCode::NO_CONTENT.into_response()) };
    Ok(stream(AgUi::new(thread, run, message.clone()), message, answer))
}

/// The answer of the turn that a run has opened. Clients that come back name the run that they have begun, or make up a name for that
/// of the connection: of those there is no turn.
async fn named(
    desk: &Desk,
    connection: ConnectionHandle,
    thread: &ThreadId,
    run: &str,
) -> Result<Option<(MessageId, Answer)>, Trouble> {
    let Some(key) = own_key("agui", Some(run)) else { return Ok(None) };
    let backend = desk.backend()?;
    let Some(claim) = backend.store().key_claim(thread, &key).await? else { return Ok(None) };
    let mut state = backend.store().turn_state(thread, &claim.turn).await?;
    if state.is_none() && !is_known(backend, thread, &claim.turn).await? {
        // It has ended meanwhile, or its gateway died before it began.
        state = backend.store().turn_state(thread, &claim.turn).await?;
        if state.is_none() {
            return Ok(None);
        }
    }
    enter(desk, connection, thread, Standing::Known(claim.turn, state)).await.map(Some)
}

/// Whether a turn of which nothing is stored is under way, or waits.
async fn is_known(backend: &Backend, thread: &ThreadId, turn: &TurnId) -> Result<bool, Trouble> {
    let explained = owner_query::knows(backend, thread).await?;
    Ok(owner_query::has_turn(&explained, turn))
}
