//! AG-UI.

use adapters::AgUi;
use adapters::agui::{Request, error_body};
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use model::Metadata;

use super::{Trouble, active, answered, find, key, open, stream};
use crate::body::Raw;
use crate::params;
use crate::routes::{Connection, Desk};
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
        thread: request.thread.clone(),
        agent: None,
        policy: None,
        content: request.text,
        metadata: Metadata::EMPTY,
        key: params::idempotency_key(headers)?.or_else(|| key("agui", Some(&request.run))),
        correlation_id: params::correlation_id(headers)?,
    };
    let (_, message, answer) = open(desk, connection, &input).await?;
    Ok(stream(AgUi::new(request.thread, request.run, message.clone()), message, answer))
}

/// The answer under way, or the last one of the thread, from its beginning; 204 when there is none.
pub(in crate::routes) async fn connect(
    State(desk): State<Desk>,
    Extension(connection): Extension<Connection>,
    Raw(body): Raw,
) -> Response {
    let outcome = async {
        let (thread, run) = Request::parse_connect(&body)?;
        let hub = desk.hub()?;
        let message = match active(hub, &thread).await? {
            Some((_, message)) => Some(message),
            None => hub.store().last_answer(&thread).await?,
        };
        let Some(message) = message else { return Ok(StatusCode::NO_CONTENT.into_response()) };
        let answer = find(&desk, connection, &thread, &message).await?;
        Ok(stream(AgUi::new(thread, run, message.clone()), message, answer))
    };
    answered(outcome.await, error_body)
}
