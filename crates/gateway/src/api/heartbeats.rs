//! Heartbeats: batches that continue because a client requests it.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use batches::BatchState;
use http_server::error::{ErrorCode, Problem};
use http_server::extract::body::{JsonBody, MaxBodySize};
use http_server::extract::path;
use http_server::extract::path::PathParam;
use http_server::extract::query;
use model::{CommandId, Position, QueryTarget, ThreadId, TurnId};
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest, Sha256};
use store::TurnState;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::api::messages::Accepted;
use crate::api::respond::json_no_store;
use crate::app::request_context::RequestContext;
use crate::commands::{digest_name, owner_query, publish, submit};
use crate::openapi::error_codes::PUBLISH;
use crate::openapi::examples::accepted_example;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::schemas;
use crate::openapi::tags::THREADS;

pub(crate) fn operations() -> Vec<Operation> {
    vec![
        Operation::post(
            "/v1/threads/{thread}/batches/{batch}/continue",
            "continueBatch",
            "Continue a batch",
            send,
        )
        .tag(THREADS)
        .description(
            "Opens a turn that continues the batch, as an answer with `continuation: true` does. The batch must be complete and the last of its thread, without a turn in progress or pending.",
        )
        .scope(Scope::WriteThreads)
        .body::<HeartbeatBody>(json!({ "request_id": "r-1" }))
        .response::<Accepted>(202, "The turn is in progress or pending", accepted_example())
        .errors(&PUBLISH)
        .errors(&[
            ErrorCode::UnknownBatch,
            ErrorCode::TurnDropped, ErrorCode::BatchNotLast,
            ErrorCode::BatchOpen,
            ErrorCode::BatchIncomplete,
            ErrorCode::InvalidPosition,
            ErrorCode::PartitionUnavailable,
            ErrorCode::AgentBackingOff,
            ErrorCode::BudgetExceeded,
            ErrorCode::ThreadErased,
        ]),
    ]
}

/// A request to continue a batch.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HeartbeatBody {
    /// An id of the request: a repeated request with the same id and batch yields the same
    /// continuation and its first response. Generated when absent.
    #[schema(value_type = Option<schemas::RequestIdSchema>)]
    request_id: Option<String>,
}

impl MaxBodySize for HeartbeatBody {
    const MAX_BYTES: usize = 1 << 10;
}

/// Opens a turn that continues the batch.
pub(crate) async fn send(
    ctx: RequestContext,
    PathParam((thread, batch)): PathParam<(String, String)>,
    JsonBody(body): JsonBody<HeartbeatBody>,
) -> Result<Response, Problem> {
    let (thread, backend) = (ctx.thread(&thread)?, ctx.backend()?);
    let batch = query::position("batch", Some(batch))?.ok_or_else(unknown)?;
    let request = body.request_id.unwrap_or_else(|| Uuid::now_v7().simple().to_string());
    let request = path::id("request_id", &request, CommandId::parse)?;
    let turn = turn_of(&thread, batch, &request)?;
    let accepted = |run| {
        let accepted = json_no_store(Accepted::new(&thread, &turn, run));
        Ok((StatusCode::ACCEPTED, accepted).into_response())
    };
    let store = ctx.store()?;
    let row = store.thread(&thread).await?;
    let Some(row) = row else {
        submit::refuse_erased(backend, &thread).await?;
        return Err(unknown());
    };
    match store.turn_state(&thread, &turn).await? {
        Some(TurnState::Done { answer, .. }) => {
            return accepted(TurnId::of_answer(&answer).map_or(0, |(_, run)| run));
        }
        Some(TurnState::Failed { run } | TurnState::Open { run }) => return accepted(run),
        Some(TurnState::Dropped) => {
            let detail = "the turn of this continuation failed, and was dropped; send another request_id";
            return Err(Problem::new(ErrorCode::TurnDropped, detail));
        }
        None => {}
    }
    let about = QueryTarget::Thread(thread.clone());
    let status = owner_query::explain_up_to_date(backend, &thread, &about).await?;
    if owner_query::has_turn(&status, &turn) {
        return accepted(0);
    }
    if status.active.is_some() || !status.waiting.is_empty() {
        let detail = "a turn runs or waits in this thread, so its last batch is open";
        return Err(Problem::new(ErrorCode::BatchOpen, detail));
    }
    check_batch(&ctx, &thread, batch).await?;
    let opened = submit::heartbeat(backend, &thread, row.named.agent, turn.clone(), batch).await?;
    publish::publish_turn(backend, &opened).await?;
    accepted(0)
}

fn unknown() -> Problem {
    Problem::from(ErrorCode::UnknownBatch)
}

/// Checks that the batch is complete and the last of the thread.
async fn check_batch(ctx: &RequestContext, thread: &ThreadId, batch: Position) -> Result<(), Problem> {
    let store = ctx.store()?;
    let messages = store.batches(thread, &[batch]).await?;
    let found = batches::group(messages.into_iter().map(Into::into));
    let found = found.first().ok_or_else(unknown)?;
    let newest = store.batch_ids(thread, None, 1).await?.unwrap_or_default();
    if let Some(newest) = newest.first().filter(|newest| **newest != batch) {
        let detail = format!("batch {batch} is not the last of its thread, which is {newest}");
        return Err(Problem::new(ErrorCode::BatchNotLast, detail));
    }
    match found.state() {
        BatchState::Complete => Ok(()),
        BatchState::Incomplete(why) => {
            Err(Problem::new(ErrorCode::BatchIncomplete, format!("batch {batch} is incomplete: {why}")))
        }
    }
}

fn turn_of(thread: &ThreadId, batch: Position, request: &CommandId) -> Result<TurnId, Problem> {
    let name = digest_name(&Sha256::digest(format!("{thread}\0{batch}\0{request}")));
    TurnId::heartbeat(thread, &name).map_err(|error| Problem::new(ErrorCode::InvalidId, error.to_string()))
}
