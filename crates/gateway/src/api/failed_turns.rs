//! Failed turns, whose inputs are kept.

use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use http_server::error::{ErrorCode, Problem};
use http_server::extract::body::EmptyBody;
use http_server::extract::path;
use http_server::extract::path::PathParam;
use http_server::extract::query;
use http_server::extract::query::QueryParams;
use model::{ControlKind, TurnId, TurnOpened};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::FailedTurnRow;
use utoipa::{IntoParams, ToSchema};

use crate::api::messages::Accepted;
use crate::api::respond::json_no_store;
use crate::api::threads;
use crate::api::turns::turn_id;
use crate::api::views;
use crate::app::request_context::RequestContext;
use crate::commands::{control, publish};
use crate::openapi::error_codes::{INPUT, PUBLISH};
use crate::openapi::examples::accepted_example;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::schemas;
use crate::openapi::tags::TURNS;

pub(crate) fn operations() -> Vec<Operation> {
    let failed = "/v1/threads/{thread}/failed-turns";
    vec![
        Operation::get(failed, "listFailedTurns", "List failed turns with their inputs", list)
            .tag(TURNS)
            .scope(Scope::ReadThreads)
            .query::<FailedQuery>()
            .response::<FailedTurnsPage>(200, "Failed turns, ordered by id", failed_turns_example())
            .errors(&[ErrorCode::UnknownThread, ErrorCode::PartitionUnavailable, ErrorCode::InvalidLimit]),
        Operation::post(
            "/v1/threads/{thread}/failed-turns/{turn}/retry",
            "retryFailedTurn",
            "Retry a failed turn",
            retry,
        )
        .tag(TURNS)
        .scope(Scope::OperateAgents)
        .actor_header()
        .no_body()
        .response::<Accepted>(202, "The next run is in progress or pending", accepted_example())
        .errors(&PUBLISH)
        .errors(&INPUT)
        .errors(&[ErrorCode::UnknownFailedTurn]),
        Operation::delete(
            "/v1/threads/{thread}/failed-turns/{turn}",
            "dropFailedTurn",
            "Drop a failed turn",
            delete,
        )
        .tag(TURNS)
        .scope(Scope::OperateAgents)
        .actor_header()
        .no_body()
        .acts()
        .errors(&[ErrorCode::UnknownFailedTurn]),
    ]
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct FailedQuery {
    /// `next` of the previous page.
    #[param(value_type = Option<schemas::TurnIdSchema>)]
    next: Option<String>,
    #[param(value_type = Option<schemas::Limit>)]
    limit: Option<String>,
}

/// A page of a thread's failed turns, ordered by id.
#[derive(Serialize, ToSchema)]
pub(crate) struct FailedTurnsPage {
    #[schema(value_type = schemas::ThreadIdSchema)]
    thread_id: String,
    failed_turns: Vec<FailedTurn>,
    #[schema(value_type = schemas::NextPage, required)]
    next: Option<String>,
}

/// A turn that failed, with its input.
#[derive(Serialize, ToSchema)]
pub(crate) struct FailedTurn {
    #[schema(value_type = schemas::TurnIdSchema)]
    turn_id: String,
    #[schema(value_type = schemas::AgentIdSchema)]
    agent_id: String,
    /// Number of the run that failed, from 0.
    run: u32,
    /// The id that the answer of this run would have had.
    #[schema(value_type = schemas::MessageIdSchema)]
    message_id: String,
    content: String,
    #[schema(value_type = Object)]
    metadata: Value,
    /// The failure as a code.
    code: String,
    /// The failure as readable text.
    message: String,
    /// Whether another try may succeed.
    retryable: bool,
    /// The text of the answer as far as it had come; it is in no history.
    partial: String,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    failed_at: Option<String>,
}

fn unknown() -> Problem {
    Problem::from(ErrorCode::UnknownFailedTurn)
}

pub(crate) async fn list(
    ctx: RequestContext,
    PathParam(thread): PathParam<String>,
    QueryParams(query): QueryParams<FailedQuery>,
) -> Result<Response, Problem> {
    let thread = ctx.thread(&thread)?;
    let after = query.next.map(|id| path::id("next", &id, TurnId::parse)).transpose()?;
    let limit = query::limit(query.limit.as_deref())?;
    let failed = ctx.store()?.failed_turns(&thread, after.as_ref(), limit + 1).await?;
    let mut failed = match failed {
        Some(failed) => failed,
        None => threads::check_begun(ctx.backend()?, &thread).await.map(|()| Vec::new())?,
    };
    let next = query::next(&mut failed, limit, |last| last.opened.turn.as_str().to_owned());
    let failed_turns = failed.into_iter().map(FailedTurn::from).collect();
    Ok(json_no_store(FailedTurnsPage { thread_id: thread.name().to_owned(), failed_turns, next }))
}

/// Opens the turn again as its next run. A repeated request yields the same run.
pub(crate) async fn retry(
    ctx: RequestContext,
    PathParam((thread, turn)): PathParam<(String, String)>,
    headers: HeaderMap,
    _: EmptyBody,
) -> Result<Response, Problem> {
    let (thread, turn, actor) = (ctx.thread(&thread)?, turn_id(&turn)?, ctx.actor(&headers)?);
    let backend = ctx.backend()?;
    let row = backend.store().failed_turn(&thread, &turn).await?.ok_or_else(unknown)?;
    let opened = TurnOpened { run: row.opened.run + 1, actor: Some(actor.into()), ..row.opened };
    publish::publish_turn(backend, &opened).await?;
    let accepted = Accepted::new(&thread, &turn, opened.run);
    Ok((StatusCode::ACCEPTED, json_no_store(accepted)).into_response())
}

pub(crate) async fn delete(
    ctx: RequestContext,
    PathParam((thread, turn)): PathParam<(String, String)>,
    headers: HeaderMap,
    _: EmptyBody,
) -> Result<Response, Problem> {
    let (thread, turn, actor) = (ctx.thread(&thread)?, turn_id(&turn)?, ctx.actor(&headers)?);
    let backend = ctx.backend()?;
    backend.store().failed_turn(&thread, &turn).await?.ok_or_else(unknown)?;
    let acted = control::execute(backend, actor, thread.agent(), ControlKind::DropFailedTurn(turn)).await?;
    Ok(acted.into_response())
}

impl From<FailedTurnRow> for FailedTurn {
    fn from(row: FailedTurnRow) -> Self {
        let opened = row.opened;
        let metadata = opened.input_metadata().to_value();
        Self {
            turn_id: opened.turn.as_str().to_owned(),
            agent_id: opened.agent.name().to_owned(),
            run: opened.run,
            message_id: opened.turn.answer(opened.run).as_str().to_owned(),
            content: opened.content,
            metadata,
            code: row.code,
            message: row.text,
            retryable: row.is_retryable,
            partial: row.partial,
            failed_at: views::rfc3339(row.failed_at),
        }
    }
}

fn failed_turns_example() -> Value {
    let failed = json!({
        "turn_id": "u01f3-0198c4d2e5f5", "agent_id": "ann", "run": 0,
        "message_id": "u01f3-0198c4d2e5f5-a", "content": "How is the weather?", "metadata": {},
        "code": "deadline", "message": "the workflow made no progress within its deadline", "retryable": true, "partial": "Sun",
        "failed_at": "2026-11-22T11:49:44.123Z",
    });
    json!({ "thread_id": "hello", "failed_turns": [failed], "next": null })
}
