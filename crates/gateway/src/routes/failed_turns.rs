//! Turns that failed: their inputs are kept.

use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use model::{ActKind, TurnId, TurnOpened};
use serde::Deserialize;
use serde_json::{Value, json};
use store::FailedTurnRow;

use super::turns::turn_id;
use super::{fresh, messages, threads};
use crate::body::Empty;
use crate::desk::Desk;
use crate::params::{self, Asked, Params};
use crate::problem::Problem;
use crate::{acts, orders, shown};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FailedQuery {
    after: Option<String>,
    limit: Option<String>,
}

fn unknown() -> Problem {
    Problem::not_found("unknown_failed_turn", "there is no such failed turn in this thread")
}

pub(super) async fn page(
    desk: Desk,
    Params(thread): Params<String>,
    Asked(query): Asked<FailedQuery>,
) -> Result<Response, Problem> {
    let thread = desk.thread(&thread)?;
    let after = query.after.map(|id| params::id("after", &id, TurnId::parse)).transpose()?;
    let limit = params::limit(query.limit.as_deref())?;
    let failed = desk.store()?.failed_turns(&thread, after.as_ref(), limit + 1).await?;
    let mut failed = failed.ok_or_else(threads::unknown)?;
    let has_more = params::has_more(&mut failed, limit);
    let failed: Vec<_> = failed.iter().map(shown_turn).collect();
    Ok(fresh(json!({ "thread_id": thread.name(), "failed_turns": failed, "has_more": has_more })))
}

/// Opens the turn again as its next run. The same request again is the same run.
pub(super) async fn retry(
    desk: Desk,
    Params((thread, turn)): Params<(String, String)>,
    headers: HeaderMap,
    _: Empty,
) -> Result<Response, Problem> {
    let (thread, turn, actor) = (desk.thread(&thread)?, turn_id(&turn)?, desk.actor(&headers)?);
    let hub = desk.hub()?;
    let row = hub.store().failed_turn(&thread, &turn).await?.ok_or_else(unknown)?;
    let opened = TurnOpened { run: row.opened.run + 1, actor: Some(actor.into()), ..row.opened };
    orders::open_turn(hub.context(), &opened).await?;
    let accepted = messages::accepted(&thread, &turn, opened.run);
    Ok((StatusCode::ACCEPTED, fresh(accepted)).into_response())
}

pub(super) async fn drop_one(
    desk: Desk,
    Params((thread, turn)): Params<(String, String)>,
    headers: HeaderMap,
    _: Empty,
) -> Result<Response, Problem> {
    let (thread, turn, actor) = (desk.thread(&thread)?, turn_id(&turn)?, desk.actor(&headers)?);
    let hub = desk.hub()?;
    hub.store().failed_turn(&thread, &turn).await?.ok_or_else(unknown)?;
    let acted = acts::perform(hub, actor, thread.agent(), ActKind::DropFailedTurn(turn)).await?;
    Ok(acted.into_response())
}

fn shown_turn(row: &FailedTurnRow) -> Value {
    let opened = &row.opened;
    json!({
        "turn_id": opened.turn.as_str(),
        "agent_id": opened.agent.name(),
        "run": opened.run,
        "message_id": opened.turn.answer(opened.run).as_str(),
        "content": opened.content,
        "metadata": opened.metadata.to_value(),
        "code": row.code,
        "text": row.text,
        "retryable": row.is_retryable,
        "failed_at": shown::rfc3339(row.failed_at),
    })
}
