//! AG-UI.

use adapters::AgUi;
use adapters::agui::{Request, error_body};
use axum::extract::Extension;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use model::{MessageId, Metadata, ThreadId};
use store::RunFailure;

use super::{Answer, Posted, Trouble, active, find, open, own_key, posted, stream};
use crate::desk::Desk;
use crate::hub::Hub;
use crate::reads;
use crate::routes::Connection;
use crate::standing::Input;

/// Failed turns that are looked at for the last one.
const MOST_FAILED: u32 = 200;

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
        thread: request.thread.clone(),
        agent: None,
        policy: None,
        content: request.text,
        metadata: Metadata::EMPTY,
        key: key.or_else(|| own_key("agui", Some(&request.run))),
        correlation_id,
    };
    let (message, answer) = open(&desk, connection, &input).await?;
    Ok(stream(AgUi::new(request.thread, request.run, message.clone()), message, answer))
}

pub(in crate::routes) async fn connect(
    desk: Desk,
    Extension(connection): Extension<Connection>,
    request: axum::extract::Request,
) -> Response {
    posted(desk, connection, request, follow, error_body).await
}

/// The answer under way, or the last one of the thread, from its beginning; 204 when there is none.
async fn follow(posted: Posted) -> Result<Response, Trouble> {
    let Posted { desk, connection, body, .. } = posted;
    let (thread, run) = Request::parse_connect(&body, desk.tenant())?;
    let hub = desk.hub()?;
    let found = match active(hub, &thread).await? {
        Some((_, message)) => {
            let answer = find(&desk, connection, &thread, &message).await?;
            Some((message, answer))
        }
        None => last(hub, &thread).await?,
    };
    let Some((message, answer)) = found else { return Ok(StatusCode::NO_CONTENT.into_response()) };
    Ok(stream(AgUi::new(thread, run, message.clone()), message, answer))
}

/// What the last turn with a person has left behind: an answer, or a failure.
async fn last(hub: &Hub, thread: &ThreadId) -> Result<Option<(MessageId, Answer)>, Trouble> {
    let store = hub.store();
    let answered = store.last_answer(thread).await?;
    let failed = store.failed_turns(thread, None, MOST_FAILED).await?.unwrap_or_default();
    let failed = failed.into_iter().max_by_key(|failed| failed.failed_at);
    if let Some(failed) =
        failed.filter(|failed| answered.as_ref().is_none_or(|(_, at)| failed.failed_at > *at))
    {
        let message = failed.opened.turn.answer(failed.opened.run);
        let (code, text, is_retryable) = (failed.code, failed.text, failed.is_retryable);
        return Ok(Some((message, Answer::of_failure(RunFailure { code, text, is_retryable }))));
    }
    let Some((message, _)) = answered else { return Ok(None) };
    let stored = reads::answer(store, thread, &message).await?;
    Ok(stored.map(|stored| (message, Answer::Stored(stored))))
}
