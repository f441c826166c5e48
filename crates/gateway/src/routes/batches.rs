//! Batches: their messages, their calls and results, and whether they are whole.

use axum::extract::State;
use axum::response::Response;
use batches::{Batch, State as BatchState, tokens};
use serde::Deserialize;
use serde_json::{Value, json};

use super::history::shown_message;
use super::{Desk, fresh, thread_id, threads};
use crate::params::{self, Asked, Params};
use crate::problem::Problem;
use crate::shown;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BatchesQuery {
    before: Option<String>,
    limit: Option<String>,
}

/// Newest first.
pub(super) async fn page(
    State(desk): State<Desk>,
    Params(thread): Params<String>,
    Asked(query): Asked<BatchesQuery>,
) -> Result<Response, Problem> {
    let (thread, before) = (thread_id(&thread)?, params::position("before", query.before)?);
    let limit = params::limit(query.limit.as_deref())?;
    let store = desk.hub()?.store();
    let mut ids = store.batch_ids(&thread, before, limit + 1).await?.ok_or_else(threads::unknown)?;
    let has_more = params::has_more(&mut ids, limit);
    let messages = store.batches(&thread, &ids).await?;
    let batches = batches::group(messages.into_iter().map(Into::into));
    let batches: Vec<_> = batches.iter().rev().map(shown_batch).collect();
    Ok(fresh(json!({ "thread_id": thread.as_str(), "batches": batches, "has_more": has_more })))
}

pub(super) async fn show(
    State(desk): State<Desk>,
    Params((thread, batch)): Params<(String, String)>,
) -> Result<Response, Problem> {
    let unknown = || Problem::not_found("unknown_batch", "there is no such batch in this thread");
    let (thread, batch) = (thread_id(&thread)?, params::position("batch", Some(batch))?.ok_or_else(unknown)?);
    let messages = desk.hub()?.store().batches(&thread, &[batch]).await?;
    let batches = batches::group(messages.iter().cloned().map(Into::into));
    let found = batches.first().ok_or_else(unknown)?;
    let mut shown = shown_batch(found);
    shown["calls"] = shown_calls(found);
    shown["messages"] = json!(messages.into_iter().map(shown_message).collect::<Vec<_>>());
    Ok(fresh(shown))
}

fn shown_batch(batch: &Batch) -> Value {
    let why = match batch.state() {
        BatchState::Complete => None,
        BatchState::Incomplete(why) => Some(why),
    };
    let input = batch.items().first().map(|item| preview(&item.content));
    json!({
        "batch_id": batch.id(),
        "batch_type": batch.batch_type().map(model::BatchType::name),
        "state": if why.is_none() { "complete" } else { "incomplete" },
        "incomplete_code": why.as_ref().map(batches::Why::code),
        "incomplete": why.map(|why| why.to_string()),
        "parent_batch": batch.parent(),
        "message_count": batch.items().len(),
        "tokens": tokens::of_batch(batch, &batches::Estimate),
        "input": input,
        "last_at": shown::rfc3339(batch.last_at()),
    })
}

fn shown_calls(batch: &Batch) -> Value {
    let exchanges = batch.exchanges();
    let shown = exchanges.iter().map(|exchange| {
        json!({
            "tool_call_id": exchange.id,
            "name": exchange.name,
            "call_at": exchange.call_at,
            "result_at": exchange.result.map(|(at, _)| at),
            "is_answered": exchange.is_answered,
        })
    });
    shown.collect()
}

/// The beginning of a text.
fn preview(text: &str) -> String {
    text.chars().take(120).collect()
}
