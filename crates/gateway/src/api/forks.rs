//! Copies of threads.

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_server::error::{ErrorCode, Problem};
use http_server::extract::body::{JsonBody, MaxBodySize};
use http_server::extract::path::PathParam;
use http_server::extract::query;
use model::{Position, ThreadId};
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::Store;
use utoipa::ToSchema;

use crate::api::respond::json_no_store;
use crate::app::request_context::RequestContext;
use crate::backend::Backend;
use crate::commands::{control, submit};
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::schemas;
use crate::openapi::tags::THREADS;

pub(crate) fn operations() -> Vec<Operation> {
    let place = || json!({ "type": "string", "format": "uri-reference" });
    vec![
        Operation::post("/v1/threads/{thread}/fork", "forkThread", "Fork a thread: copy all of it, or up to a batch", create)
            .tag(THREADS)
            .description("Copies complete batches, with the compactions in effect at that point. The original is unchanged.")
            .scope(Scope::WriteThreads)
            .actor_header()
            .body::<ForkBody>(json!({ "thread_id": "hello-2", "at": "7524873984012345344" }))
            .response::<ForkedThread>(
                201,
                "The copy",
                json!({ "thread_id": "hello-2", "forked_from": "hello", "at": "7524873984012345344", "message_count": 2 }),
            )
            .with_header("Location", "The URL of the thread.", place())
            .errors(&[ErrorCode::UnknownThread, ErrorCode::UnknownBatch, ErrorCode::InvalidPosition, ErrorCode::ThreadExists, ErrorCode::ThreadErased]),
    ]
}

/// A request to copy a thread.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForkBody {
    /// The id of the new thread.
    #[schema(value_type = schemas::ThreadIdSchema)]
    thread_id: String,
    /// The last batch to copy; default: all batches.
    #[schema(value_type = Option<schemas::PositionSchema>)]
    at: Option<String>,
}

impl MaxBodySize for ForkBody {
    const MAX_BYTES: usize = 4 << 10;
}

/// The copy of a thread.
#[derive(Serialize, ToSchema)]
pub(crate) struct ForkedThread {
    #[schema(value_type = schemas::ThreadIdSchema)]
    thread_id: String,
    #[schema(value_type = schemas::ThreadIdSchema)]
    forked_from: String,
    #[schema(value_type = Option<schemas::PositionSchema>, required)]
    at: Option<Position>,
    /// Number of copied messages.
    message_count: u64,
}

pub(crate) async fn create(
    ctx: RequestContext,
    PathParam(thread): PathParam<String>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<ForkBody>,
) -> Result<Response, Problem> {
    let (thread, new) = (ctx.thread(&thread)?, ctx.thread_in("thread_id", &body.thread_id)?);
    let (actor, at) = (ctx.actor(&headers)?, query::position("at", body.at)?);
    let (backend, store) = (ctx.backend()?, ctx.store()?);
    check_exists(store, &thread).await?;
    submit::refuse_erased(backend, &new).await?;
    if let Some(at) = at
        && store.batches(&thread, &[at]).await?.is_empty()
    {
        return Err(Problem::new(ErrorCode::UnknownBatch, "there is no such batch in this thread"));
    }
    let through = at.unwrap_or(Position::MAX);
    let copied = store.fork(&thread, &new, through, &control::new_id()?, &actor).await?;
    let Some(message_count) = copied else { return Err(why_not_copied(backend, &thread, &new).await?) };
    let (thread_id, forked_from) = (new.name().to_owned(), thread.name().to_owned());
    let place = [(header::LOCATION, format!("/v1/threads/{thread_id}"))];
    let forked = ForkedThread { thread_id, forked_from, at, message_count };
    Ok((StatusCode::CREATED, place, json_no_store(forked)).into_response())
}

async fn check_exists(store: &Store, thread: &ThreadId) -> Result<(), Problem> {
    let unknown = || Problem::new(ErrorCode::UnknownThread, "nothing is stored of this thread");
    store.thread(thread).await?.map(drop).ok_or_else(unknown)
}

/// The reason why the store has not copied the thread: one of the two was erased meanwhile, or the
/// new one exists.
async fn why_not_copied(backend: &Backend, thread: &ThreadId, new: &ThreadId) -> Result<Problem, Problem> {
    submit::refuse_erased(backend, new).await?;
    submit::refuse_erased(backend, thread).await?;
    check_exists(backend.store(), thread).await?;
    Ok(Problem::new(ErrorCode::ThreadExists, "there is a thread of that id, and it is another one"))
}
