//! The UI message stream of Vercel's AI SDK.

use adapters::UiMessage;
use adapters::ui_message::{Request, error_body};
use axum::extract::Extension;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use model::ActKind;

use super::{Posted, Trouble, active, answered, find, open, own_key, posted, stream};
use crate::acts;
use crate::body::Empty;
use crate::desk::Desk;
use crate::params::Params;
use crate::routes::Connection;
use crate::standing::Input;

pub(in crate::routes) async fn post(
    desk: Desk,
    Extension(connection): Extension<Connection>,
    request: axum::extract::Request,
) -> Response {
    posted(desk, connection, request, say, error_body).await
}

async fn say(posted: Posted) -> Result<Response, Trouble> {
    let Posted { desk, connection, key, correlation_id, body, .. } = posted;
    let request = Request::parse(&body, desk.tenant())?;
    let input = Input {
        thread: request.thread,
        agent: None,
        policy: None,
        content: request.text,
        metadata: request.metadata,
        key: key.or_else(|| own_key("ui", request.input_id.as_deref())),
        correlation_id,
    };
    let (message, answer) = open(&desk, connection, &input).await?;
    Ok(stream(UiMessage::new(message.clone()), message, answer))
}

/// The answer under way, from its beginning; 204 when there is none.
pub(in crate::routes) async fn resume(
    desk: Desk,
    Extension(connection): Extension<Connection>,
    Params(thread): Params<String>,
) -> Response {
    let outcome = async {
        let thread = desk.thread(&thread)?;
        let Some((_, message)) = active(desk.hub()?, &thread).await? else {
            return Ok(StatusCode::NO_CONTENT.into_response());
        };
        let answer = find(&desk, connection, &thread, &message).await?;
        Ok(stream(UiMessage::new(message.clone()), message, answer))
    };
    answered(outcome.await, error_body)
}

pub(in crate::routes) async fn stop(
    desk: Desk,
    Params(thread): Params<String>,
    headers: HeaderMap,
    _: Empty,
) -> Response {
    let outcome = async {
        let (thread, actor, hub) = (desk.thread(&thread)?, desk.actor(&headers)?, desk.hub()?);
        let Some((turn, _)) = active(hub, &thread).await? else {
            return Ok(StatusCode::NO_CONTENT.into_response());
        };
        let acted = acts::perform(hub, actor, thread.agent(), ActKind::StopTurn(turn)).await?;
        Ok(acted.into_response())
    };
    answered(outcome.await, error_body)
}
