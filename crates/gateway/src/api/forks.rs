//! Copies of threads.

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_server::error::{ErrorCode, Problem};
use http_server::extract::body::{JsonBody, MaxBodySize};
use http_server::extract::path::PathParam;
use http_server::extract::query;
use model::Position;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::respond::json_no_store;
use crate::api::schemas;
use crate::app::request_context::RequestContext;
use crate::commands::{control, submit};

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
    let unknown = || Problem::new(ErrorCode::UnknownThread, "nothing is stored of this thread");
    store.thread(&thread).await?.ok_or_else(unknown)?;
    submit::refuse_erased(backend, &new).await?;
    if let Some(at) = at
        && store.batches(&thread, &[at]).await?.is_empty()
    {
        return Err(Problem::new(ErrorCode::UnknownBatch, "there is no such batch in this thread"));
    }
    let through = at.unwrap_or(Position::MAX);
    let copied = store.fork(&thread, &new, through, &control::new_id()?, &actor).await?;
    let detail = "there is a thread of that id, and it is another one";
    let message_count = copied.ok_or_else(|| Problem::new(ErrorCode::ThreadExists, detail))?;
    let (thread_id, forked_from) = (new.name().to_owned(), thread.name().to_owned());
    let place = [(header::LOCATION, format!("/v1/threads/{thread_id}"))];
    let forked = ForkedThread { thread_id, forked_from, at, message_count };
    Ok((StatusCode::CREATED, place, json_no_store(forked)).into_response())
}
