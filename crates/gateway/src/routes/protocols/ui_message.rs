//! The UI message stream of Vercel's AI SDK.

use adapters::UiMessage;
use adapters::ui_message::{Request, error_body};
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use model::ActKind;

use super::{Trouble, active, answered, find, key, open, stream};
use crate::acts;
use crate::body::{Empty, Raw};
use crate::params::{self, Params};
use crate::routes::{Connection, Desk, thread_id};
use crate::standing::Input;

pub(in crate::routes) async fn post(
    State(desk): State<Desk>,
    Extension(connection): Extension<Connection>,
    headers: HeaderMap,
    Raw(body): Raw,
) -> Response {
    answered(say(&desk, connection, &headers, &body).await, error_body)
}

async fn say(
    desk: &Desk,
    connection: Connection,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Response, Trouble> {
    let request = Request::parse(body)?;
    let input = Input {
        thread: request.thread,
        agent: None,
        policy: None,
        content: request.text,
        metadata: request.metadata,
        key: params::idempotency_key(headers)?.or_else(|| key("ui", request.input_id.as_deref())),
        correlation_id: params::correlation_id(headers)?,
    };
    let (_, message, answer) = open(desk, connection, &input).await?;
    Ok(stream(UiMessage::new(message.clone()), message, answer))
}

/// The answer under way, from its beginning; 204 when there is none.
pub(in crate::routes) async fn resume(
    State(desk): State<Desk>,
    Extension(connection): Extension<Connection>,
    Params(thread): Params<String>,
) -> Response {
    let outcome = async {
        let thread = thread_id(&thread)?;
        let Some((_, message)) = active(desk.hub()?, &thread).await? else {
            return Ok(StatusCode::NO_CONTENT.into_response());
        };
        let answer = find(&desk, connection, &thread, &message).await?;
        Ok(stream(UiMessage::new(message.clone()), message, answer))
    };
    answered(outcome.await, error_body)
}

pub(in crate::routes) async fn stop(
    State(desk): State<Desk>,
    Params(thread): Params<String>,
    headers: HeaderMap,
    _: Empty,
) -> Response {
    let outcome = async {
        let (thread, actor, hub) = (thread_id(&thread)?, params::actor(&headers)?, desk.hub()?);
        let Some((turn, _)) = active(hub, &thread).await? else {
            return Ok(StatusCode::NO_CONTENT.into_response());
        };
        let acted = acts::perform(hub, actor, thread.agent(), ActKind::StopTurn(turn)).await?;
        Ok(acted.into_response())
    };
    answered(outcome.await, error_body)
}
