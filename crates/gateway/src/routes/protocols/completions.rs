//! OpenAI's chat completions.

use adapters::ChatCompletions;
use adapters::chat_completions::{Request, Terms, ToolCalls, error_body};
use axum::extract::Extension;
use axum::http::HeaderMap;
use axum::response::Response;
use model::ThreadId;

use super::{Posted, Trouble, failed, json, new_thread, open, posted, stream, whole};
use crate::desk::Desk;
use crate::problem::Problem;
use crate::routes::Connection;
use crate::standing::Input;

/// Names the thread of a completion, as `metadata.thread_id` does.
const THREAD: &str = "x-antiphon-thread";

pub(in crate::routes) async fn post(
    desk: Desk,
    Extension(connection): Extension<Connection>,
    request: axum::extract::Request,
) -> Response {
    posted(desk, connection, request, complete, error_body).await
}

async fn complete(posted: Posted) -> Result<Response, Trouble> {
    let Posted { desk, connection, key, correlation_id, headers, body } = posted;
    let request = Request::parse(&body, named(&desk, &headers)?, desk.tenant())?;
    let hub = desk.hub()?;
    let thread = request.thread.map_or_else(|| new_thread(&desk, key.as_deref()), Ok)?;
    let input = Input {
        thread: thread.clone(),
        agent: Some(request.agent.clone()),
        policy: None,
        content: request.text,
        metadata: request.metadata,
        key,
        correlation_id,
    };
    let (message, answer) = open(&desk, connection, &input).await?;
    let terms = Terms {
        message: message.clone(),
        model: request.agent.name().to_owned(),
        created_at: hub.context().now(),
        include_usage: request.include_usage,
        // They were made here; the helpers of some libraries would make them again.
        tool_calls: ToolCalls::Hidden,
    };
    let mut response = if request.stream {
        stream(ChatCompletions::new(terms), message, answer)
    } else {
        match whole(ChatCompletions::new(terms), message, answer).await?.object() {
            Some(Ok(object)) => json(object),
            Some(Err(failure)) => failed(failure, error_body),
            None => return Err(Problem::unavailable("stream_cut", "the answer goes on").into()),
        }
    };
    if let Ok(thread) = thread.name().parse() {
        response.headers_mut().insert(THREAD, thread);
    }
    Ok(response)
}

fn named(desk: &Desk, headers: &HeaderMap) -> Result<Option<ThreadId>, Problem> {
    let Some(value) = headers.get(THREAD) else { return Ok(None) };
    let text = value.to_str().map_err(|_| Problem::bad_request("invalid_id", "the thread is not ASCII"))?;
    desk.thread(text).map(Some)
}
